"""Everything that vmprobed does for its clients, once: hands a kernel over, makes a VM of it, probes it, looks into it,
debugs it, and ends it.

    python3 tour.py --server HOST:PORT --ca ca.pem --cert alice.pem --key alice.key \\
        --kernel vmlinuz --function vfs_read --type 'struct file' --input $'poweroff -f\\n'
"""

import argparse
import hashlib
from pathlib import Path

import grpc
from grpc_status import rpc_status
from google.rpc import error_details_pb2

from vmprobe import Api, Requests, channel

OPTIONS = {
    "server": "where it listens, as HOST:PORT or unix:PATH",
    "ca": "for TLS: the authority of the server's certificate",
    "cert": "the client's certificate",
    "key": "the certificate's key",
    "token-file": "a file with the client's token, in the place of a certificate",
    "kernel": "what to boot",
    "cmdline": "its command line",
    "function": "a function of the kernel that is called often",
    "type": "a type of the kernel",
    "input": "what makes the guest end when it is typed on its console",
    "dump": "where to put the guest's memory",
}


def following(stream, field):
    """The next message of a stream that has this field."""
    for message in stream:
        if message.HasField(field):
            return getattr(message, field)
    raise EOFError(f"the stream has ended without `{field}`")


def rest(stream):
    """Reads a stream to its end."""
    return list(stream)


def host(api):
    health = api.health.Check(service="vmprobe.v1.VmService")
    host = api.host.GetHost()
    runs = "runs" if host.runs_linux else "does not run"
    print(f"vmprobed {host.version} has health {health.status}; Linux {runs} on its KVM")


def upload(api, name, path):
    """Hands a kernel over, in parts of 1 MiB."""
    content = Path(path).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    parts = [{"begin": {"name": name, "size": len(content), "sha256": sha256}}]
    parts += [{"chunk": content[at : at + (1 << 20)]} for at in range(0, len(content), 1 << 20)]
    image = api.image.UploadImage(parts).image
    print(f"image {image.names}: {image.size} bytes, one of {len(api.image.ListImages().images)}")


def create(api, name, given):
    """A VM that waits for StartVm, so that probes see its first instruction."""
    kernel = "image:tour-kernel"
    vm = api.vm.CreateVm(name=name, kernel=kernel, cmdline=given.cmdline, memory_mib=64, hold=True).vm
    print(f"VM {vm.name} has {vm.symbols} symbols, one of {len(api.vm.ListVms().vms)}")
    return vm.name


def refused(api, vm):
    """What a refusal tells for programs."""
    try:
        api.probe.RegisterProbes(vm=vm, probes=[{"symbol": {"symbol": "no_such_function"}}])
    except grpc.RpcError as error:
        request = error_details_pb2.BadRequest()
        rpc_status.from_call(error).details[0].Unpack(request)
        print(f"refused: {request.field_violations[0].field}: {error.details()}")


def symbols(api, vm, given):
    address = api.symbol.LookupSymbols(vm=vm, pattern=given.function).symbols[0].address
    found = api.symbol.ResolveAddress(vm=vm, address=address)
    name = api.symbol.ListTypes(vm=vm, pattern=given.type).names[0]
    lines = api.symbol.DescribeType(vm=vm, name=name).declaration.splitlines()
    print(f"{address:#x} is {found.symbol.name}+{found.offset}; {name} has {len(lines)} lines")
    return address


def session(api, vm, given):
    """A probe that goes with its client, and is found again by one that was cut off."""
    stream = api.session.OpenSession(vm=vm, linger_ms=60_000)
    name = following(stream, "opened").session
    api.probe.RegisterProbes(vm=vm, session=name, probes=[{"name": "mine", "symbol": {"symbol": given.function}}])
    stream.cancel()
    resumed = api.session.OpenSession(vm=vm, resume=name)
    print(f"session with the probes {following(resumed, 'opened').probe_ids}")
    return resumed


def probes(api, vm, given):
    probe = {"name": "kept", "symbol": {"symbol": given.function}, "arguments": ["first=$arg1"]}
    registered = api.probe.RegisterProbes(vm=vm, probes=[probe])
    kept = registered.probes[0]
    print(f"probe {kept.name} at {kept.address:#x}, {kept.instruction}: stopped for {registered.stopped_ns} ns")
    selector = {"names": ["kept"]}
    api.probe.UpdateProbes(vm=vm, selector=selector, enabled=False)
    # Whether a probe becomes a jump is known when the kernel has started; one that is switched off isn't waited for.
    settled = api.probe.WaitProbes(vm=vm, selector=selector, timeout=60).probes[0]
    api.probe.UpdateProbes(vm=vm, selector=selector, enabled=True)
    print(f"{len(api.probe.ListProbes(vm=vm).probes)} probes; {settled.name} had state {settled.state}")
    print(f"{len(rest(api.probe.ListCalls(vm=vm)))} messages of calls that are followed")
    print(f"{len(rest(api.probe.ListBlacklist(vm=vm, pattern=given.function)))} messages of what can't be probed there")
    return kept.id


