"""Lists the tasks of a Linux dump by drgn, without debug information: the symbols are the dump's own, the layout of
`struct task_struct` is given as arguments: the dump, the structure's size, and the offsets of tasks, pid and comm."""

import sys

import drgn
from drgn.helpers.linux.kallsyms import load_vmlinux_kallsyms

path, size, tasks, pid, comm = sys.argv[1], *map(int, sys.argv[2:6])
prog = drgn.Program()
prog.set_core_dump(path)
print("release", dict(
    line.split("=", 1) for line in prog["VMCOREINFO"].string_().decode().splitlines() if "=" in line
)["OSRELEASE"])
prog.register_symbol_finder("kallsyms", load_vmlinux_kallsyms(prog), enable_index=0)

integer = prog.int_type("int", 4, True, "little")
pointer = prog.pointer_type(prog.void_type(), 8, "little")
character = prog.int_type("char", 1, True, "little")
list_head = prog.struct_type(
    "list_head", 16, (drgn.TypeMember(pointer, "next"), drgn.TypeMember(pointer, "prev", 64))
)
task_struct = prog.struct_type(
    "task_struct",
    size,
    (
        drgn.TypeMember(list_head, "tasks", 8 * tasks),
        drgn.TypeMember(integer, "pid", 8 * pid),
        drgn.TypeMember(prog.array_type(character, 16), "comm", 8 * comm),
    ),
)
first = prog.symbol("init_task").address
address = first
while True:
    task = drgn.Object(prog, task_struct, address=address)
    print("task", task.pid.value_(), task.comm.string_().decode())
    address = task.tasks.next.value_() - tasks
    if address == first:
        break
