//! A VM's counts and rates.

use vmprobe_client::v1::{EventStream, ProbeOrder, ProbeStats};

use super::{VM, list, with_vm};

#[tokio::test]
async fn stats_tell_probes_stops_and_streams() {
    with_vm("vmprobe.probe=p:mine,first;second;third", async |client| {
        let _stream = client.events(VM, Vec::new()).await.unwrap();
        let before = client
            .vm_stats(VM, 2, ProbeOrder::Registered, 0)
            .await
            .unwrap();
        let sums = before.probe_sums.unwrap();
        assert_eq!((sums.count, sums.hits, sums.missed), (3, 0, 0));
        assert_eq!(sums.hits_per_second, None, "there was one look only");
        assert_eq!((before.exits_per_second, before.uptime_ns), (None, 0));
        let first = &list(&client).await[0];
        let expected = ProbeStats {
            id: first.id,
            name: "mine".into(),
            symbol: "first".into(),
            address: first.address,
            ..ProbeStats::default()
        };
        assert_eq!(before.probes.len(), 2);
        assert_eq!(before.probes[0], expected);
        let streams = before.streams.unwrap();
        let empty = EventStream {
            capacity: 64 * 1024,
            ..EventStream::default()
        };
        assert_eq!(streams.streams, [empty]);
        assert!(before.recent_stops.is_empty());

        client.disarm_probes(VM).await.unwrap();
        client.arm_probes(VM).await.unwrap();
        let after = client.vm_stats(VM, 0, ProbeOrder::Rate, 1).await.unwrap();
        assert!(after.probes.is_empty());
        let stops = after.vm.unwrap().stops.unwrap();
        let more = stops.count - before.vm.unwrap().stops.unwrap().count;
        assert_eq!(more, 2);
        assert_eq!(after.stop_lengths.iter().sum::<u64>(), stops.count);
        let [last] = &after.recent_stops[..] else {
            panic!("{:?}", after.recent_stops);
        };
        assert!(last.ns > 0 && last.ns <= stops.longest_ns && last.end_unix_ns > 0);
    })
    .await;
}
