//! The folder with all images of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Formatter};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::process::geteuid;
use tempfile::NamedTempFile;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::Most;
use super::index::{self, Entry, Images};
use super::name::{self, Reference};
use super::room::{Reserved, Room};
use super::upload::{Begin, Complete, Upload};
use super::{Digest, ImageError, OpenError};
use crate::access::Account;
use crate::limits::Limits;

/// Permissions of the folders.
const FOLDER: u32 = 0o700;
/// Permission bits that the folders must not have.
const OTHERS_WRITE: u32 = 0o022;

/// All images of a server.
pub struct ImageStore {
    folder: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    /// Increased only while the state is locked.
    reserved: Reserved,
    uploads: Arc<Semaphore>,
    /// Keeps the folder locked.
    _lock: File,
}

#[derive(Default)]
struct State {
    images: Images,
    /// The VMs that use an image, each once for each use.
    uses: BTreeMap<(Account, Digest), Vec<String>>,
}

/// The description of an image that its client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptImage {
    pub owner: Account,
    pub digest: Digest,
    pub size: u64,
    pub names: Vec<String>,
    /// Seconds since 1970-01-01 UTC.
    pub uploaded_at: u64,
    /// The VMs that use it.
    pub vms: Vec<String>,
}

/// The result of beginning an upload.
#[derive(Debug)]
pub enum Begun {
    /// The account already has this content.
    There(KeptImage),
    /// The content has to be sent.
    Upload(Box<Upload>),
}

/// An image that a VM uses, until this is dropped.
pub struct ImageUse {
    store: Arc<ImageStore>,
    image: (Account, Digest),
    vm: String,
}

impl Debug for ImageStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageStore")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Debug for ImageUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageUse")
            .field("vm", &self.vm)
            .finish_non_exhaustive()
    }
}

impl Drop for ImageUse {
    fn drop(&mut self) {
        let mut state = self.store.state.lock();
        if let Some(vms) = state.uses.get_mut(&self.image) {
            let at = vms.iter().position(|vm| *vm == self.vm);
            at.map(|at| vms.swap_remove(at));
            if vms.is_empty() {
                state.uses.remove(&self.image);
            }
        }
    }
}

