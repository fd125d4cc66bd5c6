// Everything that vmprobed does for its clients, once: hands a kernel over, makes a VM of it, probes it, looks into it,
// debugs it, and ends it.
//
//   node tour.mjs --server HOST:PORT --ca ca.pem --cert alice.pem --key alice.key \
//     --kernel vmlinuz --function vfs_read --type 'struct file' --input $'poweroff -f\n'
import { createHash } from 'node:crypto';
import { open, readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { connect, credentials } from './vmprobe.mjs';

const text = { type: 'string' };
const { values: given } = parseArgs({
  options: {
    server: text, ca: text, cert: text, key: text, 'token-file': text, // As `vmprobe` takes them.
    kernel: text, cmdline: text, // What to boot.
    function: text, type: text, // A function of the kernel that is called often, and a type of it.
    input: text, // What makes the guest end when it is typed on its console.
    dump: text, // Where to put the guest's memory.
  },
});
const file = (path) => (path ? readFile(path) : undefined);
const token = (await file(given['token-file']))?.toString().trim();
const [ca, cert, key] = await Promise.all([given.ca, given.cert, given.key].map(file));
const api = await connect(given.server, credentials({ ca, cert, key, token }));

const say = (...words) => console.log(...words);
const hex = (number) => `0x${BigInt(number).toString(16)}`;
const messages = (stream) => (stream.messages ??= stream[Symbol.asyncIterator]());
// The next message of a stream that has this field.
async function next(stream, field) {
  for (;;) {
    const { value, done } = await messages(stream).next();
    if (done) throw new Error(`the stream has ended without \`${field}\``);
    if (value[field]) return value[field];
  }
}
// Reads a stream to its end.
async function rest(stream, each = () => {}) {
  for await (const message of messages(stream)) each(message);
}

// Hands a kernel over, in parts of 1 MiB.
async function upload(name, path) {
  const content = await readFile(path);
  const sha256 = createHash('sha256').update(content).digest('hex');
  const image = await new Promise((resolve, reject) => {
    const call = api.image.UploadImage((error, answer) => (error ? reject(error) : resolve(answer.image)));
    call.write({ begin: { name, size: content.length, sha256 } });
    for (let at = 0; at < content.length; at += 1 << 20) call.write({ chunk: content.subarray(at, at + (1 << 20)) });
    call.end();
  });
  const { images } = await api.image.ListImages({});
  say(`image ${image.names}: ${image.size} bytes, one of ${images.length}`);
}

async function host() {
  const { status } = await api.health.Check({ service: 'vmprobe.v1.VmService' });
  const { version, runs_linux } = await api.host.GetHost({});
  say(`vmprobed ${version} is ${status}; Linux ${runs_linux ? 'runs' : 'does not run'} on its KVM`);
}

// A VM that waits for StartVm, so that probes see its first instruction.
async function create(name) {
  const request = { name, kernel: 'image:tour-kernel', cmdline: given.cmdline, memory_mib: 64, hold: true };
  const { vm } = await api.vm.CreateVm(request);
  const { vms } = await api.vm.ListVms({});
  say(`VM ${vm.name} has ${vm.symbols} symbols, one of ${vms.length}`);
  return vm.name;
}

// What a refusal tells for programs.
async function refused(vm) {
  const wrong = { vm, probes: [{ symbol: { symbol: 'no_such_function' } }] };
  const error = await api.probe.RegisterProbes(wrong).catch((error) => error);
  say(`refused: ${error.details_of['google.rpc.BadRequest'].field_violations[0].field}: ${error.details}`);
}

async function symbols(vm) {
  const { symbols } = await api.symbol.LookupSymbols({ vm, pattern: given.function });
  const { symbol, offset } = await api.symbol.ResolveAddress({ vm, address: symbols[0].address });
  const { names } = await api.symbol.ListTypes({ vm, pattern: given.type });
  const { declaration } = await api.symbol.DescribeType({ vm, name: names[0] });
  say(`${hex(symbol.address)} is ${symbol.name}+${offset}; ${names[0]} has ${declaration.split('\n').length} lines`);
  return symbol.address;
}

// A probe that goes with its client, and is found again by one that was cut off.
async function session(vm) {
  const stream = api.session.OpenSession({ vm, linger_ms: 60_000 });
  const { session } = await next(stream, 'opened');
  await api.probe.RegisterProbes({ vm, session, probes: [{ name: 'mine', symbol: { symbol: given.function } }] });
  stream.on('error', () => {}).cancel();
  const resumed = api.session.OpenSession({ vm, resume: session });
  const { probe_ids } = await next(resumed, 'opened');
  say(`session with the probes ${probe_ids}`);
  return resumed;
}

async function probes(vm) {
  const probe = { name: 'kept', symbol: { symbol: given.function }, arguments: ['first=$arg1'] };
  const { probes, stopped_ns } = await api.probe.RegisterProbes({ vm, probes: [probe] });
  say(`probe ${probes[0].name} at ${hex(probes[0].address)}, ${probes[0].instruction}: stopped for ${stopped_ns} ns`);
  const selector = { names: ['kept'] };
  await api.probe.UpdateProbes({ vm, selector, enabled: false });
  // Whether a probe becomes a jump is known when the kernel has started; one that is switched off isn't waited for.
  const { probes: settled } = await api.probe.WaitProbes({ vm, selector }, { deadline: Date.now() + 60_000 });
  await api.probe.UpdateProbes({ vm, selector, enabled: true });
  const { probes: all } = await api.probe.ListProbes({ vm });
  say(`${all.length} probes; ${settled[0].name} was ${settled[0].state}, and is ${all.at(-1).state}`);
  await rest(api.probe.ListCalls({ vm }), ({ calls }) => say(`${calls.length} calls are followed`));
  await rest(api.probe.ListBlacklist({ vm, pattern: given.function }), ({ entries }) => say(entries));
  return probes[0].id;
}

// Events, also after the stream was cut off: each of them comes, or is counted as lost.
async function events(vm, id) {
  let stream = api.event.StreamEvents({ vm, probe_ids: [id], linger_ms: 60_000 });
  const { stream: name, tsc_hz } = await next(stream, 'subscribed');
  await api.vm.StartVm({ vm });
  const { number, events } = await next(stream, 'batch');
  const [{ tsc, values }] = events;
  say(`the first of ${events.length} events at ${Number(tsc) / Number(tsc_hz)} s: first=${values[0].unsigned}`);
  stream.on('error', () => {}).cancel();
  stream = api.event.StreamEvents({ vm, resume: { stream: name, batch: number } });
  const { number: after } = await next(stream, 'batch');
  say(`batch ${after} comes after ${number}`);
  return stream;
}

// The vCPU of a hit waits for our answer.
async function hits(vm) {
  const stream = api.hit.HandleHits();
  stream.write({ begin: { vm, probes: { names: ['kept'] }, answer_ms: 60_000 } });
  const hit = await next(stream, 'hit');
  stream.write({ read_memory: { hit: hit.number, address: hit.registers.rip, length: 8 } });
  const { data } = await next(stream, 'memory');
  const same = { register: 'REGISTER_R15', value: hit.registers.r15 };
  stream.write({ answer: { hit: hit.number, actions: [{ set_register: same }] } });
  say(`a hit at ${hex(hit.registers.rip)}: ${data.toString('hex')}`);
  stream.end();
  await rest(stream);
}

async function look(vm, address) {
  await api.vm.PauseVm({ vm });
  const { registers } = await api.vm.ReadRegisters({ vm });
  const { data } = await api.vm.ReadMemory({ vm, address, length: 16 });
  const { addresses } = await api.vm.ReadStack({ vm });
  const { probe_sums } = await api.vm.GetVmStats({ vm, probes: 10, order: 'PROBE_ORDER_RATE' });
  say(`paused at ${hex(registers.rip)}, ${addresses.length} deep; ${given.function} is ${data.toString('hex')}`);
  say(`${probe_sums.hits} hits`);
  await dump(vm, given.dump);
  const { vm: after } = await api.vm.ResumeVm({ vm });
  say(`${after.name} is ${after.state}`);
}

// An ELF core file, with holes where memory is zero.
async function dump(vm, path) {
  const output = path && (await open(path, 'w'));
  let [bytes, whole] = [0, 0];
  for await (const { size, offset, data } of api.vm.DumpVm({ vm })) {
    await output?.write(data, 0, data.length, Number(offset));
    bytes += data.length;
    whole = size;
  }
  await output?.truncate(Number(whole));
  await output?.close();
  say(`dump of ${whole} bytes, ${bytes} of them sent`);
}

async function debug(vm, address) {
  const stream = api.debug.Debug();
  const ask = (request, answer) => {
    stream.write(request);
    return next(stream, answer);
  };
  await ask({ attach: { vm } }, 'attached');
  const breakpoint = { kind: 'BREAKPOINT_KIND_SOFTWARE', address };
  await ask({ set_breakpoint: { breakpoint } }, 'done');
  const { reason, vcpu } = await ask({ continue: {} }, 'stopped');
  const state = await ask({ read_vcpu: { vcpu } }, 'vcpu');
  await ask({ write_vcpu: { vcpu, registers: state.registers } }, 'done');
  const { data } = await ask({ read_memory: { vcpu, address, length: 8 } }, 'memory');
  await ask({ remove_breakpoint: { breakpoint } }, 'done');
  await ask({ step: { vcpu } }, 'stopped');
  const { registers } = await ask({ read_vcpu: { vcpu } }, 'vcpu');
  say(`${reason} at ${hex(state.registers.rip)} (${data.toString('hex')}), then at ${hex(registers.rip)}`);
  stream.end();
  await rest(stream);
}

// Types on the console, and reads it to the guest's end.
async function console_(vm) {
  const stream = api.console.AttachConsole();
  stream.write({ vm });
  stream.write({ input: Buffer.from(given.input) });
  let written = 0;
  await rest(stream, ({ output }) => (written += output.length));
  const { ending } = await api.vm.WaitVm({ vm });
  say(`${ending.kind} after ${written} bytes of output`);
}

async function main() {
  await host();
  await upload('tour-kernel', given.kernel);
  const vm = await create('tour');
  await refused(vm);
  const address = await symbols(vm);
  const held = await session(vm);
  const id = await probes(vm);
  const followed = await events(vm, id);
  await hits(vm);
  await look(vm, address);
  await debug(vm, address);
  await Promise.all([console_(vm), rest(held), rest(followed)]);
  const { probes: gone } = await api.probe.UnregisterProbes({ vm, selector: { ids: [id] } });
  say(`${gone[0].name} was hit ${gone[0].hits} times`);
  await api.vm.DeleteVm({ vm });

  const other = await create('other');
  await api.vm.KillVm({ vm: other });
  const { vm: killed } = await api.vm.GetVm({ vm: other });
  say(`${killed.name}: ${killed.ending.kind}`);
  await api.vm.DeleteVm({ vm: other });
  const { image } = await api.image.GetImage({ image: 'tour-kernel' });
  await api.image.DeleteImage({ image: `sha256-${image.sha256}` });
  say('done');
}

await main();
api.close();
