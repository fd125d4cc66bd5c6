//! The files of the host that a request may name.
//!
//! The process of a VM opens files only by [`GrantedFiles`], and only those that its request names. The server's own
//! user may name any file, since it can read what the server reads. All others may name files below the folders that
//! the owner has named ([`Folders`]), and images that they have handed over. The host's kernel looks up a path below a
//! folder in one step that can't leave the folder ([`beneath`]), even if the path has `..` or links, or other processes
//! rename files meanwhile.

mod beneath;
mod copy;
mod folders;
mod granted;

pub use folders::Folders;
pub use granted::{GrantedFiles, GrantedImage, Use};

/// The prefix of an image's name where a path may stand.
pub const IMAGE: &str = "image:";
