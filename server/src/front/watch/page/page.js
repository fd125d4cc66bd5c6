"use strict";
// Asks the server every other second what its VMs do, and shows it. All texts are set as texts.

const PERIOD_MS = 2000;
const PATIENCE_MS = 10_000;
const SHORTEST_WINDOW_MS = 60_000;
const LONGEST_WINDOW_MS = 600_000;
// The scale of lengths, in seconds: each step is ten times the one before.
const SHORTEST_S = 1e-6;
const STEPS = 6;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A cell whose text may be cut: all of it is shown when it is pointed at.
function cell(text, kind) {
  const made = element("td", text, kind);
  made.title = text;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const known = (value) => value !== undefined && value !== null;

function count(value) {
  if (!known(value)) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6]]) {
    if (value >= 10 * size) return `${Number((value / size).toPrecision(4)).toLocaleString("en")} ${unit}`;
  }
  return Math.round(value).toLocaleString("en");
}

function rate(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  return value >= 100 ? count(value) : value.toPrecision(3);
}

function seconds(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(value * 1e9)} ns`;
}

function duration(value) {
  if (!known(value)) return "–";
  const whole = Math.floor(value);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  let rest = whole;
  return parts.slice(first, first + 2).map(([size, unit]) => {
    const number = Math.floor(rest / size);
    rest %= size;
    return number > 0 ? `${number} ${unit}` : "";
  }).join(" ").trim();
}

function bytes(value) {
  if (!known(value)) return "–";
  const mib = value / 2 ** 20;
  return mib < 1024 ? `${mib.toFixed(mib < 10 ? 1 : 0)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

function chosenVm() {
  return location.hash.startsWith("#vm=") ? decodeURIComponent(location.hash.slice(4)) : undefined;
}

function stateOf(vm) {
  if (!vm.up && vm.state !== "ended") return ["does not answer", "silent"];
  if (vm.ending) return [vm.ending, vm.ending.startsWith("power off") ? "ended" : "failed"];
  return [vm.state, vm.state];
}

function vmRow(vm, chosen) {
  const row = element("tr", undefined, vm.name === chosen ? "chosen" : undefined);
  const name = cell(vm.name, "name");
  name.textContent = "";
  const link = element("a", vm.name);
  link.href = `#vm=${encodeURIComponent(vm.name)}`;
  name.append(link);
  const [state, kind] = stateOf(vm);
  const cells = [
    duration(vm.uptime_seconds), rate(vm.hits_per_second), count(vm.hits), rate(vm.exits_per_second),
    count(vm.probes), count(vm.stops), seconds(vm.longest_stop_seconds),
  ].map((text) => element("td", text, "number"));
  const lost = element("td", count(vm.events_lost), vm.events_lost > 0 ? "number warn" : "number");
  row.append(name, cell(state, `name ${kind}`), ...cells, lost);
  row.append(element("td", bytes(vm.process_memory_bytes), "number"));
  return row;
}

function showVms(status, chosen) {
  byId("vms").tBodies[0].replaceChildren(...status.vms.map((vm) => vmRow(vm, chosen)));
  byId("vms").hidden = status.vms.length === 0;
  byId("vms-none").hidden = status.vms.length > 0;
  const all = status.vms.length + status.more_vms;
  const note = status.more_vms > 0
    ? `the ${count(status.vms.length)} with the most hits of ${count(all)}`
    : "those with the most hits first";
  byId("vms-note").textContent = all > 1 ? note : "";
}

function probeRow(probe, most) {
  const row = element("tr");
  const share = element("td", undefined, "share");
  const bar = shape("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  const width = most > 0 ? 100 * (probe.hits_per_second ?? 0) / most : 0;
  bar.append(shape("rect", { class: "track", width: 100, height: 8 }));
  bar.append(shape("rect", { class: "fill", width, height: 8 }));
  share.append(bar);
  row.append(
    cell(probe.name, "name"), cell(probe.place, "place"),
    element("td", rate(probe.hits_per_second), "number"), share,
    element("td", count(probe.hits), "number"), element("td", count(probe.missed_calls), "number"),
  );
  return row;
}

function showProbes(details) {
  const rates = details.probes.map((probe) => probe.hits_per_second ?? 0);
  const most = Math.max(0, ...rates);
  byId("probes").tBodies[0].replaceChildren(...details.probes.map((probe) => probeRow(probe, most)));
  byId("probes").hidden = details.probes.length === 0;
  const others = details.more_probes > 0 ? `, and ${count(details.more_probes)} more with fewer hits` : "";
  byId("probes-note").textContent = details.probes.length === 0
    ? "there are none"
    : plural(details.probes.length, "probe", "probes") + others;
}

// Where a length is drawn, from 0 at the bottom to 100 at the top.
function height(length) {
  const step = Math.log10(Math.max(length, SHORTEST_S) / SHORTEST_S);
  return Math.min(100, 3 + 97 * step / STEPS);
}

function showStops(details) {
  const now = Date.now();
  const first = details.stops.length > 0 ? details.stops[0].end_ms : now;
  const span = Math.min(LONGEST_WINDOW_MS, Math.max(SHORTEST_WINDOW_MS, (now - first) * 1.02));
  const shown = details.stops.filter((stop) => stop.end_ms >= now - span);
  const marks = [];
  const labels = [];
  for (let step = 0; step < STEPS; step += 1) {
    const length = SHORTEST_S * 10 ** step;
    const y = 100 - height(length);
    marks.push(shape("line", { class: "rule", x1: 0, x2: 1000, y1: y, y2: y }));
    const label = element("li", seconds(length));
    label.style.bottom = `${height(length)}%`;
    labels.push(label);
  }
  for (const stop of shown) {
    const x = 1000 * (1 - Math.max(0, now - stop.end_ms) / span);
    const line = shape("line", { class: "stop", x1: x, x2: x, y1: 100, y2: 100 - height(stop.seconds) });
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${seconds(stop.seconds)} at ${new Date(stop.end_ms).toLocaleTimeString()}`;
    line.append(title);
    marks.push(line);
  }
  document.querySelector("#stops svg").replaceChildren(...marks);
  byId("lengths").replaceChildren(...labels);
  byId("stops-begin").textContent = `${duration(span / 1000)} ago`;
  const longest = Math.max(0, ...shown.map((stop) => stop.seconds));
  byId("stops-note").textContent = shown.length === 0
    ? `none in the last ${duration(span / 1000)}`
    : `${plural(shown.length, "stop", "stops")}, the longest ${seconds(longest)}`;
}

function showDetails(status) {
  const details = status.vm;
  byId("details").hidden = !details;
  if (!details) return;
  byId("details-title").textContent = details.name;
  const vm = status.vms.find((one) => one.name === details.name);
  byId("details-note").textContent = vm
    ? [
      vm.kernel_version && `kernel ${vm.kernel_version.split(" ")[0]}`, plural(vm.vcpus, "vCPU", "vCPUs"),
      `${count(vm.memory_mib)} MiB`, plural(vm.event_streams ?? 0, "stream of events", "streams of events"),
      `${plural(vm.events_queued ?? 0, "event waits", "events wait")}`,
    ].filter(Boolean).join(" · ")
    : "";
  showStops(details);
  showProbes(details);
}

function show(status) {
  const chosen = status.vm?.name;
  const { version, uptime_seconds: up, memory_bytes: memory } = status.server;
  byId("server").textContent = `${version} · up for ${duration(up)} · ${bytes(memory)}`;
  showVms(status, chosen);
  showDetails(status);
}

function tell(text, isLost) {
  const place = byId("connection");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("lost", isLost);
}

let timer;
let asked = 0;

async function look() {
  clearTimeout(timer);
  asked += 1;
  const mine = asked;
  try {
    const chosen = chosenVm();
    const query = chosen === undefined ? "" : `?vm=${encodeURIComponent(chosen)}`;
    const answer = await fetch(`/api/status${query}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).trim()}`);
    const status = await answer.json();
    if (mine !== asked) return;
    // With one VM there is nothing to choose.
    if (chosen === undefined && status.vms.length === 1) {
      location.replace(`#vm=${encodeURIComponent(status.vms[0].name)}`);
    }
    show(status);
    tell("live", false);
  } catch (error) {
    if (mine !== asked) return;
    tell(`no answer: ${error.message}`, true);
  }
  timer = setTimeout(look, PERIOD_MS);
}

addEventListener("hashchange", look);
look();
