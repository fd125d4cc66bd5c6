//! The devices of a guest.

use std::path::PathBuf;

use tonic::Status;
use vmm::{Devices, Disk, DiskFormat, RateLimit, Share, ShareMode, Vsock};
use vmprobe_proto::v1;

use crate::status;

/// The CID of a guest for which the request names none. Those below are reserved.
const DEFAULT_CID: u32 = 3;

/// The monitor's form of the devices that a request asks for.
///
/// # Errors
/// `INVALID_ARGUMENT` that names the field.
pub fn devices(asked: Option<&v1::Devices>) -> Result<Devices, Status> {
    let Some(asked) = asked else {
        return Ok(Devices::default());
    };
    Ok(Devices {
        disks: each("disks", &asked.disks, disk)?,
        shares: each("shares", &asked.shares, share)?,
        networks: Vec::new(),
        entropy: asked.entropy,
        vsock: asked.vsock.as_ref().map(vsock).transpose()?,
    })
}

fn vsock(asked: &v1::Vsock) -> Result<Vsock, Status> {
    if asked.path.is_empty() {
        let why = "the path of the socket device's Unix socket is missing";
        return Err(status::invalid("devices.vsock.path", why));
    }
    let cid = match asked.cid {
        0 => DEFAULT_CID,
        cid => cid,
    };
    let path = PathBuf::from(&asked.path);
    Ok(Vsock { path, cid })
}

/// A field that is wrong, and why.
type WrongField = (&'static str, String);

/// The monitor's form of the devices in the field `list`.
fn each<A, D>(
    list: &str,
    asked: &[A],
    convert: impl Fn(&A) -> Result<D, WrongField>,
) -> Result<Vec<D>, Status> {
    let converted = asked.iter().enumerate().map(|(index, asked)| {
        convert(asked).map_err(|(field, why)| {
            status::invalid(format!("devices.{list}[{index}].{field}"), why)
        })
    });
    converted.collect()
}

fn disk(asked: &v1::Disk) -> Result<Disk, WrongField> {
    if asked.path.is_empty() {
        return Err(("path", "the path of a disk's file is missing".to_owned()));
    }
    let format = match v1::DiskFormat::try_from(asked.format) {
        Ok(v1::DiskFormat::Unspecified) => None,
        Ok(v1::DiskFormat::Raw) => Some(DiskFormat::Raw),
        Ok(v1::DiskFormat::Qcow2) => Some(DiskFormat::Qcow2),
        Err(_) => {
            let why = format!("format {} is unknown to this server", asked.format);
            return Err(("format", why));
        }
    };
    Ok(Disk {
        path: PathBuf::from(&asked.path),
        format,
        read_only: asked.read_only,
        limit: RateLimit::default(),
    })
}

fn share(asked: &v1::Share) -> Result<Share, WrongField> {
    if asked.path.is_empty() {
        return Err(("path", "the path of a share's folder is missing".to_owned()));
    }
    let mode = match v1::ShareMode::try_from(asked.mode) {
        Ok(v1::ShareMode::Unspecified | v1::ShareMode::ReadOnly) => ShareMode::ReadOnly,
        Ok(v1::ShareMode::ReadWrite) => ShareMode::ReadWrite,
        Err(_) => {
            let why = format!("mode {} is unknown to this server", asked.mode);
            return Err(("mode", why));
        }
    };
    Ok(Share {
        tag: asked.tag.clone(),
        path: PathBuf::from(&asked.path),
        mode,
    })
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

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
                },
            ],
            entropy: true,
            ..Default::default()
        }
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
        let disk = |path: &str, format, read_only| Disk {
            path: path.into(),
            format,
            read_only,
            limit: RateLimit::default(),
        };
        let expected = [
            disk("/first", None, false),
            disk("/second", Some(DiskFormat::Qcow2), true),
        ];
        assert_eq!(devices.disks, expected);
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
            (with_share(shared("", 0)), "devices.shares[0].path"),
            (with_share(shared("/f", 9)), "devices.shares[0].mode"),
        ] {
            let status = devices(Some(&asked)).unwrap_err();
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, field);
        }
    }

    #[test]
    fn a_socket_device_has_cid_3_unless_another_is_named() {
        for (asked, cid) in [(0, 3), (77, 77)] {
            let devices = devices(Some(&with_vsock("/vsock", asked))).unwrap();
            let path = PathBuf::from("/vsock");
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
