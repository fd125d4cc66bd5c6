//! The files that a VM's process may open for its request.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tonic::{Code, Status};
use vmm::HostPath;
use vmm::confinement::Access;

use super::beneath::{self, NotBeneath};
use super::{Folders, IMAGE, copy};
use crate::status::{self, Precondition};

/// How the guest uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The guest reads it.
    Read,
    /// The guest changes it.
    Write,
}

impl Use {
    fn is_write(self) -> bool {
        self == Self::Write
    }
}

/// An image, by its name in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedImage {
    /// The text behind `image:` in the request.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
}

/// The text isn't NAME=FILE.
#[derive(Debug, thiserror::Error)]
#[error("an image is NAME=FILE")]
pub struct NoImage;

impl FromStr for GrantedImage {
    type Err = NoImage;

    fn from_str(text: &str) -> Result<Self, NoImage> {
        let (name, file) = text.split_once('=').ok_or(NoImage)?;
        Ok(Self {
            name: name.to_owned(),
            file: file.into(),
        })
    }
}

/// What the process of a VM may open.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct GrantedFiles {
    /// The request may name any file
    #[arg(long)]
    pub any_file: bool,
    /// A folder below which the request may name files
    #[arg(long, value_name = "FOLDER")]
    pub files: Vec<PathBuf>,
    /// A folder below which the request may name files that the guest changes
    #[arg(long, value_name = "FOLDER")]
    pub writable_files: Vec<PathBuf>,
    /// An image that the request names
    #[arg(long = "image", value_name = "NAME=FILE")]
    pub images: Vec<GrantedImage>,
    /// Where private copies of images are made
    #[arg(long, value_name = "FOLDER")]
    pub copies: Option<PathBuf>,
}

impl GrantedFiles {
    /// Grants any file.
    pub fn any() -> Self {
        Self {
            any_file: true,
            ..Self::default()
        }
    }

    /// Grants the files below folders.
    pub fn below(folders: &Folders) -> Self {
        Self {
            files: folders.read.clone(),
            writable_files: folders.write.clone(),
            ..Self::default()
        }
    }

    /// Returns it as words of a command line.
    pub fn to_command_line(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if self.any_file {
            words.push("--any-file".into());
        }
        for (option, paths) in [
            ("--files", &*self.files),
            ("--writable-files", &*self.writable_files),
            ("--copies", self.copies.as_slice()),
        ] {
            for path in paths {
                words.extend([option.into(), path.into()]);
            }
        }
        for GrantedImage { name, file } in &self.images {
            let mut image = OsString::from(format!("{name}="));
            image.push(file);
            words.extend(["--image".into(), image]);
        }
        words
    }

    fn folders(&self) -> Folders {
        Folders {
            read: self.files.clone(),
            write: self.writable_files.clone(),
        }
    }

    /// Returns a file that is read as it is: a kernel, an initramfs, symbols.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` if the request may not name it, whether it exists or not.
    pub fn file(&self, field: &str, path: &str) -> Result<HostPath, Status> {
        match self.image(field, path)? {
            Some(image) => hold(field, path, &image),
            None => self.found(field, path, Use::Read, HostPath::of_file),
        }
    }

    /// Returns a disk. An image that the guest writes to becomes a private copy.
    ///
    /// # Errors
    /// As for [`file`](Self::file); `RESOURCE_EXHAUSTED` if there is no room for a copy.
    pub fn disk(&self, field: &str, path: &str, wanted: Use) -> Result<HostPath, Status> {
        match (self.image(field, path)?, wanted) {
            (Some(image), Use::Read) => hold(field, path, &image),
            (Some(image), Use::Write) => self.copy(field, path, &image),
            (None, _) => self.found(field, path, wanted, HostPath::of_file),
        }
    }

    /// Returns a folder.
    ///
    /// # Errors
    /// As for [`file`](Self::file).
    pub fn folder(&self, field: &str, path: &str, wanted: Use) -> Result<HostPath, Status> {
        self.found(field, path, wanted, HostPath::of_folder)
    }

    /// Returns a socket that exists.
    ///
    /// # Errors
    /// As for [`file`](Self::file).
    pub fn socket(&self, field: &str, path: &str) -> Result<HostPath, Status> {
        self.found(field, path, Use::Write, HostPath::of_file)
    }

    /// Returns the path of a socket that is to be made.
    ///
    /// # Errors
    /// As for [`file`](Self::file).
    pub fn new_socket(&self, field: &str, path: &str) -> Result<HostPath, Status> {
        if self.any_file {
            return Ok(path.into());
        }
        let wanted = Path::new(path);
        let (Some(parent), Some(name)) = (wanted.parent(), wanted.file_name()) else {
            return Err(self.refusal(field, path, Use::Write));
        };
        let within = |path: &str, folder| HostPath::within(path, folder, name);
        self.beneath(field, path, parent, Use::Write, OFlags::DIRECTORY, within)
    }

