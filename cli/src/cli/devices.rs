//! Arguments that give a guest devices.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use vmprobe_client::v1::{DiskFormat, ShareMode};

#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// A disk (repeatable): an image file or a block device
    ///
    /// Behind the file: ",qcow2" for a qcow2 image, ",raw" for a raw one that looks like qcow2, ",ro" for
    /// a disk that the guest can't write to.
    #[arg(long = "disk", value_name = "FILE[,qcow2|,raw][,ro]")]
    pub disks: Vec<DiskArg>,
    /// A folder that the guest can mount (repeatable): mount -t virtiofs TAG WHERE
    ///
    /// The guest can change files in it only with ",rw" behind the folder.
    #[arg(long = "share", value_name = "TAG=FOLDER[,rw]")]
    pub shares: Vec<ShareArg>,
    /// Random bytes of the host's, by a virtio device
    #[arg(long)]
    pub entropy: bool,
    /// A socket device: PATH is the Unix socket by which processes of this host connect to the guest
    ///
    /// They write "CONNECT PORT" and a line feed first. A guest that connects to port P of CID 2 gets to the Unix
    /// socket PATH followed by _P. Behind the path: the guest's CID, which is 3 otherwise.
    #[arg(long, value_name = "PATH[,cid=N]")]
    pub vsock: Option<VsockArg>,
}

/// A disk, as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskArg {
    pub path: PathBuf,
    pub format: DiskFormat,
    pub read_only: bool,
}

impl FromStr for DiskArg {
    type Err = Infallible;

    /// Words are taken off the end: other commas belong to the file's name.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (mut rest, mut format, mut read_only) = (text, DiskFormat::Unspecified, false);
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word {
                "qcow2" => format = DiskFormat::Qcow2,
                "raw" => format = DiskFormat::Raw,
                "ro" => read_only = true,
                _ => break,
            }
            rest = before;
        }
        Ok(Self {
            path: rest.into(),
            format,
            read_only,
        })
    }
}

/// A share, as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareArg {
    pub tag: String,
    pub path: PathBuf,
    pub mode: ShareMode,
}

/// A share that can't be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a share is TAG=FOLDER: the tag by which the guest mounts it, then the folder")]
pub struct NoShare;

impl FromStr for ShareArg {
    type Err = NoShare;

    /// Other commas belong to the folder's name.
    fn from_str(text: &str) -> Result<Self, NoShare> {
        let (tag, rest) = text.split_once('=').ok_or(NoShare)?;
        let (path, mode) = match rest.strip_suffix(",rw") {
            Some(path) => (path, ShareMode::ReadWrite),
            None => (rest, ShareMode::ReadOnly),
        };
        if tag.is_empty() || path.is_empty() {
            return Err(NoShare);
        }
        Ok(Self {
            tag: tag.to_owned(),
            path: path.into(),
            mode,
        })
    }
}

/// A socket device, as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockArg {
    pub path: PathBuf,
    /// 0 where none is named.
    pub cid: u32,
}

/// A guest's CID that can't be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a guest's CID is a number, at least 3 and less than 4294967295")]
pub struct NoCid;

impl FromStr for VsockArg {
    type Err = NoCid;

    fn from_str(text: &str) -> Result<Self, NoCid> {
        let (path, cid) = match text.rsplit_once(",cid=") {
            Some((path, cid)) => (path, cid.parse().map_err(|_| NoCid)?),
            None => (text, 0),
        };
        let path = path.into();
        Ok(Self { path, cid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_behind_a_share_s_folder_says_whether_it_can_be_changed() {
        for (text, tag, path, mode) in [
            ("root=/", "root", "/", ShareMode::ReadOnly),
            ("r=/a,b,rw", "r", "/a,b", ShareMode::ReadWrite),
            ("r=a=b", "r", "a=b", ShareMode::ReadOnly),
        ] {
            let expected = ShareArg {
                tag: tag.to_owned(),
                path: path.into(),
                mode,
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "/folder", "=x", "r=", "r=,rw"] {
            assert_eq!(text.parse::<ShareArg>(), Err(NoShare), "{text}");
        }
    }

    #[test]
    fn a_cid_may_be_behind_the_socket_s_path() {
        for (text, path, cid) in [
            ("/run/vm.sock", "/run/vm.sock", 0),
            ("a,b,cid=42", "a,b", 42),
        ] {
            let path = path.into();
            assert_eq!(text.parse(), Ok(VsockArg { path, cid }), "{text}");
        }
        for text in ["x,cid=", "x,cid=-1", "x,cid=4294967296", "x,cid=3,y"] {
            assert_eq!(text.parse::<VsockArg>(), Err(NoCid), "{text}");
        }
    }

    #[test]
    fn words_behind_a_disk_s_file_say_what_it_is() {
        for (text, path, format, read_only) in [
            ("disk.img", "disk.img", DiskFormat::Unspecified, false),
            ("a,b.qcow2,qcow2", "a,b.qcow2", DiskFormat::Qcow2, false),
            ("/x,ro,raw", "/x", DiskFormat::Raw, true),
            ("x,ro,y", "x,ro,y", DiskFormat::Unspecified, false),
            ("ro", "ro", DiskFormat::Unspecified, false),
        ] {
            let expected = DiskArg {
                path: path.into(),
                format,
                read_only,
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }
}
