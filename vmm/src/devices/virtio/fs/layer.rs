//! A folder as one of two layers that a guest sees as one.

use std::{ffi::CStr, io};

use fuse_backend_rs::{
    abi::fuse_abi::ROOT_ID,
    api::filesystem::{Context, FileSystem, Layer},
    passthrough::PassthroughFs,
};

use super::{opaque, view::View};

impl Layer for View<PassthroughFs> {
    fn root_inode(&self) -> Self::Inode {
        ROOT_ID
    }

    fn delete_whiteout(
        &self,
        context: &Context,
        parent: Self::Inode,
        name: &CStr,
    ) -> io::Result<()> {
        let entry = match self.lookup(context, parent, name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            found => found?,
        };
        self.forget(context, entry.inode, 1);
        let is_whiteout =
            entry.attr.st_mode & libc::S_IFMT == libc::S_IFCHR && entry.attr.st_rdev == 0;
        if !is_whiteout {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.unlink(context, parent, name)?;
        self.whiteouts.taken_away(parent, name);
        Ok(())
    }

    fn set_opaque(&self, context: &Context, inode: Self::Inode) -> io::Result<()> {
        opaque::set_opaque(self, context, inode)
    }

    fn is_opaque(&self, context: &Context, inode: Self::Inode) -> io::Result<bool> {
        Ok(opaque::is_opaque(self, context, inode))
    }
}
