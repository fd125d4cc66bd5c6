//! The files of the host that a request may name.
//!
//! The process of a VM opens what its request names, and opens nothing but by [`GrantedFiles`]. The server's own user may
//! name any file, since it can read what the server reads. All others name files below the folders that the owner has
//! named ([`Folders`]), or images that they have handed over. A path below a folder is found by the host's kernel in one
//! step that can't leave the folder ([`beneath`]), whatever `..`, links and others who rename files do meanwhile.

mod beneath;
mod copy;
mod folders;
mod granted;

pub use folders::Folders;
pub use granted::{GrantedFiles, GrantedImage, Use};

/// What the name of an image begins with where a path may stand.
pub const IMAGE: &str = "image:";
