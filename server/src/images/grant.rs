//! The images that a request for a VM names.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::room::Room;
use super::store::ImageUse;
use super::{ImageError, ImageStore};
use crate::access::Account;
use crate::files::{GrantedFiles, GrantedImage, IMAGE};
use crate::refusal::without_field;
use crate::status;

/// A qcow2 image's first bytes, and where its header has the disk's size (QEMU's `docs/interop/qcow2.txt`).
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
const QCOW2_SIZE_AT: usize = 24;
/// The largest part of the disk's size that tables of a qcow2 image take, as a divisor, with clusters of 512 bytes: 8
/// bytes for each cluster in one table and 8 in the other, and some for the tables themselves.
const QCOW2_TABLES: u64 = 16;

/// A VM's hold of its images, until this is dropped.
#[derive(Debug, Default)]
pub struct HeldImages {
    _uses: Vec<ImageUse>,
    _copies: Vec<Room>,
}

/// A place in a request that names an image.
struct Named<'r> {
    field: String,
    name: &'r str,
    /// The disk's format, if it's a disk that the guest writes to.
    copied_as: Option<v1::DiskFormat>,
}

/// Adds the images that a request names to the files that its VM's process may open. Blocks.
///
/// # Errors
/// `NOT_FOUND` if the account has no such image, `RESOURCE_EXHAUSTED` if there is no room for private copies. Each has
/// the field's name.
pub fn grant(
    store: Option<&Arc<ImageStore>>,
    account: &Account,
    request: &v1::CreateVmRequest,
    granted: &mut GrantedFiles,
) -> Result<HeldImages, Status> {
    let mut held = HeldImages::default();
    for Named {
        field,
        name,
        copied_as,
    } in named(request)
    {
        let failed = |error: ImageError| image_status(&error, Some(&field));
        let store = store.ok_or_else(|| failed(ImageError::None))?;
        let (image, image_use) = store.hold(account, name, &request.name).map_err(failed)?;
        held._uses.push(image_use);
        let file = store.content(image.digest);
        if let Some(format) = copied_as {
            let most = copy_len(&file, image.size, format);
            let most = most.map_err(|error| failed(error.into()))?;
            held._copies
                .push(store.room(account, most).map_err(failed)?);
            granted.copies = Some(store.unfinished());
        }
        let image = GrantedImage {
            name: name.to_owned(),
            file,
        };
        if !granted.images.contains(&image) {
            granted.images.push(image);
        }
    }
    Ok(held)
}

fn named(request: &v1::CreateVmRequest) -> Vec<Named<'_>> {
    let files = [
        ("kernel", &request.kernel),
        ("initramfs", &request.initramfs),
        ("symbols", &request.symbols),
    ];
    let files = files.map(|(field, path)| (field.to_owned(), path, None));
    let disks = request.devices.iter().flat_map(|devices| &devices.disks);
    let disks = disks.enumerate().map(|(index, disk)| {
        let format = (!disk.read_only).then_some(disk.format());
        (format!("devices.disks[{index}].path"), &disk.path, format)
    });
    let all = files.into_iter().chain(disks);
    let images = all.filter_map(|(field, path, copied_as)| {
        let name = path.strip_prefix(IMAGE)?;
        Some(Named {
            field,
            name,
            copied_as,
        })
    });
    images.collect()
}

/// Returns the most bytes that a copy can have, whatever the guest writes. For a qcow2 image: its present size, the
/// whole size of its disk, and tables.
fn copy_len(file: &Path, len: u64, format: v1::DiskFormat) -> io::Result<u64> {
    if format != v1::DiskFormat::Qcow2 {
        return Ok(len);
    }
    let mut header = [0; QCOW2_SIZE_AT + 8];
    match File::open(file)?.read_exact_at(&mut header, 0) {
        Ok(()) => {}
        // The VM's process reports that it's no qcow2 image.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(len),
        Err(error) => return Err(error),
    }
    let (rest, size) = header.split_at(QCOW2_SIZE_AT);
    let size = match (rest.starts_with(&QCOW2_MAGIC), size.try_into()) {
        (true, Ok(size)) => u64::from_be_bytes(size),
        _ => 0,
    };
    Ok(len.saturating_add(size).saturating_add(size / QCOW2_TABLES))
}

impl From<ImageError> for Status {
    fn from(error: ImageError) -> Self {
        image_status(&error, None)
    }
}

/// Returns an error in gRPC's form. `field` is the field of the request that caused it.
pub(super) fn image_status(error: &ImageError, field: Option<&str>) -> Status {
    use ImageError as E;
    let code = match error {
        E::Missing(_) => Code::NotFound,
        E::None | E::InUse(_) => Code::FailedPrecondition,
        E::Full { .. } | E::TooLarge { .. } | E::TooMany(_) | E::Uploads(_) | E::DiskFull(_) => {
            Code::ResourceExhausted
        }
        E::Idle(_) => Code::Aborted,
        E::Io(_) => Code::Internal,
        E::Name
        | E::Reference(_)
        | E::Digest(_)
        | E::Empty
        | E::Part
        | E::Order
        | E::Long { .. }
        | E::Short { .. }
        | E::Content { .. } => Code::InvalidArgument,
    };
    let field = field.or(match error {
        E::Name => Some("begin.name"),
        E::Empty | E::Long { .. } | E::Short { .. } | E::Full { .. } | E::TooLarge { .. } => {
            Some("begin.size")
        }
        E::Digest(_) | E::Content { .. } => Some("begin.sha256"),
        E::Part | E::Order => Some("part"),
        E::Reference(_) | E::Missing(_) => Some("image"),
        _ => None,
    });
    let why = error.to_string();
    match (field, error.limit()) {
        (Some(field), Some(limit)) => status::exhausted_by(field, limit, why),
        (None, Some(limit)) => status::exhausted(limit, why),
        (Some(field), None) => status::with_field(code, field, why),
        (None, None) => without_field(code, why),
    }
}
