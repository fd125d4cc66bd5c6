//! Long lists in pages.

use vmprobe_client::spec;
use vmprobe_client::v1::ListProbesRequest;
use vmprobe_client::v1::probe_service_client::ProbeServiceClient;

use super::image;
use super::vm::{Tiny, VM};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const PROBES: Test = Test {
    name: "tiny_pages_of_probes_are_the_whole_list_while_probes_come_and_go",
    ids: &["SV01"],
    needs: Needs::Tiny,
    run: probes,
};

/// Instructions to probe. The last one is probed later than the others.
const PLACES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "late"];
/// Probes on a page.
const SIZE: usize = 3;

fn probes(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        for place in PLACES {
            names.here(a, place)?;
            a.nop()?;
        }
        image::power_off(a)
    })?;
    cx.block_on(async {
        let guest = Tiny::new(cx, &kernel, 64).await?;
        let [first @ .., late] = PLACES;
        let spec = |place| spec::parse(place).map_err(|error| wrong!("{error}"));
        let specs: Result<Vec<_>, _> = first.into_iter().map(spec).collect();
        let registered = guest.client.register_probes(VM, specs?).await?;
        let mut expected: Vec<u64> = registered.iter().map(|probe| probe.id).collect();
        let mut calls = ProbeServiceClient::new(guest.server.channel().await?);
        let mut found = Vec::new();
        let mut page_token = String::new();
        for page in 0.. {
            let request = ListProbesRequest {
                vm: VM.into(),
                page_size: SIZE as u32,
                page_token,
            };
            let answer = calls.list_probes(request).await?.into_inner();
            check!(answer.armed && answer.optimizing, "{answer:?}");
            check!(answer.probes.len() <= SIZE, "too many: {answer:?}");
            found.extend(answer.probes.iter().map(|probe| probe.id));
            page_token = answer.next_page_token;
            if page_token.is_empty() {
                break;
            }
            if page == 0 {
                // One probe on the first page is removed, one on a later page is removed, and
                // another is added.
                let gone = vec![expected[0], expected[4]];
                guest.client.unregister_probes(VM, gone, Vec::new()).await?;
                let come = guest.client.register_probes(VM, vec![spec(late)?]);
                expected.push(come.await?[0].id);
                expected.remove(4);
            }
        }
        check_eq!(found, expected, "the probes of all pages");
        pass()
    })
}
