//! What a guest may do with a file system, and as whom.

use std::{ffi::CStr, io, time::Duration};

use fuse_backend_rs::{
    abi::fuse_abi::{CreateIn, FsOptions, OpenOptions, SetattrValid, stat64, statvfs64},
    api::filesystem::{
        Context, DirEntry, Entry, FileSystem, GetxattrReply, ListxattrReply, ZeroCopyReader,
        ZeroCopyWriter,
    },
};

/// A file system as a guest sees it: all of its functions, but those that change something only if it may.
pub(super) struct View<F> {
    pub(super) files: F,
    pub(super) is_writable: bool,
    /// True if the host sees this process' own user, whatever the user in the guest: this process isn't root
    /// and can't become another user.
    pub(super) as_own_user: bool,
}

impl<F> View<F> {
    fn may_change(&self) -> io::Result<()> {
        if self.is_writable {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EROFS))
        }
    }
}

/// Hands functions on to the file system: those behind `look` always, those behind `change` if the guest may
/// change something.
macro_rules! hand_on {
    (look: $(fn $look:ident($($look_arg:ident: $look_type:ty),*) -> $look_ret:ty;)*
     change: $(fn $change:ident($($change_arg:ident: $change_type:ty),*) -> $change_ret:ty;)*) => {
        $(fn $look(&self, $($look_arg: $look_type),*) -> $look_ret {
            self.files.$look($($look_arg),*)
        })*
        $(fn $change(&self, $($change_arg: $change_type),*) -> $change_ret {
            self.may_change()?;
            self.files.$change($($change_arg),*)
        })*
    };
}

impl<F: FileSystem> FileSystem for View<F> {
    type Inode = F::Inode;
    type Handle = F::Handle;

    fn id_remap(&self, context: &mut Context) -> io::Result<()> {
        if self.as_own_user {
            // With zeros, the file system doesn't change its user.
            (context.uid, context.gid) = (0, 0);
        }
        self.files.id_remap(context)
    }

    fn open(
        &self,
        context: &Context,
        inode: Self::Inode,
        flags: u32,
        fuse_flags: u32,
    ) -> io::Result<(Option<Self::Handle>, OpenOptions, Option<u32>)> {
        let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) as u32 != libc::O_RDONLY as u32;
        if writes {
            self.may_change()?;
        }
        self.files.open(context, inode, flags, fuse_flags)
    }

    /// A device that the guest makes would be one of the host's.
    fn mknod(
        &self,
        context: &Context,
        parent: Self::Inode,
        name: &CStr,
        mode: u32,
        device: u32,
        umask: u32,
    ) -> io::Result<Entry> {
        self.may_change()?;
        if [libc::S_IFCHR, libc::S_IFBLK].contains(&(mode & libc::S_IFMT)) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.files.mknod(context, parent, name, mode, device, umask)
    }

    hand_on! {
    look:
        fn init(capable: FsOptions) -> io::Result<FsOptions>;
        fn destroy() -> ();
        fn lookup(context: &Context, parent: Self::Inode, name: &CStr) -> io::Result<Entry>;
        fn forget(context: &Context, inode: Self::Inode, count: u64) -> ();
        fn batch_forget(context: &Context, requests: Vec<(Self::Inode, u64)>) -> ();
        fn getattr(context: &Context, inode: Self::Inode, handle: Option<Self::Handle>)
            -> io::Result<(stat64, Duration)>;
        fn readlink(context: &Context, inode: Self::Inode) -> io::Result<Vec<u8>>;
        fn read(context: &Context, inode: Self::Inode, handle: Self::Handle,
            writer: &mut dyn ZeroCopyWriter, size: u32, offset: u64, lock_owner: Option<u64>,
            flags: u32) -> io::Result<usize>;
        fn flush(context: &Context, inode: Self::Inode, handle: Self::Handle, lock_owner: u64)
            -> io::Result<()>;
        fn fsync(context: &Context, inode: Self::Inode, datasync: bool, handle: Self::Handle)
            -> io::Result<()>;
        fn release(context: &Context, inode: Self::Inode, flags: u32, handle: Self::Handle,
            flush: bool, flock_release: bool, lock_owner: Option<u64>) -> io::Result<()>;
        fn statfs(context: &Context, inode: Self::Inode) -> io::Result<statvfs64>;
        fn getxattr(context: &Context, inode: Self::Inode, name: &CStr, size: u32)
            -> io::Result<GetxattrReply>;
        fn listxattr(context: &Context, inode: Self::Inode, size: u32) -> io::Result<ListxattrReply>;
        fn opendir(context: &Context, inode: Self::Inode, flags: u32)
            -> io::Result<(Option<Self::Handle>, OpenOptions)>;
        fn readdir(context: &Context, inode: Self::Inode, handle: Self::Handle, size: u32,
            offset: u64, add: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>) -> io::Result<()>;
        fn readdirplus(context: &Context, inode: Self::Inode, handle: Self::Handle, size: u32,
            offset: u64, add: &mut dyn FnMut(DirEntry<'_>, Entry) -> io::Result<usize>)
            -> io::Result<()>;
        fn fsyncdir(context: &Context, inode: Self::Inode, datasync: bool, handle: Self::Handle)
            -> io::Result<()>;
        fn releasedir(context: &Context, inode: Self::Inode, flags: u32, handle: Self::Handle)
            -> io::Result<()>;
        fn access(context: &Context, inode: Self::Inode, mask: u32) -> io::Result<()>;
        fn lseek(context: &Context, inode: Self::Inode, handle: Self::Handle, offset: u64,
            whence: u32) -> io::Result<u64>;
    change:
        fn setattr(context: &Context, inode: Self::Inode, attributes: stat64,
            handle: Option<Self::Handle>, valid: SetattrValid) -> io::Result<(stat64, Duration)>;
        fn symlink(context: &Context, target: &CStr, parent: Self::Inode, name: &CStr)
            -> io::Result<Entry>;
        fn mkdir(context: &Context, parent: Self::Inode, name: &CStr, mode: u32, umask: u32)
            -> io::Result<Entry>;
        fn unlink(context: &Context, parent: Self::Inode, name: &CStr) -> io::Result<()>;
        fn rmdir(context: &Context, parent: Self::Inode, name: &CStr) -> io::Result<()>;
        fn rename(context: &Context, from: Self::Inode, old: &CStr, to: Self::Inode, new: &CStr,
            flags: u32) -> io::Result<()>;
        fn link(context: &Context, inode: Self::Inode, parent: Self::Inode, name: &CStr)
            -> io::Result<Entry>;
        fn create(context: &Context, parent: Self::Inode, name: &CStr, how: CreateIn)
            -> io::Result<(Entry, Option<Self::Handle>, OpenOptions, Option<u32>)>;
        fn write(context: &Context, inode: Self::Inode, handle: Self::Handle,
            reader: &mut dyn ZeroCopyReader, size: u32, offset: u64, lock_owner: Option<u64>,
            delayed: bool, flags: u32, fuse_flags: u32) -> io::Result<usize>;
        fn fallocate(context: &Context, inode: Self::Inode, handle: Self::Handle, mode: u32,
            offset: u64, length: u64) -> io::Result<()>;
        fn setxattr(context: &Context, inode: Self::Inode, name: &CStr, value: &[u8], flags: u32)
            -> io::Result<()>;
        fn removexattr(context: &Context, inode: Self::Inode, name: &CStr) -> io::Result<()>;
    }
}
