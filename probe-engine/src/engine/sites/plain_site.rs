//! What a hit looks at where there is little to do.

use std::sync::Arc;

use crate::engine::sites::hit_counters::HitCounters;
use crate::engine::sites::site::{Site, Way};
use crate::fetch::Fetches;
use crate::probe::{ProbeId, ProbeKind};

/// A site with an int3 and one active probe, which asks for nothing but registers and the context or a count, and with
/// an instruction that the engine emulates. Most breakpoints are such sites.
///
/// All that its hits look at is here, and none of the site or the probe: with thousands of sites, each of these is in
/// memory and not in the processor's caches, and fetching it takes as long as all of the hit's work.
#[derive(Debug, Clone)]
pub(crate) struct PlainSite {
    pub(crate) way: Arc<Way>,
    pub(crate) probe: ProbeId,
    /// `None` where hits are only counted.
    pub(crate) told: Option<Told>,
    pub(crate) counters: HitCounters,
}

/// What an event of a plain site has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) registers: Fetches,
    pub(crate) context: bool,
}

impl PlainSite {
    /// Returns what the hits of a site look at; `None` if they have more to look at.
    pub(crate) fn of(site: &Site) -> Option<Self> {
        let [probe] = &site.active[..] else {
            return None;
        };
        let is_told = matches!(probe.kind, ProbeKind::Instruction { post: false, .. });
        let is_plain = site.has_int3()
            && site.milestone.is_none()
            && !site.follows
            && is_told
            && probe.is_plain
            && matches!(*site.way, Way::Emulate { .. });
        is_plain.then(|| Self {
            way: Arc::clone(&site.way),
            probe: probe.id,
            told: probe.capture.fetches().map(|registers| Told {
                registers,
                context: probe.options.context,
            }),
            counters: probe.counters().clone(),
        })
    }
}
