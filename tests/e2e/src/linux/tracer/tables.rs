//! The definitions, those of each function together: entries, instructions inside, returns.
//!
//! The functions are those that opening, reading and closing a file calls: `do_sys_openat2(dfd, name, how)`,
//! `do_filp_open(dfd, name, flags)`, `vfs_open(path, file)`, `fd_install(fd, file)`,
//! `ksys_read(fd, buffer, count)`, `vfs_read(file, buffer, count, position)`,
//! `rw_verify_area(direction, file, position, count)`, `do_readv(fd, vector, length, flags)`, `__fput(file)`.

/// Names of the definitions whose values don't fit a jump's record.
pub const LONG: &[&str] = &["most_texts"];

/// Definitions for all kernels: by registers and offsets. At an entry %r11 isn't compared: the guest's own event is
/// made by its function tracer, which doesn't restore that register (`ftrace_regs_caller` in
/// `arch/x86/kernel/ftrace_64.S`).
pub const BOTH: &[&str] = &[
    "p:name_as_pointers do_sys_openat2 a=+u0(%si):ustring[1] b=+0(%si):string[1] c=+0(+u0(%si)):string d=+u0(%si):b7@1/8",
    "p:ints do_sys_openat2 a=%di:s8 b=%di:s16 c=%di:s32 d=%di:s64 e=%di:u8 f=%di:u16 g=%di:u32 h=%di:u64",
    "p:names do_sys_openat2 a=+0(%si):ustring b=+u0(%si):string c=+u0($arg2):ustring d=+u1($arg2):ustring",
    "p:bytes do_sys_openat2 a=+u0(%si):x8 b=+u0(%si):u8 c=+u1(%si):x16 d=+u0(%si):x32 e=+u0(%si):x64",
    "p:arrays do_sys_openat2 a=+0(%dx):x8[4] b=+8(%dx):s32[2] c=+0(%dx):u16[3] d=+0(%dx):x64[3]",
    "p:how do_sys_openat2 a=+0(%dx):x64 b=+8(%dx):u64 c=+16(%dx):s64 d=+0($arg3):x32 e=-8(%dx):x64",
    "p:bad do_sys_openat2 a=+0(%di):ustring b=+0(\\8):string c=+u0(\\16):ustring",
    "p:kernel_as_user do_sys_openat2 a=+u0(%dx):string b=+u0(%dx):ustring c=+u0(@saved_command_line):string",
    "r:opened do_sys_openat2 a=$retval:s32 b=$retval:x64 c=$retval:u8",
    "r64:codes do_sys_openat2 a=$retval:s8 b=$retval:s16 c=%ax:s32 d=%ax:u16 e=%ax:x8 f=$retval:b4@4/8",
    "p:in_name do_sys_openat2+5 a=%flags b=%si c=+0(%si):ustring d=%dx:x64 e=+0(%dx):x32[2]",
    "p:lower vfs_open a=%ax b=%bx c=%cx d=%dx e=%si f=%di g=%bp h=%sp",
    "p:words vfs_open a=$stack b=$stack0 c=$stack1:x64 d=$stack2:s32 e=$stack3:u8 f=$stack20:x16 g=$stack0:symbol",
    "p:task vfs_open a=$comm b=$comm:string c=$COMM d=\\\"text\" e=\\\"more\":string",
    "p:numbers vfs_open a=\\1234:u32 b=\\-5:s64 c=\\0x10:u8 d=\\+5:s32 e=\\255:s8 f=\\-1:u16 g=\\-1:x32 h=\\-1:b3@5/8",
    "p:path vfs_open a=+8(%di):x64 b=+0(%di):x64 c=+0(+0(%di)):x64 d=+0(+8($arg1)):x32",
    "p:in_path vfs_open+9 a=+0(%di):x64[2] b=%si:x64 c=+0(%si):b6@3/64 d=+0(%si):b1@0/8[8]",
    "r:path_opened vfs_open a=$retval:s32 b=$comm",
    "p:symbols fd_install a=$stack0:symbol b=@sys_call_table:symbol c=%si:symbol d=%di:symbol e=\\8:symbol",
    "p:symbol_array fd_install a=@sys_call_table:symbol[16] b=+0(@sys_call_table):x8[64]",
    "p:longest_arrays fd_install a=@sys_call_table:x64[64] b=@sys_call_table+8:x32[64] c=@init_uts_ns:x8[64]",
    "p:uts fd_install a=@init_uts_ns:string b=@init_uts_ns+130:string c=@init_uts_ns+260:string",
    "p:texts fd_install a=@vmstat_text:string[4] b=+0(@vmstat_text):string c=+0(@vmstat_text+8):string",
    "p:most_texts fd_install a=@vmstat_text:string[64]",
    "p:signed_arrays do_filp_open a=@init_uts_ns:s8[5] b=@init_uts_ns:s16[64] c=@init_uts_ns:s32[2] d=@sys_call_table:s64[2]",
    "p:unsigned_arrays do_filp_open a=@init_uts_ns:u8[64] b=@init_uts_ns:u16[4] c=@sys_call_table:u32[64] d=@sys_call_table:u64[2]",
    "p:bit_arrays do_filp_open a=@init_uts_ns:b4@4/8[5] b=@sys_call_table:b12@4/32[16] c=@sys_call_table:b1@63/64[64]",
    "p:offsets do_filp_open a=@linux_banner:x64 b=@linux_banner+6:x32 c=@linux_banner+2:x8 d=@linux_banner-1:x8",
    "p:address do_filp_open a=@0xfffffe0000000000:x64[4] b=@0xfffffe0000000008:b16@0/16 c=@0xfffffe0000000001:u8",
    "r:filp do_filp_open a=$retval b=+0($retval):x64",
    "p:hexes ksys_read a=%di:x8 b=%di:x16 c=%di:x32 d=%di:x64 e=%di f=$arg1:x32 g=$arg1:s32",
    "p:args ksys_read a=$arg1:s32 b=$arg2 c=$arg3:u64 d=$arg3:u8 e=$arg4 f=$arg5 g=$arg6 h=$arg7 i=$arg8:u32",
    "p:unnamed ksys_read %di %si:u64 +0(%sp):symbol \\7",
    "p:bits ksys_read a=%di:b4@4/32 b=%di:b1@0/8 c=%dx:b16@16/32 d=%dx:b8@0/8 e=%dx:b1@7/8 f=%dx:b32@0/32 \
     g=%dx:b64@0/64 h=%dx:b63@1/64 i=%si:b1@63/64 j=%si:b16@0/16",
    "p:in_read ksys_read+9 a=%ax:x8 b=%bx:s32 c=%cx:u16 d=%dx e=%si:x16 f=%di:u8 g=%bp h=%sp i=%r8:x32 j=%r9 k=%r10 \
     l=%r11 m=%r12 n=%r13 o=%r14 p=%r15",
    "r:returned ksys_read a=$retval:s64 b=%ax:x64 c=$retval:u16 d=%ax:b4@2/16",
    "p:read vfs_read a=%di b=%si c=%dx:u64 d=+0(%cx):s64 e=+0(%di):x64 f=+0(+0($stack)):x32",
    "p:twice vfs_read a=$arg3:u64 b=+0($arg4):x64",
    "p:deepest vfs_read a=+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@modules)))))))))))):x64 b=-4(+0($stack)):u32",
    "p:flags vfs_read a=%flags b=%flags:x16 c=%flags:b1@9/32",
    "p:image vfs_read a=+0(@saved_command_line):string b=+4(@saved_command_line):x8[8]",
    "p:in_stack vfs_read+9 a=$stack b=$stack0 c=%sp d=$stack3:x32 e=+0($stack):symbol f=+8($stack):u64",
    "r:done vfs_read a=$retval:s64 b=$retval:x32",
    "r:registers vfs_read a=%bx b=%bp c=%r12 d=%r13 e=%r14 f=%r15 g=%sp h=$stack",
    "r:caller vfs_read a=$stack0 b=+0($stack):x64 c=+0(+0($stack)):x32",
    "p:upper rw_verify_area a=%r8 b=%r9 c=%r10 d=%r12 e=%r13 f=%r14 g=%r15",
    "p:position rw_verify_area a=+0(%dx):s64 b=+0(%si):x64[4] c=%cx:u64 d=%di:s32",
    "p:vector do_readv a=+u0(%si):ustring[3] b=+0(%si):string[2] c=+0(+u0(%si)):ustring d=+u8(%si):u64",
    "p:vector_words do_readv a=+0(%si):x64[4] b=+8(%si):b32@0/64[3] c=+0(+16(%si)):x8[16]",
    "p:hostile_texts __fput a=+0(\\0):string b=+0(\\0x800000000000):string c=+0(\\-1):string d=+u0(\\-1):ustring",
    "p:hostile_pointers __fput a=+0(\\0xffff800000000000):string b=\\8:string c=+0(+0(\\0)):string d=+0(\\0):string[1]",
    "p:hostile_numbers __fput a=+0(\\0):x64 b=+0(\\0x800000000000):u8[4] c=+u0(\\-1):s16 d=@0x10:x64 e=+0(\\-4):u64",
];

