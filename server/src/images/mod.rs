//! Images: files that clients hand over for their VMs, kept by content.
//!
//! One server at a time has the folder ([`ImageStore::open`] locks it). In it:
//!
//! | | |
//! | --- | --- |
//! | `content/DIGEST` | the bytes of an image, once for all clients that have uploaded them |
//! | `images.json` | the images' owners and names ([`index`]) |
//! | `unfinished/` | uploads under way, and private copies of disks, which have no name; what a crash leaves is removed |
//! | `lock` | locked by the server |
//!
//! An image belongs to an account, and no other account sees or uses it. A client without an image has to send all of
//! its content, even if another client has the same. So no client learns what others have.

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
