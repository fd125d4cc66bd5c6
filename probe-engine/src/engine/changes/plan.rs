//! A change of probes that is worked out before it is made.

use std::sync::Arc;

use crate::engine::changes::patches::Patches;
use crate::engine::changes::registry::Registry;
use crate::engine::sites::departed::Turnover;
use crate::engine::sites::site::{Site, are_same};
use crate::engine::sites::table::Table;

/// The probes and the table of a moment. Neither changes any more: a change makes the next generation.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    pub(crate) registry: Arc<Registry>,
    pub(crate) table: Arc<Table>,
}

impl Generation {
    /// Returns true if this is the other generation, and not one that followed it.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registry, &other.registry) && Arc::ptr_eq(&self.table, &other.table)
    }
}

/// A change from one generation to the next, with lists of the sites that it concerns. Its commit takes no longer where
/// there are other probes, but making it does: so it is best made while the guest runs.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) before: Generation,
    pub(crate) after: Generation,
    /// The armed sites of the generation before whose text is to change.
    pub(crate) gone: Patches,
    /// Those of the generation after whose text is to change.
    pub(crate) come: Patches,
    /// Those of the generation after whose text stays, and which have other active probes than before.
    pub(crate) kept: Vec<Arc<Site>>,
    /// What is remembered of the change.
    pub(crate) turnover: Arc<Turnover>,
}

impl Plan {
    /// Plans the change from a generation to these probes and this table.
    pub(crate) fn new(before: Generation, registry: Arc<Registry>, table: Table) -> Self {
        let table = table.settled();
        let gone = changed(&before.table, &table);
        let come = changed(&table, &before.table);
        let has_others = |site: &&Arc<Site>| {
            let other = before.table.site(site.virt);
            other
                .is_some_and(|other| is_same(site, other) && !are_same(&site.active, &other.active))
        };
        let kept = table.sites().filter(has_others).cloned().collect();
        Self {
            turnover: Arc::new(Turnover::new(&gone, &come)),
            gone: Patches::new(gone),
            come: Patches::new(come),
            kept,
            after: Generation { registry, table },
            before,
        }
    }
}

/// The armed sites that have other text in the other table.
fn changed(table: &Table, other: &Table) -> Vec<Arc<Site>> {
    let is_changed = |site: &&Arc<Site>| {
        let now = other.site(site.virt);
        site.armed && !now.is_some_and(|now| is_same(site, now))
    };
    let mut sites: Vec<_> = table.sites().filter(is_changed).cloned().collect();
    sites.sort_unstable_by_key(|site| site.virt);
    sites
}

/// Returns true if a site of one table and the one at its address in another are armed, and have the same text.
fn is_same(one: &Arc<Site>, other: &Arc<Site>) -> bool {
    if Arc::ptr_eq(one, other) {
        return one.armed;
    }
    let same_text = match (one.jump(), other.jump()) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    one.armed && other.armed && same_text
}
