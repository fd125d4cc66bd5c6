//! Images: files that clients hand over for their VMs, kept by content.
//!
//! One server at a time has the folder ([`ImageStore::open`] locks it). In it:
//!
//! | | |
//! | --- | --- |
//! | `content/DIGEST` | the bytes of an image, once for all clients that have uploaded them |
//! | `images.json` | whose images there are, and their names ([`index`]) |
//! | `unfinished/` | uploads under way, and private copies of disks, which have no name; what a crash leaves is removed |
//! | `lock` | locked by the server |
//!
//! An image belongs to an account, and nobody else sees or uses it. A client that hasn't an image has to send all of its
//! content, also where another client has the same: so nobody learns what others have.

mod digest;
mod error;
mod grant;
mod index;
mod name;
mod room;
mod store;
mod upload;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use error::{ImageError, OpenError};
pub use grant::{HeldImages, grant};
pub use store::{Begun, ImageStore, KeptImage};
pub use upload::Begin;
