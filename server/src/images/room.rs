//! Disk space that is set aside.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::Account;

/// The bytes that uploads under way and private copies take, by account. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved(Arc<Mutex<BTreeMap<Account, u64>>>);

impl Reserved {
    /// Returns the bytes of one account.
    pub(super) fn of(&self, account: &Account) -> u64 {
        self.0.lock().get(account).copied().unwrap_or_default()
    }

    /// Returns the bytes of all accounts.
    pub(super) fn all(&self) -> u64 {
        let reserved = self.0.lock();
        reserved.values().copied().fold(0, u64::saturating_add)
    }

    /// Sets more bytes aside.
    pub(super) fn take(&self, account: &Account, bytes: u64) -> Room {
        let mut reserved = self.0.lock();
        let of_account = reserved.entry(account.clone()).or_default();
        *of_account = of_account.saturating_add(bytes);
        Room {
            reserved: self.clone(),
            account: account.clone(),
            bytes,
        }
    }
}

/// Bytes that are set aside for an account until this is dropped.
#[derive(Debug)]
pub struct Room {
    reserved: Reserved,
    account: Account,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut reserved = self.reserved.0.lock();
        if let Some(of_account) = reserved.get_mut(&self.account) {
            *of_account = of_account.saturating_sub(self.bytes);
            if *of_account == 0 {
                reserved.remove(&self.account);
            }
        }
    }
}