    /// Returns the access that the process keeps once it is confined, for the folders that its
    /// request names.
    pub fn access(
        &self,
        read: &[PathBuf],
        write: &[PathBuf],
        sockets: &[PathBuf],
    ) -> (Access, Vec<HostPath>) {
        let mut held = Vec::new();
        let mut found = |paths: &[PathBuf], wanted| {
            let mut found = Vec::new();
            for path in paths.iter().filter_map(|path| path.to_str()) {
                // A folder that may not be named is refused with the request.
                if let Ok(folder) = self.folder("", path, wanted) {
                    found.push(folder.path().to_owned());
                    held.push(folder);
                }
            }
            found
        };
        let access = Access {
            read: found(read, Use::Read),
            write: found(write, Use::Write),
            sockets: found(sockets, Use::Write),
        };
        (access, held)
    }

    fn found<'p>(
        &self,
        field: &str,
        path: &'p str,
        wanted: Use,
        hold: impl FnOnce(&'p str, OwnedFd) -> HostPath,
    ) -> Result<HostPath, Status> {
        if self.any_file {
            return Ok(path.into());
        }
        let flags = OFlags::empty();
        self.beneath(field, path, Path::new(path), wanted, flags, hold)
    }

    /// Opens what `wanted` leads to below one of the folders. `path` is the path as the request has
    /// it.
    fn beneath<'p>(
        &self,
        field: &str,
        path: &'p str,
        place: &Path,
        wanted: Use,
        flags: OFlags,
        hold: impl FnOnce(&'p str, OwnedFd) -> HostPath,
    ) -> Result<HostPath, Status> {
        let folders = self.folders();
        let (folder, rest) = folders
            .above(place, wanted.is_write())
            .ok_or_else(|| self.refusal(field, path, wanted))?;
        let folder = beneath::folder(folder).map_err(|error| {
            let folder = folder.display();
            let why = format!(
                "the folder {folder}, whose files clients may name, can't be opened: {}",
                io::Error::from(error)
            );
            status::precondition(Precondition::Host, "--files", why)
        })?;
        let found = beneath::find(&folder, rest, flags).map_err(|error| match error {
            NotBeneath::Outside => self.refusal(field, path, wanted),
            NotBeneath::Unsupported => status::precondition(
                Precondition::Host,
                "openat2",
                "files below a folder take a host with Linux 5.6 or newer (openat2)",
            ),
            NotBeneath::Failed(error) => {
                let error = io::Error::from(error);
                status::invalid(field, format!("{path} can't be opened: {error}"))
            }
        })?;
        Ok(hold(path, found))
    }

    /// Returns a refusal with the same words whether the file exists or not.
    fn refusal(&self, field: &str, path: &str, wanted: Use) -> Status {
        let folders = self.folders().describe(wanted.is_write());
        let to = match wanted {
            Use::Read => "",
            Use::Write => " for guests to change",
        };
        let message = match folders.is_empty() {
            true => format!(
                "clients of this server may name no files of its host{to}, such as {path}: hand it over as an image \
                 (`vmprobe image push`), or have vmprobed started with --files, or --writable-files for what guests \
                 change"
            ),
            false => format!(
                "clients of this server may name files of its host{to} below {folders}, and {path} isn't, or leads \
                 elsewhere by a link: name one of those, or hand it over as an image (`vmprobe image push`)"
            ),
        };
        status::with_field(Code::PermissionDenied, field, message)
    }

    /// Returns the file of an image, if the path names one.
    fn image(&self, field: &str, path: &str) -> Result<Option<PathBuf>, Status> {
        let Some(name) = path.strip_prefix(IMAGE) else {
            return Ok(None);
        };
        let mut images = self.images.iter();
        let found = images.find(|image| image.name == name);
        let missing = || {
            let message = format!("this VM was given no image called `{name}`");
            status::with_field(Code::NotFound, field, message)
        };
        Ok(Some(found.ok_or_else(missing)?.file.clone()))
    }

    fn copy(&self, field: &str, path: &str, image: &Path) -> Result<HostPath, Status> {
        let Some(folder) = &self.copies else {
            let message = format!("there is no folder for a private copy of {path}");
            return Err(Status::internal(message));
        };
        let copied = copy::private(image, folder).map_err(|error| {
            let message = format!("{path} can't be copied for the guest to change: {error}");
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    status::exhausted_by(field, "host disk", message)
                }
                _ => status::with_field(Code::Internal, field, message),
            }
        })?;
        Ok(HostPath::of_file(path, copied.into()))
    }
}

fn hold(field: &str, path: &str, file: &Path) -> Result<HostPath, Status> {
    let held = openat(CWD, file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let held = held.map_err(|error| {
        let error = io::Error::from(error);
        status::with_field(
            Code::Internal,
            field,
            format!("{path} can't be opened: {error}"),
        )
    })?;
    Ok(HostPath::of_file(path, held))
}

#[cfg(test)]
mod tests;
