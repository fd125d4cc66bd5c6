//! Probes with actions on the guest.

use std::time::Duration;

use vmprobe_client::v1::action::Action as Kind;
use vmprobe_client::v1::{
    Action, NoJumpReason, OverrideReturn, PauseGuest, ProbeSpec, Register, SetRegister, WriteMemory,
};
use vmprobe_client::{ClientError, words};
use vmprobe_server::Settings;

use super::{VM, list, on, watch, with_vm, with_vm_and};

fn changes() -> Settings {
    Settings {
        changes: true,
        ..Settings::default()
    }
}

fn doing(kinds: &[Kind], spec: ProbeSpec) -> ProbeSpec {
    let actions = kinds.iter().cloned();
    let actions = actions.map(|kind| Action { action: Some(kind) });
    ProbeSpec {
        actions: actions.collect(),
        ..spec
    }
}

fn set(register: Register) -> Kind {
    Kind::SetRegister(SetRegister {
        register: register.into(),
        value: 5,
    })
}

fn overriding() -> Kind {
    Kind::OverrideReturn(OverrideReturn { value: 1 })
}

fn writing(len: usize) -> Kind {
    Kind::WriteMemory(WriteMemory {
        base: Register::Rdi.into(),
        address: 8,
        data: vec![7; len],
    })
}

const PAUSE: Kind = Kind::Pause(PauseGuest {});

#[tokio::test]
async fn a_server_that_only_watches_refuses_what_changes_the_guest_and_says_how_to_allow_it() {
    with_vm("", async |client| {
        for kind in [set(Register::Rax), overriding(), writing(1)] {
            let probe = doing(&[PAUSE, kind], on("first", 0));
            let batch = vec![on("second", 0), probe];
            let error = client.register_probes(VM, batch).await.unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(error, ClientError::FailedPrecondition(_)),
                "{error:?}"
            );
            assert!(text.contains("--allow-changes"), "{text}");
            assert!(text.contains("crash the guest"), "{text}");
        }
        let pausing = doing(&[PAUSE], on("first", 0));
        client.register_probes(VM, vec![pausing]).await.unwrap();
        assert_eq!(list(&client).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn actions_come_back_as_they_were_asked_for_and_keep_the_probe_a_breakpoint() {
    with_vm_and("", changes(), async |client| {
        let kinds = [set(Register::Rip), overriding(), writing(256), PAUSE];
        let probe = doing(&kinds, on("first", 0));
        let batch = vec![probe.clone()];
        client.register_probes(VM, batch).await.unwrap();
        let found = list(&client).await.remove(0);
        assert_eq!(found.actions, probe.actions);
        assert_eq!((found.actions_done, found.actions_failed), (0, 0));
        assert!(!found.attended);
    })
    .await;
}

#[tokio::test]
async fn an_action_that_can_t_be_done_there_names_its_probe() {
    with_vm_and("", changes(), async |client| {
        let unknown = Kind::SetRegister(SetRegister {
            register: 99,
            value: 0,
        });
        for (probe, field) in [
            (doing(&[overriding()], on("first", 1)), "probes[0]"),
            (doing(&[overriding()], watch(0)), "probes[0]"),
            (doing(&[writing(257)], on("first", 0)), "probes[0]"),
            (doing(&[writing(0)], on("first", 0)), "probes[0]"),
            (
                doing(&[PAUSE, unknown], on("first", 0)),
                "probes[0].actions[1].set_register.register",
            ),
        ] {
            let error = client.register_probes(VM, vec![probe]).await.unwrap_err();
            let ClientError::InvalidArgument { fields, message } = error else {
                panic!("{error:?}")
            };
            assert_eq!(fields, [field], "{message}");
        }
        assert!(list(&client).await.is_empty());
    })
    .await;
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn each_probe_s_hits_are_answered_by_one_client_at_a_time() {
    with_vm("vmprobe.probe=p:a,first;p:b,second", async |client| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let hits = client.handle_hits(VM, vec![], names(&["a"]), MINUTE).await;
        let hits = hits.unwrap();
        assert!(list(&client).await[0].attended);
        let both = client.handle_hits(VM, vec![], names(&["b", "a"]), MINUTE);
        let error = both.await.unwrap_err();
        assert!(matches!(error, ClientError::AlreadyExists(_)), "{error:?}");
        assert!(!list(&client).await[1].attended, "all or none");
        drop(hits);
        // The server notices that after a while.
        loop {
            let again = client.handle_hits(VM, vec![], names(&["b", "a"]), MINUTE);
            match again.await {
                Ok(_) => break,
                Err(ClientError::AlreadyExists(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_can_t_be_answered_is_refused() {
    with_vm("vmprobe.probe=p:a,first", async |client| {
        let watched = watch(0);
        client.register_probes(VM, vec![watched]).await.unwrap();
        for (ids, time, field) in [
            (vec![1, 2], MINUTE, "begin.probes"),
            (vec![], MINUTE, "begin.probes"),
            (vec![1], Duration::ZERO, "begin.answer_ms"),
            (vec![1], Duration::from_secs(61), "begin.answer_ms"),
        ] {
            let refused = client.handle_hits(VM, ids, vec![], time).await;
            let error = refused.unwrap_err();
            let ClientError::InvalidArgument { fields, message } = error else {
                panic!("{error:?}")
            };
            assert_eq!(fields, [field], "{message}");
        }
        let unknown = client.handle_hits(VM, vec![9], vec![], MINUTE).await;
        assert!(matches!(unknown, Err(ClientError::NotFound(_))));
        assert!(!list(&client).await[0].attended);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_answers_what_was_not_asked_is_dropped() {
    with_vm("vmprobe.probe=p:a,first", async |client| {
        let hits = client.handle_hits(VM, vec![1], vec![], MINUTE).await;
        let mut hits = hits.unwrap();
        hits.answer(5, vec![]).await.unwrap();
        let error = hits.next().await.unwrap_err();
        assert!(
            matches!(error, ClientError::InvalidArgument { .. }),
            "{error:?}"
        );
        while list(&client).await[0].attended {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[test]
fn the_reasons_for_a_breakpoint_have_words() {
    for (kind, word) in [
        (NoJumpReason::Actions, "actions"),
        (NoJumpReason::Attended, "attended"),
    ] {
        let mut optimization = vmprobe_client::v1::Optimization::default();
        optimization.set_reason_kind(kind);
        assert_eq!(words::no_jump(&optimization), word);
    }
}
