//! Paths as the protocol takes them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, absolute};

use vmprobe_client::IMAGE;

/// A path that can't be sent to a server.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("the path {} is not UTF-8, which the protocol wants: rename it", .path.display())]
    NotUtf8 { path: OsString },
    #[error("can't find the folder this command was started in: {0}")]
    CurrentFolder(io::Error),
}

/// Returns the path from the root on: the server may have been started in another folder, and the user's path counts
/// from this one.
pub fn text(path: &Path) -> Result<String, PathError> {
    let absolute = absolute(path).map_err(PathError::CurrentFolder)?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| PathError::NotUtf8 { path })
}

/// As [`text`], for a file that may be an image of the server's, `image:NAME`.
pub fn file(path: &Path) -> Result<String, PathError> {
    match path.to_str() {
        Some(image) if image.starts_with(IMAGE) => Ok(image.to_owned()),
        _ => text(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_no_path_and_a_file_that_is_called_like_one_can_be_named() {
        assert_eq!(file(Path::new("image:linux")).unwrap(), "image:linux");
        let here = file(Path::new("./image:linux")).unwrap();
        assert!(
            here.starts_with('/') && here.ends_with("/image:linux"),
            "{here}"
        );
    }
}
