//! The devices of a guest.

use std::num::NonZeroU64;

use tonic::Status;
use vmm::{
    ConsoleSize, Devices, Disk, DiskFormat, NetBackend, Network, RateLimit, Share, ShareMode,
    VirtioConsole, Vsock,
};
use vmprobe_proto::v1;

use crate::files::{GrantedFiles, Use};
use crate::status;

/// The CID of a guest if the request names none. Lower ones are reserved.
const DEFAULT_CID: u32 = 3;

/// Returns the monitor's form of the devices that a request asks for, with files that are
/// `granted`.
///
/// # Errors
/// `INVALID_ARGUMENT` with the field, or the error for a file that may not be named.
pub fn devices(asked: Option<&v1::Devices>, granted: &GrantedFiles) -> Result<Devices, Status> {
    let Some(asked) = asked else {
        return Ok(Devices::default());
    };
    Ok(Devices {
        disks: each("disks", &asked.disks, |at, asked| disk(at, asked, granted))?,
        shares: each("shares", &asked.shares, |at, asked| {
            share(at, asked, granted)
        })?,
        networks: each("networks", &asked.networks, |at, asked| {
            network(at, asked, granted)
        })?,
        entropy: asked.entropy,
        vsock: asked
            .vsock
            .as_ref()
            .map(|it| vsock(it, granted))
            .transpose()?,
        console: asked.console.as_ref().map(console).transpose()?,
    })
}

fn console(asked: &v1::VirtioConsole) -> Result<VirtioConsole, Status> {
    let side = |field: &str, characters: u32| {
        u16::try_from(characters).map_err(|_| {
            let why = format!("a terminal has at most {} {field}", u16::MAX);
            status::invalid(format!("devices.console.{field}"), why)
        })
    };
    let size = ConsoleSize {
        columns: side("columns", asked.columns)?,
        rows: side("rows", asked.rows)?,
    };
    let is_known = size.columns > 0 && size.rows > 0;
    Ok(VirtioConsole {
        size: is_known.then_some(size),
    })
}

fn vsock(asked: &v1::Vsock, granted: &GrantedFiles) -> Result<Vsock, Status> {
    const FIELD: &str = "devices.vsock.path";
    if asked.path.is_empty() {
        let why = "the path of the socket device's Unix socket is missing";
        return Err(status::invalid(FIELD, why));
    }
    let cid = match asked.cid {
        0 => DEFAULT_CID,
        cid => cid,
    };
    let path = granted.new_socket(FIELD, &asked.path)?;
    Ok(Vsock { path, cid })
}

/// Where a request has a device.
struct Place<'a> {
    list: &'a str,
    index: usize,
}

impl Place<'_> {
    fn field(&self, field: &str) -> String {
        format!("devices.{}[{}].{field}", self.list, self.index)
    }

    fn wrong(&self, field: &str, why: impl Into<String>) -> Status {
        status::invalid(self.field(field), why)
    }
}

