//! A file system device (5.11): folders of the host's, which the guest mounts by their tags.
//!
//! Files are served in this process by the crate fuse-backend-rs. The guest names files by numbers that
//! it got from here, or by one part of a path below such a file, so that no name leads out of the
//! folder: `..` and symbolic links are the guest's own to follow.

mod device;
mod served;
mod share;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use device::FileSystemDevice;
pub use share::{Share, ShareError, ShareMode};
