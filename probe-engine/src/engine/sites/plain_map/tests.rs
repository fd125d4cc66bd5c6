use std::collections::BTreeMap;
use std::sync::Arc;

use guest_state::x86_64::NOP;
use iced_x86::{Decoder, DecoderOptions};
use proptest::prelude::*;

use super::*;
use crate::emulate::{self, Touched};
use crate::engine::sites::hit_counters::HitCounters;
use crate::engine::sites::site::Way;
use crate::insn::Prefixes;
use crate::probe::ProbeId;

fn plain(probe: u64) -> PlainSite {
    let nop = Decoder::new(64, &[NOP], DecoderOptions::NONE).decode();
    let compiled = emulate::compile(&nop, Prefixes::default()).unwrap();
    let touched = Touched::by(&nop, false);
    PlainSite {
        way: Arc::new(Way::Emulate { compiled, touched }),
        probe: ProbeId(probe),
        told: None,
        counters: HitCounters::of_batch(1).next().unwrap(),
    }
}

#[test]
fn what_a_hit_of_a_plain_site_looks_at_is_one_line_of_the_cache() {
    assert_eq!(size_of::<Option<Slot>>(), 64);
    assert_eq!(align_of::<Option<Slot>>(), 64);
}

proptest! {
    #[test]
    fn what_was_put_in_last_is_there_and_what_was_taken_out_is_not(
        changes in prop::collection::vec((0..40_u64, prop::option::of(any::<u64>())), 0..200)
    ) {
        let mut map = PlainMap::default();
        let mut expected = BTreeMap::new();
        for (at, probe) in changes {
            map.set(GuestVirtAddr(at), probe.map(plain));
            match probe {
                Some(probe) => expected.insert(at, probe),
                None => expected.remove(&at),
            };
            let found = |at| map.get(GuestVirtAddr(at)).map(|plain| plain.probe.0);
            for at in 0..40 {
                prop_assert_eq!(found(at), expected.get(&at).copied());
            }
            prop_assert_eq!(map.len, expected.len());
            prop_assert!(3 * map.len <= 2 * map.slots.len());
        }
    }
}