/// Returns the monitor's form of the devices in the field `list`.
fn each<A, D>(
    list: &str,
    asked: &[A],
    convert: impl Fn(&Place<'_>, &A) -> Result<D, Status>,
) -> Result<Vec<D>, Status> {
    let converted = asked.iter().enumerate();
    let converted = converted.map(|(index, asked)| convert(&Place { list, index }, asked));
    converted.collect()
}

fn disk(at: &Place<'_>, asked: &v1::Disk, granted: &GrantedFiles) -> Result<Disk, Status> {
    if asked.path.is_empty() {
        return Err(at.wrong("path", "the path of a disk's file is missing"));
    }
    let format = match v1::DiskFormat::try_from(asked.format) {
        Ok(v1::DiskFormat::Unspecified) => None,
        Ok(v1::DiskFormat::Raw) => Some(DiskFormat::Raw),
        Ok(v1::DiskFormat::Qcow2) => Some(DiskFormat::Qcow2),
        Err(_) => {
            let why = format!("format {} is unknown to this server", asked.format);
            return Err(at.wrong("format", why));
        }
    };
    let wanted = match asked.read_only {
        true => Use::Read,
        false => Use::Write,
    };
    Ok(Disk {
        path: granted.disk(&at.field("path"), &asked.path, wanted)?,
        format,
        read_only: asked.read_only,
        limit: limit(asked.limit.as_ref()),
    })
}

fn network(at: &Place<'_>, asked: &v1::Network, granted: &GrantedFiles) -> Result<Network, Status> {
    let backend = match &asked.backend {
        Some(v1::network::Backend::Tap(tap)) if tap.name.is_empty() => {
            return Err(at.wrong("tap.name", "the name of the tap interface is missing"));
        }
        Some(v1::network::Backend::Tap(tap)) => NetBackend::Tap(tap.name.clone()),
        Some(v1::network::Backend::Passt(passt)) => {
            let socket = Some(&passt.socket).filter(|path| !path.is_empty());
            let socket = socket.map(|path| granted.socket(&at.field("passt.socket"), path));
            NetBackend::Passt(socket.transpose()?)
        }
        None => {
            let why = "a network device is connected to a tap interface or to passt: name one";
            return Err(at.wrong("backend", why));
        }
    };
    let mac = Some(&asked.mac).filter(|mac| !mac.is_empty());
    let mac = mac.map(|mac| mac.parse()).transpose();
    Ok(Network {
        backend,
        mac: mac.map_err(|error: vmm::NoMac| at.wrong("mac", error.to_string()))?,
        limit: limit(asked.limit.as_ref()),
    })
}

fn limit(asked: Option<&v1::RateLimit>) -> RateLimit {
    let asked = asked.copied().unwrap_or_default();
    RateLimit {
        bytes: NonZeroU64::new(asked.bytes_per_second),
        operations: NonZeroU64::new(asked.operations_per_second),
    }
}

fn share(at: &Place<'_>, asked: &v1::Share, granted: &GrantedFiles) -> Result<Share, Status> {
    if asked.path.is_empty() {
        return Err(at.wrong("path", "the path of a share's folder is missing"));
    }
    let (mode, wanted) = match v1::ShareMode::try_from(asked.mode) {
        Ok(v1::ShareMode::Unspecified | v1::ShareMode::ReadOnly) => {
            (ShareMode::ReadOnly, Use::Read)
        }
        Ok(v1::ShareMode::ReadWrite) => (ShareMode::ReadWrite, Use::Write),
        Err(_) => {
            let why = format!("mode {} is unknown to this server", asked.mode);
            return Err(at.wrong("mode", why));
        }
    };
    Ok(Share {
        tag: asked.tag.clone(),
        path: granted.folder(&at.field("path"), &asked.path, wanted)?,
        mode,
    })
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

    fn devices(asked: Option<&v1::Devices>) -> Result<Devices, Status> {
        super::devices(asked, &GrantedFiles::any())
    }

    fn with_disk(path: &str, format: i32) -> v1::Devices {
        v1::Devices {
            disks: vec![
                v1::Disk {
                    path: "/first".into(),
                    ..Default::default()
                },
                v1::Disk {
                    path: path.into(),
                    format,
                    read_only: true,
                    limit: Some(limited(7, 0)),
                },
            ],
            entropy: true,
            ..Default::default()
        }
    }

    fn limited(bytes_per_second: u64, operations_per_second: u64) -> v1::RateLimit {
        v1::RateLimit {
            bytes_per_second,
            operations_per_second,
        }
    }

    fn with_network(backend: Option<v1::network::Backend>, mac: &str) -> v1::Devices {
        v1::Devices {
            networks: vec![v1::Network {
                backend,
                mac: mac.into(),
                limit: Some(limited(0, 9)),
            }],
            ..Default::default()
        }
    }

    fn tap(name: &str) -> Option<v1::network::Backend> {
        let name = name.to_owned();
        Some(v1::network::Backend::Tap(v1::Tap { name }))
    }

    fn passt(socket: &str) -> Option<v1::network::Backend> {
        let socket = socket.to_owned();
        Some(v1::network::Backend::Passt(v1::Passt { socket }))
    }

    fn with_share(share: v1::Share) -> v1::Devices {
        v1::Devices {
            shares: vec![share],
            ..Default::default()
        }
    }

    fn shared(path: &str, mode: i32) -> v1::Share {
        v1::Share {
            tag: "t".into(),
            path: path.into(),
            mode,
        }
    }

    fn with_vsock(path: &str, cid: u32) -> v1::Devices {
        let vsock = Some(v1::Vsock {
            path: path.into(),
            cid,
        });
        v1::Devices {
            vsock,
            ..Default::default()
        }
    }

    #[test]
    fn devices_keep_their_order_and_switches() {
        let asked = with_disk("/second", v1::DiskFormat::Qcow2.into());
        let devices = devices(Some(&asked)).unwrap();
        assert!(devices.entropy);
        let disk = |path: &str, format, read_only, bytes| Disk {
            path: path.into(),
            format,
            read_only,
            limit: RateLimit {
                bytes: NonZeroU64::new(bytes),
                operations: None,
            },
        };
        let expected = [
            disk("/first", None, false, 0),
            disk("/second", Some(DiskFormat::Qcow2), true, 7),
        ];
        assert_eq!(devices.disks, expected);
    }

    #[test]
    fn a_network_has_its_back_end_its_address_and_its_limit() {
        let socket = NetBackend::Passt(Some("/run/passt".into()));
        for (backend, mac, expected) in [
            (
                tap("tap0"),
                "02:00:00:12:34:56",
                NetBackend::Tap("tap0".into()),
            ),
            (passt(""), "", NetBackend::Passt(None)),
            (passt("/run/passt"), "", socket),
        ] {
            let asked = with_network(backend, mac);
            let [network] = devices(Some(&asked)).unwrap().networks.try_into().unwrap();
            assert_eq!(network.backend, expected);
            assert_eq!(network.limit.operations, NonZeroU64::new(9));
            assert_eq!(network.limit.bytes, None);
            let told = network.mac.map(|mac| mac.to_string()).unwrap_or_default();
            assert_eq!(told, mac);
        }
    }

    #[test]
    fn a_share_s_mode_says_whether_it_can_be_changed() {
        for (mode, expected) in [
            (0, ShareMode::ReadOnly),
            (1, ShareMode::ReadOnly),
            (2, ShareMode::ReadWrite),
        ] {
            let asked = with_share(shared("/f", mode));
            assert_eq!(devices(Some(&asked)).unwrap().shares[0].mode, expected);
        }
    }

    #[test]
    fn a_device_that_is_wrong_is_named_by_its_field() {
        for (asked, field) in [
            (with_disk("", 0), "devices.disks[1].path"),
            (with_disk("/second", 7), "devices.disks[1].format"),
            (with_network(None, ""), "devices.networks[0].backend"),
            (with_network(tap(""), ""), "devices.networks[0].tap.name"),
            (with_network(tap("t"), "02:0"), "devices.networks[0].mac"),
            (with_share(shared("", 0)), "devices.shares[0].path"),
            (with_share(shared("/f", 9)), "devices.shares[0].mode"),
        ] {
            let status = devices(Some(&asked)).unwrap_err();
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, field);
        }
    }

    #[test]
    fn a_console_has_a_size_where_both_sides_are_known() {
        let with_console = |columns, rows| v1::Devices {
            console: Some(v1::VirtioConsole { columns, rows }),
            ..Default::default()
        };
        let size = |columns, rows| Some(ConsoleSize { columns, rows });
        for (columns, rows, size) in [
            (80, 25, size(80, 25)),
            (65535, 1, size(65535, 1)),
            (80, 0, None),
            (0, 0, None),
        ] {
            let devices = devices(Some(&with_console(columns, rows))).unwrap();
            assert_eq!(devices.console, Some(VirtioConsole { size }));
        }
        for (columns, rows, field) in [(65536, 1, "columns"), (1, u32::MAX, "rows")] {
            let status = devices(Some(&with_console(columns, rows))).unwrap_err();
            let details = status.get_details_bad_request().unwrap();
            let field = format!("devices.console.{field}");
            assert_eq!(details.field_violations[0].field, field);
        }
    }

    #[test]
    fn a_socket_device_has_cid_3_unless_another_is_named() {
        for (asked, cid) in [(0, 3), (77, 77)] {
            let devices = devices(Some(&with_vsock("/vsock", asked))).unwrap();
            let path = "/vsock".into();
            assert_eq!(devices.vsock, Some(Vsock { path, cid }));
        }
        let status = devices(Some(&with_vsock("", 0))).unwrap_err();
        let details = status.get_details_bad_request().unwrap();
        assert_eq!(details.field_violations[0].field, "devices.vsock.path");
    }

    #[test]
    fn no_devices_are_none() {
        assert!(devices(None).unwrap().is_empty());
        assert!(devices(Some(&v1::Devices::default())).unwrap().is_empty());
    }
}