def events(api, vm, probe):
    """Events, also after the stream was cut off: each of them comes, or is counted as lost."""
    stream = api.event.StreamEvents(vm=vm, probe_ids=[probe], linger_ms=60_000)
    subscribed = following(stream, "subscribed")
    api.vm.StartVm(vm=vm)
    batch = following(stream, "batch")
    event = batch.events[0]
    seconds = event.tsc / subscribed.tsc_hz
    print(f"the first of {len(batch.events)} events at {seconds} s: first={event.values[0].unsigned}")
    stream.cancel()
    stream = api.event.StreamEvents(vm=vm, resume={"stream": subscribed.stream, "batch": batch.number})
    print(f"batch {following(stream, 'batch').number} comes after {batch.number}")
    return stream


def hits(api, vm):
    """The vCPU of a hit waits for our answer."""
    requests = Requests()
    stream = api.hit.HandleHits(requests)
    requests.send(begin={"vm": vm, "probes": {"names": ["kept"]}, "answer_ms": 60_000})
    hit = following(stream, "hit")
    requests.send(read_memory={"hit": hit.number, "address": hit.registers.rip, "length": 8})
    data = following(stream, "memory").data
    same = {"register": "REGISTER_R15", "value": hit.registers.r15}
    requests.send(answer={"hit": hit.number, "actions": [{"set_register": same}]})
    print(f"a hit at {hit.registers.rip:#x}: {data.hex()}")
    requests.end()
    rest(stream)


def look(api, vm, address, given):
    api.vm.PauseVm(vm=vm)
    registers = api.vm.ReadRegisters(vm=vm).registers
    data = api.vm.ReadMemory(vm=vm, address=address, length=16).data
    stack = api.vm.ReadStack(vm=vm).addresses
    stats = api.vm.GetVmStats(vm=vm, probes=10, order="PROBE_ORDER_RATE")
    print(f"paused at {registers.rip:#x}, {len(stack)} deep; {given.function} is {data.hex()}")
    print(f"{stats.probe_sums.hits} hits")
    dump(api, vm, given.dump)
    print(f"{vm} has state {api.vm.ResumeVm(vm=vm).vm.state}")


def dump(api, vm, path):
    """An ELF core file, with holes where memory is zero."""
    size = sent = 0
    with open(path, "wb") as output:
        for part in api.vm.DumpVm(vm=vm):
            output.seek(part.offset)
            sent += output.write(part.data)
            size = part.size
        output.truncate(size)
    print(f"dump of {size} bytes, {sent} of them sent")


def debug(api, vm, address):
    requests = Requests()
    stream = api.debug.Debug(requests)

    def ask(answer, **request):
        requests.send(**request)
        return following(stream, answer)

    ask("attached", attach={"vm": vm})
    place = {"kind": "BREAKPOINT_KIND_SOFTWARE", "address": address}
    ask("done", set_breakpoint={"breakpoint": place})
    vcpu = ask("stopped", **{"continue": {}}).vcpu
    registers = ask("vcpu", read_vcpu={"vcpu": vcpu}).registers
    ask("done", write_vcpu={"vcpu": vcpu, "registers": registers})
    data = ask("memory", read_memory={"vcpu": vcpu, "address": address, "length": 8}).data
    ask("done", remove_breakpoint={"breakpoint": place})
    ask("stopped", step={"vcpu": vcpu})
    after = ask("vcpu", read_vcpu={"vcpu": vcpu}).registers
    print(f"stopped at {registers.rip:#x} ({data.hex()}), then at {after.rip:#x}")
    requests.end()
    rest(stream)


def console(api, vm, given):
    """Types on the console, and reads it to the guest's end."""
    requests = Requests()
    stream = api.console.AttachConsole(requests)
    requests.send(vm=vm)
    requests.send(input=given.input.encode())
    written = sum(len(message.output) for message in stream)
    requests.end()
    ending = api.vm.WaitVm(vm=vm).ending
    print(f"ended with {ending.exit_code} after {written} bytes of output")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in OPTIONS.items():
        parser.add_argument(f"--{option}", help=what)
    given = parser.parse_args()
    content = [path and Path(path).read_bytes() for path in (given.ca, given.cert, given.key)]
    token = given.token_file and Path(given.token_file).read_text().strip()
    with channel(given.server, *content, token=token) as connection:
        tour(Api(connection), given)


def tour(api, given):
    host(api)
    upload(api, "tour-kernel", given.kernel)
    vm = create(api, "tour", given)
    refused(api, vm)
    address = symbols(api, vm, given)
    held = session(api, vm, given)
    probe = probes(api, vm, given)
    followed = events(api, vm, probe)
    hits(api, vm)
    look(api, vm, address, given)
    debug(api, vm, address)
    console(api, vm, given)
    rest(held)
    rest(followed)
    gone = api.probe.UnregisterProbes(vm=vm, selector={"ids": [probe]}).probes[0]
    print(f"{gone.name} was hit {gone.hits} times")
    api.vm.DeleteVm(vm=vm)

    other = create(api, "other", given)
    api.vm.KillVm(vm=other)
    print(f"{other} ended with {api.vm.GetVm(vm=other).vm.ending.exit_code}")
    api.vm.DeleteVm(vm=other)
    image = api.image.GetImage(image="tour-kernel").image
    api.image.DeleteImage(image=f"sha256-{image.sha256}")
    print("done")


if __name__ == "__main__":
    main()
