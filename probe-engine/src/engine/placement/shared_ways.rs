//! The ways of emulated instructions, kept once for all sites that have the same instruction.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::emulate::{Compiled, Touched};
use crate::engine::lock::{Lock, Rank};
use crate::engine::sites::site::Way;

/// Instructions that are remembered. A kernel's functions begin with some hundred different ones.
const REMEMBERED: usize = 4096;

/// The ways of emulated instructions by the instructions' bytes.
///
/// Most of thousands of sites share a few ways, so that a hit finds its way in the processor's caches.
#[derive(Debug)]
pub(crate) struct SharedWays(Lock<FxHashMap<Box<[u8]>, Arc<Way>>>);

impl SharedWays {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::SharedWays, FxHashMap::default()))
    }

    /// Returns the way of an instruction with these bytes: the one that another site has, if that is the same.
    pub(crate) fn emulate(&self, bytes: &[u8], compiled: Compiled, touched: Touched) -> Arc<Way> {
        let mut known = self.0.lock();
        // An instruction may mean something else at another address.
        let is_same = |way: &Arc<Way>| match &**way {
            Way::Emulate {
                compiled: its,
                touched: touches,
            } => *its == compiled && *touches == touched,
            Way::Boost { .. } | Way::Step { .. } => false,
        };
        if let Some(way) = known.get(bytes).filter(|way| is_same(way)) {
            return Arc::clone(way);
        }
        let way = Arc::new(Way::Emulate { compiled, touched });
        if known.len() < REMEMBERED {
            known.insert(bytes.into(), Arc::clone(&way));
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use guest_state::GuestVirtAddr;

    use super::*;
    use crate::emulate::compile;
    use crate::insn::decode;

    #[test]
    fn sites_with_the_same_instruction_share_its_way() {
        let ways = SharedWays::new();
        let of = |bytes: &[u8], at: u64| {
            let code = decode(bytes, GuestVirtAddr(at)).unwrap();
            let compiled = compile(&code.insn, code.prefixes).unwrap();
            ways.emulate(bytes, compiled, Touched::by(&code.insn, false))
        };
        let [push, jump] = [&[0x55][..], &[0xeb, 0x10]];
        assert!(Arc::ptr_eq(&of(push, 0x1000), &of(push, 0x2000)));
        assert!(!Arc::ptr_eq(&of(push, 0x1000), &of(&[0x53], 0x1000)));
        let (here, there) = (of(jump, 0x1000), of(jump, 0x2000));
        let same = matches!(
            (&*here, &*there),
            (Way::Emulate { compiled: one, .. }, Way::Emulate { compiled: other, .. }) if one == other
        );
        assert_eq!(Arc::ptr_eq(&here, &there), same);
    }
}
