//! Definitions that the kernel takes as well.

/// The same probe as both take it.
pub struct Definition {
    pub ours: &'static str,
    pub theirs: String,
    pub may_jump: bool,
}

impl Definition {
    fn new(text: &'static str) -> Self {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        Self {
            ours: text,
            theirs: format!("{kind}:mine/{rest}"),
            // A return's values that are in memory are taken at the return, by a breakpoint.
            may_jump: kind == "p" || !text.contains('('),
        }
    }

    /// The event's name.
    pub fn name(&self) -> &'static str {
        let rest = self.ours.split_once(':').map_or("", |(_, rest)| rest);
        rest.split(' ').next().unwrap_or_default()
    }

    /// How many values it has.
    pub fn values(&self) -> usize {
        self.ours.split(' ').count() - 2
    }
}

/// All that a kernel takes.
pub fn all(is_new: bool) -> impl Iterator<Item = Definition> {
    let newer = NEWER.iter().filter(move |_| is_new);
    BY_PLACE
        .iter()
        .chain(newer)
        .map(|text| Definition::new(text))
}

/// By registers and offsets.
const BY_PLACE: &[&str] = &[
    "p:ints do_sys_openat2 a=%di:s8 b=%di:s16 c=%di:s32 d=%di:s64 e=%di:u8 f=%di:u16 g=%di:u32 h=%di:u64",
    "p:hexes do_sys_openat2 a=%di:x8 b=%di:x16 c=%di:x32 d=%di:x64 e=%di f=$arg1:x32 g=$arg1:s32",
    "p:names do_sys_openat2 a=+0(%si):ustring b=+u0(%si):string c=+u0($arg2):ustring d=+u1($arg2):ustring",
    "p:bytes do_sys_openat2 a=+u0(%si):x8 b=+u0(%si):u8 c=+u1(%si):x16 d=+u0(%si):x32 e=+u0(%si):x64",
    "p:arrays do_sys_openat2 a=+0(%dx):x8[4] b=+8(%dx):s32[2] c=+0(%dx):u16[3] d=+0(%dx):x64[3]",
    "p:how do_sys_openat2 a=+0(%dx):x64 b=+8(%dx):u64 c=+16(%dx):s64 d=+0($arg3):x32 e=-8(%dx):x64",
    "p:stack do_sys_openat2 a=$stack b=$stack0 c=$stack1:x64 d=+0($stack):x64 e=+8($stack):u64 f=$stack0:symbol",
    "p:task do_sys_openat2 a=$comm b=$comm:string c=\\1234:u32 d=\\-5:s64",
    "p:bits do_sys_openat2 a=%di:b4@4/32 b=%di:b1@0/8 c=%di:b16@16/32 d=+0(%dx):b6@3/64",
    "p:image do_sys_openat2 a=+0(@saved_command_line):string b=@linux_banner:x64 c=@linux_banner+6:x32",
    "p:bad do_sys_openat2 a=+0(%di):ustring b=+0(\\8):string c=+u0(\\16):ustring",
    "p:read vfs_read a=%di b=%si c=%dx:u64 d=+0(%cx):s64 e=+0(%di):x64 f=+0(+0($stack)):x32",
    "p:twice vfs_read a=$arg3:u64 b=+0($arg4):x64",
    "r:opened do_sys_openat2 a=$retval:s32 b=$retval:x64 c=$retval:u8",
    "r:done vfs_read a=$retval:s64 b=$retval:x32 c=$retval",
];

/// What only newer kernels take: by their types, and single characters.
const NEWER: &[&str] = &[
    "p:chars do_sys_openat2 a=+u0(%si):char b=+u1(%si):char c=+0(+0(@saved_command_line)):char[5]",
    "p:typed do_sys_openat2 dfd how d2=dfd:x32",
    "p:members vfs_read count=count a=file->f_inode->i_ino b=file->f_path.dentry->d_name.name:string c=file->f_flags:x32",
    "p:every vfs_read $arg*",
];
