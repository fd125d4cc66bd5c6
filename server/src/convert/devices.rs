//! The devices of a guest.

use std::path::PathBuf;

use tonic::Status;
use vmm::{Devices, Disk, DiskFormat};
use vmprobe_proto::v1;

use crate::status;

/// The monitor's form of the devices that a request asks for.
///
/// # Errors
/// `INVALID_ARGUMENT` that names the field.
pub fn devices(asked: Option<&v1::Devices>) -> Result<Devices, Status> {
    let Some(asked) = asked else {
        return Ok(Devices::default());
    };
    let disks = asked.disks.iter().enumerate();
    let disks = disks.map(|(index, asked)| {
        disk(asked)
            .map_err(|(field, why)| status::invalid(format!("devices.disks[{index}].{field}"), why))
    });
    Ok(Devices {
        disks: disks.collect::<Result<_, _>>()?,
        entropy: asked.entropy,
    })
}

fn disk(asked: &v1::Disk) -> Result<Disk, (&'static str, String)> {
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
        };
        let expected = [
            disk("/first", None, false),
            disk("/second", Some(DiskFormat::Qcow2), true),
        ];
        assert_eq!(devices.disks, expected);
    }

    #[test]
    fn a_disk_that_is_wrong_is_named_by_its_field() {
        for (asked, field) in [
            (with_disk("", 0), "devices.disks[1].path"),
            (with_disk("/second", 7), "devices.disks[1].format"),
        ] {
            let status = devices(Some(&asked)).unwrap_err();
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, field);
        }
    }

    #[test]
    fn no_devices_are_none() {
        assert!(devices(None).unwrap().is_empty());
        assert!(devices(Some(&v1::Devices::default())).unwrap().is_empty());
    }
}
