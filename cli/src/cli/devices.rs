//! Arguments that give a guest devices.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use vmprobe_client::v1::{DiskFormat, ShareMode};

#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// A disk (repeatable): an image file or a block device
    ///
    /// Behind the file: ",qcow2" for a qcow2 image, ",raw" for a raw one that looks like qcow2, ",ro" for
    /// a disk that the guest can't write to; and the most that it reads and writes in a second, ",rate=BYTES" and
    /// ",iops=REQUESTS". K, M and G behind a number stand for 2^10, 2^20 and 2^30.
    #[arg(long = "disk", value_name = "FILE[,qcow2|,raw][,ro][,rate=N][,iops=N]")]
    pub disks: Vec<DiskArg>,
    /// A folder that the guest can mount (repeatable): mount -t virtiofs TAG WHERE
    ///
    /// The guest can change files in it only with ",rw" behind the folder.
    #[arg(long = "share", value_name = "TAG=FOLDER[,rw]")]
    pub shares: Vec<ShareArg>,
    /// A network device (repeatable): connected to a tap interface, or to passt
    ///
    /// The tap interface has to be there: ip tuntap add dev NAME mode tap user USER. "passt" starts the program, which
    /// needs no privilege, "passt=SOCKET" connects to one that runs. Behind that: the guest's address, and the most
    /// that goes through in a second in each direction, ",rate=BYTES" and ",pps=PACKETS". K, M and G behind a number
    /// stand for 2^10, 2^20 and 2^30.
    #[arg(
        long = "net",
        value_name = "tap=NAME|passt[=SOCKET][,mac=ADDRESS][,rate=N][,pps=N]"
    )]
    pub networks: Vec<NetworkArg>,
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
    pub limit: LimitArg,
}

/// The most that a device does in a second, where that is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitArg {
    pub bytes: Option<NonZeroU64>,
    pub operations: Option<NonZeroU64>,
}

/// A limit that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no limit of a second: write a number, not 0, that K, M or G may follow, as in rate=10M"
)]
pub struct NoLimit(String);

/// Reads the number in a word of a limit.
fn per_second(text: &str) -> Result<NonZeroU64, NoLimit> {
    let (digits, shift) = match text.as_bytes().split_last() {
        Some((b'K', digits)) => (digits, 10),
        Some((b'M', digits)) => (digits, 20),
        Some((b'G', digits)) => (digits, 30),
        _ => (text.as_bytes(), 0),
    };
    let digits = str::from_utf8(digits).ok();
    let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse::<u64>().ok());
    let number = number.and_then(|number| number.checked_mul(1 << shift));
    let number = number.and_then(NonZeroU64::new);
    number.ok_or_else(|| NoLimit(text.to_owned()))
}

impl FromStr for DiskArg {
    type Err = NoLimit;

    /// Takes words off the end: other commas belong to the file's name.
    fn from_str(text: &str) -> Result<Self, NoLimit> {
        let (mut rest, mut format, mut read_only) = (text, DiskFormat::Unspecified, false);
        let mut limit = LimitArg::default();
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=').unwrap_or((word, "")) {
                ("qcow2", "") => format = DiskFormat::Qcow2,
                ("raw", "") => format = DiskFormat::Raw,
                ("ro", "") => read_only = true,
                ("rate", bytes) => limit.bytes = Some(per_second(bytes)?),
                ("iops", requests) => limit.operations = Some(per_second(requests)?),
                _ => break,
            }
            rest = before;
        }
        Ok(Self {
            path: rest.into(),
            format,
            read_only,
            limit,
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

    /// Takes `,rw` off the end: other commas belong to the folder's name.
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

/// A network device, as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkArg {
    pub backend: BackendArg,
    /// Empty where none is named. The server says what is wrong with one.
    pub mac: String,
    pub limit: LimitArg,
}

/// What a network device is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendArg {
    Tap(String),
    /// The socket of one that runs, or none: it is to be started.
    Passt(Option<PathBuf>),
}

/// A network device that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNetwork {
    #[error(
        "{0:?} is no network: write tap=NAME, passt or passt=SOCKET, and behind it what you need of \
         ,mac=ADDRESS, ,rate=BYTES and ,pps=PACKETS"
    )]
    Backend(String),
    #[error(transparent)]
    Limit(#[from] NoLimit),
}