impl ImageStore {
    /// Opens a folder, makes it if it doesn't exist, and removes what remains of uploads that a crash has cut off.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(folder: &Path, limits: &Limits) -> Result<Arc<Self>, OpenError> {
        let failed = |cause| OpenError::Io {
            folder: folder.to_owned(),
            cause,
        };
        let lock = lock(folder)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let store = Self {
            state: Mutex::new(State {
                images: index::read(&folder)?,
                ..State::default()
            }),
            folder,
            reserved: Reserved::default(),
            limits: *limits,
            uploads: Arc::new(Semaphore::new(limits.uploads.min(Semaphore::MAX_PERMITS))),
            _lock: lock,
        };
        store.clear_up().map_err(failed)?;
        Ok(Arc::new(store))
    }

    /// Removes files that belong to no image, and images whose bytes are missing.
    fn clear_up(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.unfinished())? {
            fs::remove_file(entry?.path())?;
        }
        let mut state = self.state.lock();
        state.images.retain(|(_, digest), entry| {
            let found = fs::metadata(self.content(*digest));
            let is_there = found.is_ok_and(|found| found.len() == entry.size);
            if !is_there {
                tracing::error!("the image {digest} has lost its content, and is forgotten");
            }
            is_there
        });
        let digests: BTreeSet<String> = state
            .images
            .keys()
            .map(|(_, digest)| digest.to_string())
            .collect();
        for entry in fs::read_dir(self.folder.join("content"))? {
            let entry = entry?;
            if !entry
                .file_name()
                .to_str()
                .is_some_and(|name| digests.contains(name))
            {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the folder of files that aren't complete.
    pub fn unfinished(&self) -> PathBuf {
        self.folder.join("unfinished")
    }

    /// Returns the path of the file with an image's bytes.
    pub fn content(&self, digest: Digest) -> PathBuf {
        self.folder.join("content").join(digest.to_string())
    }

    /// Takes a place among the uploads.
    ///
    /// # Errors
    /// [`ImageError::Uploads`].
    pub fn upload_place(&self) -> Result<OwnedSemaphorePermit, ImageError> {
        let place = Arc::clone(&self.uploads).try_acquire_owned();
        place.map_err(|_| ImageError::Uploads(self.limits.uploads))
    }

    /// Begins an upload. Blocks.
    ///
    /// # Errors
    /// The name or the size is wrong, or a limit is reached.
    pub fn begin(
        self: &Arc<Self>,
        account: &Account,
        wanted: Begin,
        place: OwnedSemaphorePermit,
    ) -> Result<Begun, ImageError> {
        if !wanted.name.is_empty() && !name::is_name(&wanted.name) {
            return Err(ImageError::Name);
        }
        if wanted.size == 0 {
            return Err(ImageError::Empty);
        }
        let mut state = self.state.lock();
        let image = (account.clone(), wanted.digest);
        if let Some(found) = state.images.get(&image) {
            if found.size != wanted.size {
                return Err(ImageError::Short {
                    found: found.size,
                    announced: wanted.size,
                });
            }
            let mut images = state.images.clone();
            give_name(&mut images, &image, &wanted.name);
            self.commit(&mut state, images)?;
            return Ok(Begun::There(state.describe(&image)));
        }
        let (limit, size) = (self.limits.image_mib, wanted.size);
        if size > mib(limit) {
            return Err(ImageError::TooLarge { size, limit });
        }
        self.check_count(&state)?;
        let room = self.reserve(&state, account, size)?;
        drop(state);
        let upload = Upload::new(&self.unfinished(), account, wanted, room, place)?;
        Ok(Begun::Upload(Box::new(upload)))
    }

    /// Sets space aside for a private copy of this many bytes.
    ///
    /// # Errors
    /// [`ImageError::Full`].
    pub fn room(&self, account: &Account, bytes: u64) -> Result<Room, ImageError> {
        self.reserve(&self.state.lock(), account, bytes)
    }

    fn reserve(&self, state: &State, account: &Account, bytes: u64) -> Result<Room, ImageError> {
        let (limits, reserved) = (&self.limits, &self.reserved);
        let of_account = state.taken_by(account).saturating_add(reserved.of(account));
        let of_all = state.taken().saturating_add(reserved.all());
        for (most, limit, taken) in [
            (Most::Client, limits.client_images_mib, of_account),
            (Most::All, limits.images_mib, of_all),
        ] {
            if taken.saturating_add(bytes) > mib(limit) {
                return Err(ImageError::Full {
                    most,
                    wanted: bytes,
                    taken,
                    limit,
                });
            }
        }
        Ok(reserved.take(account, bytes))
    }

    fn check_count(&self, state: &State) -> Result<(), ImageError> {
        let (count, most) = (state.images.len(), self.limits.image_count);
        match count < most {
            true => Ok(()),
            false => Err(ImageError::TooMany(count)),
        }
    }

    /// Keeps the image of an upload permanently. Blocks.
    ///
    /// # Errors
    /// The content isn't what was announced, or can't be written.
    pub fn keep(&self, upload: Upload) -> Result<KeptImage, ImageError> {
        let Complete {
            account,
            wanted,
            file,
            room,
        } = upload.complete()?;
        let kept = self.give_place(&account, &wanted, file);
        // The reserved space is freed only now, as the image itself counts from now on.
        drop(room);
        kept
    }

    fn give_place(
        &self,
        account: &Account,
        wanted: &Begin,
        file: NamedTempFile,
    ) -> Result<KeptImage, ImageError> {
        let mut state = self.state.lock();
        let image = (account.clone(), wanted.digest);
        let is_new = !state.has(wanted.digest);
        if !state.images.contains_key(&image) {
            self.check_count(&state)?;
        }
        if is_new {
            let path = self.content(wanted.digest);
            file.persist(&path).map_err(|error| error.error)?;
            index::sync_folder(&self.folder.join("content"))?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut images = state.images.clone();
        images.entry(image.clone()).or_insert(Entry {
            size: wanted.size,
            names: BTreeSet::new(),
            uploaded_at: now.map_or(0, |now| now.as_secs()),
        });
        give_name(&mut images, &image, &wanted.name);
        if let Err(error) = self.commit(&mut state, images) {
            if is_new {
                self.remove_content(wanted.digest);
            }
            return Err(error);
        }
        Ok(state.describe(&image))
    }

    /// Makes `images` the present ones, also after a crash.
    fn commit(&self, state: &mut State, images: Images) -> Result<(), ImageError> {
        if state.images != images {
            index::write(&self.folder, &self.unfinished(), &images)?;
            state.images = images;
        }
        Ok(())
    }

    fn remove_content(&self, digest: Digest) {
        if let Err(error) = fs::remove_file(self.content(digest)) {
            tracing::error!(
                "the content of the image {digest} stays until the next start: {error}"
            );
        }
    }

    /// Returns all images of an account, by their digests.
    pub fn list(&self, account: &Account) -> Vec<KeptImage> {
        let state = self.state.lock();
        let images = state.images.keys().filter(|(owner, _)| owner == account);
        images.map(|image| state.describe(image)).collect()
    }

    /// Returns all images of all accounts.
    pub fn list_all(&self) -> Vec<KeptImage> {
        let state = self.state.lock();
        let images = state.images.keys();
        images.map(|image| state.describe(image)).collect()
    }

    /// Returns one of an account's images.
    ///
    /// # Errors
    /// The account has no image of that name.
    pub fn find(&self, account: &Account, text: &str) -> Result<KeptImage, ImageError> {
        let state = self.state.lock();
        let image = state.find(account, text)?;
        Ok(state.describe(&image))
    }

    /// Holds an image for a VM, so that it can't be deleted.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn hold(
        self: &Arc<Self>,
        account: &Account,
        text: &str,
        vm: &str,
    ) -> Result<(KeptImage, ImageUse), ImageError> {
        let mut state = self.state.lock();
        let image = state.find(account, text)?;
        let found = state.describe(&image);
        state
            .uses
            .entry(image.clone())
            .or_default()
            .push(vm.to_owned());
        let held = ImageUse {
            store: Arc::clone(self),
            image,
            vm: vm.to_owned(),
        };
        Ok((found, held))
    }

    /// Deletes one of an account's images. Blocks.
    ///
    /// # Errors
    /// The account has no image of that name, or a VM uses it.
    pub fn delete(&self, account: &Account, text: &str) -> Result<(), ImageError> {
        let mut state = self.state.lock();
        let image = state.find(account, text)?;
        let vms = state.describe(&image).vms;
        if !vms.is_empty() {
            return Err(ImageError::InUse(vms));
        }
        let mut images = state.images.clone();
        images.remove(&image);
        self.commit(&mut state, images)?;
        if !state.has(image.1) {
            self.remove_content(image.1);
        }
        Ok(())
    }
}

impl State {
    fn has(&self, digest: Digest) -> bool {
        self.images.keys().any(|(_, there)| *there == digest)
    }

    /// Returns the bytes of an account's images, each in full.
    fn taken_by(&self, account: &Account) -> u64 {
        let images = self.images.iter();
        let images = images.filter(|((owner, _), _)| owner == account);
        images
            .map(|(_, entry)| entry.size)
            .fold(0, u64::saturating_add)
    }

    /// Returns the bytes of all images. A content that several accounts have counts once.
    fn taken(&self) -> u64 {
        let images = self.images.iter();
        let contents = images.map(|((_, digest), entry)| (*digest, entry.size));
        let contents: BTreeMap<_, _> = contents.collect();
        contents.into_values().fold(0, u64::saturating_add)
    }

    fn find(&self, account: &Account, text: &str) -> Result<(Account, Digest), ImageError> {
        let found = match Reference::parse(text)? {
            Reference::Digest(digest) => {
                Some((account.clone(), digest)).filter(|image| self.images.contains_key(image))
            }
            Reference::Name(name) => self
                .images
                .iter()
                .find(|((owner, _), entry)| owner == account && entry.names.contains(&name))
                .map(|(image, _)| image.clone()),
        };
        found.ok_or_else(|| ImageError::Missing(text.to_owned()))
    }

    fn describe(&self, image: &(Account, Digest)) -> KeptImage {
        let entry = self.images.get(image);
        let vms: BTreeSet<_> = self
            .uses
            .get(image)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        KeptImage {
            owner: image.0.clone(),
            digest: image.1,
            size: entry.map_or(0, |entry| entry.size),
            names: entry.map_or_else(Vec::new, |entry| entry.names.iter().cloned().collect()),
            uploaded_at: entry.map_or(0, |entry| entry.uploaded_at),
            vms: vms.into_iter().collect(),
        }
    }
}

/// Gives an image a name, and takes the name from the account's other images.
fn give_name(images: &mut Images, image: &(Account, Digest), name: &str) {
    if name.is_empty() {
        return;
    }
    for ((account, _), entry) in images.iter_mut() {
        if *account == image.0 {
            entry.names.remove(name);
        }
    }
    if let Some(entry) = images.get_mut(image) {
        entry.names.insert(name.to_owned());
    }
}

/// Returns a number of MiB in bytes.
fn mib(mib: u64) -> u64 {
    mib.saturating_mul(1 << 20)
}

/// Makes a folder and its contents, and locks it.
fn lock(folder: &Path) -> Result<File, OpenError> {
    let failed = |cause| OpenError::Io {
        folder: folder.to_owned(),
        cause,
    };
    for made in [folder, &folder.join("content"), &folder.join("unfinished")] {
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(FOLDER)
            .create(made)
            .map_err(failed)?;
        let found = fs::metadata(made).map_err(failed)?;
        if found.uid() != geteuid().as_raw() || found.mode() & OTHERS_WRITE != 0 {
            return Err(OpenError::Others(made.to_owned()));
        }
    }
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(0o600);
    let lock = lock.open(folder.join("lock")).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(folder.to_owned())),
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::WouldBlock => {
            Err(OpenError::InUse(folder.to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