/// Definitions for newer kernels only: by types, and with single characters.
pub const NEWER: &[&str] = &[
    "p:chars do_readv a=+0(+u0(%si)):char b=+2(+u0(%si)):char c=+0(@saved_command_line):char[5]",
    "p:typed do_sys_openat2 dfd how d2=dfd:x32",
    "p:every_open do_sys_openat2 $arg*",
    "r:name_and_result do_sys_openat2 a=+u0($arg2):ustring b=$retval",
    "p:members vfs_read count=count a=file->f_inode->i_ino b=file->f_path.dentry->d_name.name:string c=file->f_flags:x32",
    "p:every vfs_read $arg*",
    "r:value vfs_read a=$retval",
    "p:back vfs_read%return a=$retval b=$arg3:u64",
    "r:every_returned vfs_read $arg* $retval",
    "r:members_returned vfs_read a=file->f_inode->i_ino b=file->f_path.dentry->d_name.name:string",
    "p:dentry_of_file vfs_read a=$arg1:%pD b=file:%pD $arg1:%pD",
    "p:dentry vfs_open a=path->dentry:%pd b=+8($arg1):%pd $arg2:%pD",
    "p:path_members vfs_open path->dentry->d_name.name:string a=file->f_flags b=path->dentry->d_inode->i_ino c=path->dentry",
    "p:numbered ksys_read $arg1 $arg2 $arg3",
    "p:symbol_string ksys_read a=$stack0:symstr",
    "p:symbol_string_of_number ksys_read a=%di:x8 b=%di:symstr",
    "p:symbol_string_in_memory fd_install a=+0($stack):symstr",
    "r:entry_arguments ksys_read a=$arg1 b=$arg2:x64 c=$arg3:u32 d=$retval",
    "r:inode do_filp_open a=$retval->f_flags:x32 b=$retval->f_inode->i_ino",
    "p:most_chars do_filp_open a=@vmstat_text+0:b8@0/8[64] b=+0(@vmstat_text):char[12]",
    "p:task_bits wake_up_new_task a=p->pid b=p->sched_reset_on_fork c=p->in_execve d=p->in_iowait e=p->flags:x32 f=p->comm:string",
];
