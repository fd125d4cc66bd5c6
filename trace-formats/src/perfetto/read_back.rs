//! What Perfetto's own trace processor makes of the traces.

use row_report::proves;
use trace_processor::query;

use super::*;
use crate::samples;

/// Returns the answers to the queries, each of one column `it`, about a trace of these events and of five lost ones.
fn answers<const N: usize>(events: &[Event], queries: [&str; N]) -> [Vec<String>; N] {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = Perfetto::new(file.reopen().unwrap(), &samples::guest());
    writer.begin(&samples::probes()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.lost(5).unwrap();
    writer.finish().unwrap();
    let mut answers = query(file.path(), &queries).unwrap().into_iter();
    queries.map(|_| {
        let rows = answers.next().unwrap().into_iter();
        rows.map(|row| row["it"].as_str().unwrap().to_owned())
            .collect()
    })
}

#[test]
fn perfetto_finds_nothing_wrong_and_every_event_on_its_tracks() {
    let name = "perfetto_finds_nothing_wrong_and_every_event_on_its_tracks";
    proves(&["TR08"], name, || {
        let events = [samples::open(), samples::read(), samples::returned()];
        let [wrong, slices, threads, flows] = answers(
            &events,
            [
                "select name as it from stats where severity in ('error', 'data_loss') and value > 0",
                "select slice.ts || ' ' || slice.dur || ' ' || slice.name || ', ' || category || ', ' || \
             ifnull(thread.name, track.name) as it \
             from slice join track on track.id = track_id \
             left join thread_track on thread_track.id = track_id left join thread using (utid) \
             order by slice.ts, slice.id",
                "select tid || ' ' || thread.name || ' of ' || pid || ' ' || process.name as it \
             from thread join process using (upid) where tid = 1234",
                "select outgoing.ts || ' to ' || incoming.ts as it from flow \
             join slice outgoing on outgoing.id = slice_out join slice incoming on incoming.id = slice_in",
            ],
        );
        assert_eq!(wrong, [""; 0]);
        assert_eq!(
            slices,
            [
                "123456789999 0 open, cpu, CPU 1",
                "123456789999 0 open, kprobes, cat",
                "123456798999 3000 done, kprobes, cat",
                "123456799001 0 read, cpu, CPU 0",
                "123456799001 0 read, kprobes, cat",
                "123456801999 0 done, cpu, CPU 1",
                "123456801999 0 5 events lost, lost, lost events",
            ]
        );
        assert_eq!(threads, ["1234 cat of 1230 cat"]);
        assert_eq!(flows, ["123456799001 to 123456801999"]);
        format!("{} slices", slices.len())
    });
}

#[test]
fn perfetto_shows_arguments_places_and_stacks() {
    let [shown] = answers(
        &[samples::with_stack()],
        [
            "select key || '=' || display_value as it from slice join args using (arg_set_id) \
          where category = 'kprobes' and key like 'debug.%' order by key",
        ],
    );
    assert_eq!(
        shown,
        [
            "debug.cpu=1",
            "debug.dfd=0xffffff9c",
            "debug.name=/etc/passwd",
            "debug.place=do_sys_openat2+0x0/0x90",
            "debug.stack[0]=do_sys_openat2+0x0/0x90",
            "debug.stack[1]=ksys_read+0x6a/0xe0",
            "debug.stack[2]=0x00401000",
        ]
    );
}
