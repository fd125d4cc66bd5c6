// Asks Perfetto's trace processor: node query.mjs FOLDER TRACE SQL...
// FOLDER has `trace_processor.wasm`, what runs it, and Perfetto's client for it. Writes a line of JSON for
// each query: an array of rows, each an object by column.

import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';
import {pathToFileURL} from 'node:url';

const [folder, trace, ...queries] = process.argv.slice(2);
const file = (name) => path.join(folder, name);

/** Bytes of the trace that are handed over at once. */
const CHUNK = 1 << 20;

// The bundle is made for a web worker: it looks for one's globals, and would fetch the module by its address.
const define = (name, value) =>
  Object.defineProperty(globalThis, name, {value, writable: true, configurable: true});
define('self', globalThis);
define('WorkerGlobalScope', function () {});
define('location', {href: pathToFileURL(folder).href + '/'});
define('theModule', new Uint8Array(fs.readFileSync(file('trace_processor.wasm'))));

/** The bundle, with these of its lines replaced; each must be there. */
function bundle(changes) {
  let text = fs.readFileSync(file('engine_bundle.node.js'), 'utf8');
  for (const [from, to] of changes) {
    if (!text.includes(from)) throw new Error(`the bundle has no line \`${from}\``);
    text = text.replace(from, to);
  }
  return text;
}
vm.runInThisContext(
  bundle([
    ['this.useMemory64 = hasMemory64Support();', 'this.useMemory64 = false;'],
    ['locateFile: (s) => s,', 'locateFile: (s) => s, wasmBinary: globalThis.theModule,'],
    [
      'const wasmBridge = new wasm_bridge_1.WasmBridge();',
      'const wasmBridge = new wasm_bridge_1.WasmBridge(); globalThis.theBridge = wasmBridge;',
    ],
  ]),
  {filename: 'engine_bundle.node.js'},
);

const {EngineBase} = await import(pathToFileURL(file('engine.mjs')).href);
class Engine extends EngineBase {
  mode = 'WASM';
  id = 'query';
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = ({data}) => {
      if (data instanceof Uint8Array) this.onRpcResponseBytes(data);
    };
  }
  rpcSendRequestBytes(bytes) {
    this.port.postMessage(bytes);
  }
  [Symbol.dispose]() {}
}

const {port1, port2} = new MessageChannel();
// What it sends before anybody asks is kept by the port until then.
globalThis.theBridge.initialize(port1);
const engine = new Engine(port2);
const bytes = new Uint8Array(fs.readFileSync(trace));
for (let at = 0; at < bytes.length; at += CHUNK) {
  await engine.parse(bytes.subarray(at, at + CHUNK));
}
await engine.notifyEof();

/** Whole numbers that a JavaScript number can't hold are texts. */
const plain = (_, value) => {
  if (typeof value !== 'bigint') return value;
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value.toString();
};
for (const sql of queries) {
  const result = await engine.query(sql);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(result.columns().map((column) => [column, row.get(column)])));
  }
  fs.writeSync(1, JSON.stringify(rows, plain) + '\n');
}
// The port would keep the process waiting.
process.exit(0);
