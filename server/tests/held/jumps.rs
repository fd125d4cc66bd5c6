//! Requests about jumps before there are any.

use std::time::Duration;

use vmprobe_client::ClientError;
use vmprobe_client::spec;
use vmprobe_client::v1::{Capture, OptimizationState, Probe, ProbeSpec};

use super::{VM, list, with_vm};

/// Longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);

fn probes(texts: &[&str]) -> Vec<ProbeSpec> {
    texts
        .iter()
        .map(|text| spec::parse(text).unwrap())
        .collect()
}

/// The words of the probes' options.
fn words(probes: &[Probe]) -> Vec<String> {
    let options = probes.iter().map(|probe| probe.options.clone().unwrap());
    options
        .map(|options| spec::option_words(&options).join(" "))
        .collect()
}

#[tokio::test]
async fn options_come_back_as_they_were_asked_for() {
    let cmdline = "vmprobe.probe=first,count,if=edi==-100&&pid==7,nojump;second,regs=rsi+rdi";
    with_vm(cmdline, async |client| {
        let more = probes(&["third lossless if=cpu!=1", "p:all first"]);
        client.register_probes(VM, more).await.unwrap();
        let probes = list(&client).await;
        assert_eq!(
            words(&probes),
            [
                "count if=edi==-100&&pid==7 nojump",
                "regs=rsi+rdi",
                "if=cpu!=1 lossless",
                "",
            ]
        );
        let all = probes[3].options.clone().unwrap();
        assert_eq!(all.capture(), Capture::Full);
        assert!(probes.iter().all(|probe| probe.optimization.is_some()));
    })
    .await;
}

#[tokio::test]
async fn probes_that_are_not_armed_are_settled_and_others_wait_to_the_deadline() {
    with_vm(
        "vmprobe.probe=p:a,first,disabled;p:b,second,disabled",
        async |client| {
            let answer = client.wait_probes(VM, vec![], vec![], LONG).await.unwrap();
            assert_eq!(answer.probes.len(), 2);
            assert_eq!(answer.optimizer.unwrap().batches, 0);
            let names = vec!["b".to_owned()];
            let answer = client.wait_probes(VM, vec![], names, LONG).await.unwrap();
            assert_eq!(answer.probes.len(), 1);
            let error = client
                .wait_probes(VM, vec![99], vec![], LONG)
                .await
                .unwrap_err();
            assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");

            client.enable_probes(VM, vec![1], vec![]).await.unwrap();
            let short = Duration::from_millis(100);
            let waited = client.wait_probes(VM, vec![], vec![], short).await;
            // No probe becomes a jump before the kernel has started, but the reason why it can't
            // may be known.
            match waited {
                Err(error) => assert!(matches!(error, ClientError::Timeout), "{error:?}"),
                Ok(answer) => {
                    let optimization = answer.probes[0].optimization.clone().unwrap();
                    assert_eq!(optimization.state(), OptimizationState::Not);
                }
            }
        },
    )
    .await;
}

#[tokio::test]
async fn whoever_waits_for_probes_is_told_when_they_settle_or_the_guest_ends() {
    with_vm("vmprobe.probe=p:a,first", async |client| {
        let waiting = |client: &vmprobe_client::Client| {
            let client = client.clone();
            tokio::spawn(async move { client.wait_probes(VM, vec![], vec![], LONG).await })
        };
        let first = waiting(&client);
        client.disable_probes(VM, vec![1], vec![]).await.unwrap();
        assert_eq!(first.await.unwrap().unwrap().probes.len(), 1);

        client.enable_probes(VM, vec![1], vec![]).await.unwrap();
        let second = waiting(&client);
        client.kill_vm(VM).await.unwrap();
        match second.await.unwrap() {
            Err(ClientError::FailedPrecondition(text)) => {
                assert!(text.contains("`a` has ended"), "{text}");
            }
            // If no jumps are possible at all, that was known before.
            Ok(answer) => assert_eq!(answer.probes.len(), 1),
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

#[tokio::test]
async fn the_knobs_are_turned_for_chosen_probes_all_or_none_and_for_the_vm() {
    with_vm("vmprobe.probe=p:a,first;p:b,second", async |client| {
        let names = || vec!["b".to_owned()];
        let batch = client.keep_breakpoints(VM, vec![1], names()).await.unwrap();
        assert_eq!(batch.probes.len(), 2);
        assert!(batch.stopped > Duration::ZERO);
        assert_eq!(words(&batch.probes), ["nojump", "nojump"]);
        let error = client
            .optimize_probes(VM, vec![99], names())
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
        client.optimize_probes(VM, vec![], names()).await.unwrap();
        assert_eq!(words(&list(&client).await), ["nojump", ""]);

        assert!(client.probe_list(VM).await.unwrap().optimizing);
        assert!(client.set_optimization(VM, false).await.unwrap() > Duration::ZERO);
        assert!(!client.probe_list(VM).await.unwrap().optimizing);
        client.set_optimization(VM, true).await.unwrap();
        assert!(client.probe_list(VM).await.unwrap().optimizing);
    })
    .await;
}