impl FromStr for NetworkArg {
    type Err = NoNetwork;

    /// Takes words off the end: other commas belong to the socket's name.
    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let (mut rest, mut mac, mut limit) = (text, String::new(), LimitArg::default());
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                Some(("mac", address)) => mac = address.to_owned(),
                Some(("rate", bytes)) => limit.bytes = Some(per_second(bytes)?),
                Some(("pps", packets)) => limit.operations = Some(per_second(packets)?),
                _ => break,
            }
            rest = before;
        }
        let backend = match rest.split_once('=') {
            Some(("tap", name)) if !name.is_empty() => BackendArg::Tap(name.to_owned()),
            Some(("passt", path)) if !path.is_empty() => BackendArg::Passt(Some(path.into())),
            None if rest == "passt" => BackendArg::Passt(None),
            _ => return Err(NoNetwork::Backend(rest.to_owned())),
        };
        Ok(Self {
            backend,
            mac,
            limit,
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

    fn limited((bytes, operations): (u64, u64)) -> LimitArg {
        LimitArg {
            bytes: NonZeroU64::new(bytes),
            operations: NonZeroU64::new(operations),
        }
    }

    #[test]
    fn a_limit_is_a_number_that_a_letter_may_follow() {
        for (text, expected) in [
            ("1", 1),
            ("10K", 10 << 10),
            ("10M", 10 << 20),
            ("16777216G", 1 << 54),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(per_second(text).map(NonZeroU64::get), Ok(expected));
        }
        for text in [
            "",
            "0",
            "0K",
            "M",
            "1k",
            "-1",
            "+1",
            "1.5M",
            "18446744073709551616",
            "17179869184G",
        ] {
            assert_eq!(per_second(text), Err(NoLimit(text.to_owned())));
            for option in [format!("x,rate={text}"), format!("x,iops={text}")] {
                assert!(option.parse::<DiskArg>().is_err(), "{option}");
            }
            for option in [format!("passt,rate={text}"), format!("passt,pps={text}")] {
                assert!(option.parse::<NetworkArg>().is_err(), "{option}");
            }
        }
    }

    #[test]
    fn a_network_is_a_back_end_and_words_behind_it() {
        let tap = |name: &str| BackendArg::Tap(name.to_owned());
        let socket = |path: &str| BackendArg::Passt(Some(path.into()));
        for (text, backend, mac, limit) in [
            ("tap=tap0", tap("tap0"), "", (0, 0)),
            ("passt", BackendArg::Passt(None), "", (0, 0)),
            ("passt=/run/a,b", socket("/run/a,b"), "", (0, 0)),
            (
                "tap=t,mac=02:0,pps=5,rate=10M",
                tap("t"),
                "02:0",
                (10 << 20, 5),
            ),
            ("passt,rate=1", BackendArg::Passt(None), "", (1, 0)),
        ] {
            let expected = NetworkArg {
                backend,
                mac: mac.to_owned(),
                limit: limited(limit),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "", "tap", "tap=", "passt=", "passt,x", "user", "mac=02:0", "Tap=x",
        ] {
            let refused = text.parse::<NetworkArg>();
            assert_eq!(refused, Err(NoNetwork::Backend(text.to_owned())));
        }
    }

    #[test]
    fn words_behind_a_disk_s_file_say_what_it_is() {
        let none = DiskFormat::Unspecified;
        for (text, path, format, read_only, limit) in [
            ("disk.img", "disk.img", none, false, (0, 0)),
            (
                "a,b.qcow2,qcow2",
                "a,b.qcow2",
                DiskFormat::Qcow2,
                false,
                (0, 0),
            ),
            ("/x,ro,raw", "/x", DiskFormat::Raw, true, (0, 0)),
            ("x,ro,y", "x,ro,y", none, false, (0, 0)),
            ("ro", "ro", none, false, (0, 0)),
            ("rate=1", "rate=1", none, false, (0, 0)),
            ("x,rate=50M,iops=1000,ro", "x", none, true, (50 << 20, 1000)),
            ("x,iops=2K", "x", none, false, (0, 2048)),
        ] {
            let expected = DiskArg {
                path: path.into(),
                format,
                read_only,
                limit: limited(limit),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }
}
