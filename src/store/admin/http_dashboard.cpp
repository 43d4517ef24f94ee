// SPDX-License-Identifier: Apache-2.0
#include "store/admin/http_dashboard.h"

namespace mooncake::store {

namespace {

// Text from the pool (names, ids) reaches the page only as textContent, so nobody can put markup into it.
constexpr std::string_view kPage = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Mooncake</title>
<style>
:root { --back: #f6f7f9; --card: #fff; --text: #1b2430; --dim: #68748a; --line: #e3e7ee; --main: #2f6fed; --soft: #dbe7ff; --good: #1f9d6b; --warn: #d98a00; --bad: #d0403f; }
@media (prefers-color-scheme: dark) {
  :root { --back: #10141b; --card: #181e28; --text: #e6ebf4; --dim: #8b97ad; --line: #262f3d; --main: #6c9dff; --soft: #23324f; --good: #3cc48d; --warn: #f0b03c; --bad: #f06a68; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 14px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; align-items: baseline; gap: 14px; padding: 18px 24px 6px; flex-wrap: wrap; }
h1 { font-size: 19px; margin: 0; letter-spacing: .01em; }
h2 { font-size: 13px; margin: 0 0 10px; color: var(--dim); font-weight: 600; }
#where { color: var(--dim); }
#live { margin-left: auto; font-size: 12px; color: var(--good); }
#live.lost { color: var(--bad); }
main { padding: 12px 24px 32px; display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.wide { grid-column: 1 / -1; overflow-x: auto; }
.number { font-size: 25px; font-weight: 600; }
.note { color: var(--dim); font-size: 12px; min-height: 18px; }
.bar { height: 10px; border-radius: 5px; background: var(--soft); overflow: hidden; display: flex; }
.bar i { display: block; height: 100%; background: var(--main); }
.bar i.rest { background: var(--warn); opacity: .75; }
.bar.hot i:first-child { background: var(--bad); }
svg { width: 100%; height: 38px; display: block; margin-top: 6px; }
svg path { fill: none; stroke: var(--main); stroke-width: 1.6; vector-effect: non-scaling-stroke; }
svg path.fill { fill: var(--soft); stroke: none; opacity: .6; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--dim); font-weight: 500; font-size: 12px; padding: 0 14px 6px 0; white-space: nowrap; }
td { border-top: 1px solid var(--line); padding: 7px 14px 7px 0; white-space: nowrap; }
td.grow { width: 40%; min-width: 130px; }
td.OK { color: var(--good); } td.DRAINING, td.DRAINED, td.GRACEFULLY_UNMOUNTING, td.UNMOUNTING { color: var(--warn); } td.UNREACHABLE { color: var(--bad); }
.empty { color: var(--dim); }
footer { padding: 0 24px 24px; color: var(--dim); font-size: 12px; }
footer a { color: var(--main); text-decoration: none; margin-right: 12px; }
</style>
</head>
<body>
<header><h1>Mooncake store</h1><span id="where"></span><span id="live">connecting</span></header>
<main>
  <section class="wide"><h2>Pool memory</h2><div class="number" id="used">-</div><div class="note" id="usedNote"></div>
    <div class="bar" id="pool"><i></i><i class="rest"></i></div></section>
  <section><h2>Keys</h2><div class="number" id="keys">-</div><div class="note" id="keysNote"></div><svg id="keysLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section><h2>Lookups found</h2><div class="number" id="hits">-</div><div class="note" id="hitsNote"></div><svg id="hitsLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section><h2>Puts per second</h2><div class="number" id="puts">-</div><div class="note" id="putsNote"></div><svg id="putsLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section><h2>Gets per second</h2><div class="number" id="gets">-</div><div class="note" id="getsNote"></div><svg id="getsLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section><h2>Exists per second</h2><div class="number" id="exists">-</div><div class="note" id="existsNote"></div><svg id="existsLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section><h2>Evicted per second</h2><div class="number" id="evicted">-</div><div class="note" id="evictedNote"></div><svg id="evictedLine" viewBox="0 0 100 38" preserveAspectRatio="none"></svg></section>
  <section class="wide"><h2 id="segmentsTitle">Segments</h2><table><thead><tr><th>name</th><th>status</th><th>protocol</th><th>used</th><th></th><th>size</th></tr></thead><tbody id="segments"></tbody></table></section>
  <section class="wide"><h2 id="clientsTitle">Clients</h2><table><thead><tr><th>id</th><th>segments</th><th>lends</th><th>expires in</th></tr></thead><tbody id="clients"></tbody></table></section>
</main>
<footer><a href="metrics">metrics</a><a href="metrics/summary">summary</a><a href="get_segments_detail">segments</a><a href="get_all_keys">keys</a><a href="health">health</a></footer>
<script>
"use strict";
const $ = id => document.getElementById(id), kSamples = 120, kRows = 500;
const samples = {};
let last = null;
function bytes(n) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; ++unit) n /= 1024;
  return (unit ? n.toFixed(2) : n) + " " + units[unit];
}
function count(n) {
  return n >= 1e9 ? (n / 1e9).toFixed(2) + " G" : n >= 1e6 ? (n / 1e6).toFixed(2) + " M" : n >= 1e4 ? (n / 1e3).toFixed(1) + " k" : n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
}
function duration(ms) {
  const s = Math.floor(ms / 1000);
  return s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}
function show(id, text) { $(id).textContent = text; }
function line(id, value, most) {
  const values = samples[id] = (samples[id] || []).concat(value).slice(-kSamples);
  const top = most || Math.max(...values, 1e-9), step = 100 / (kSamples - 1), start = 100 - step * (values.length - 1);
  const points = values.map((v, i) => (start + i * step).toFixed(2) + " " + (36 - 33 * Math.min(v / top, 1)).toFixed(2));
  const path = "M" + points.join("L");
  $(id).innerHTML = "";
  for (const [d, kind] of [[path + "L100 38L" + start.toFixed(2) + " 38Z", "fill"], [path, ""]]) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", "path");
    element.setAttribute("d", d);
    if (kind) element.setAttribute("class", kind);
    $(id).appendChild(element);
  }
}
function cell(row, text, kind) {
  const element = row.insertCell();
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}
function bar(parent, share) {
  const outer = document.createElement("div"), inner = document.createElement("i");
  outer.className = share > .97 ? "bar hot" : "bar";
  inner.style.width = (100 * share).toFixed(1) + "%";
  outer.appendChild(inner);
  parent.appendChild(outer);
}
function table(id, rows, none, fill) {
  const body = document.createElement("tbody");
  body.id = id;
  for (const entry of rows.slice(0, kRows)) fill(body.insertRow(), entry);
  if (!rows.length) cell(body.insertRow(), none, "empty");
  if (rows.length > kRows) cell(body.insertRow(), "and " + (rows.length - kRows) + " more", "empty");
  $(id).replaceWith(body);
}
function rates(now) {
  const seconds = last ? Math.max((now.uptime_ms - last.uptime_ms) / 1000, 1e-3) : 0;
  const rate = name => last && now[name] >= last[name] ? (now[name] - last[name]) / seconds : 0;
  for (const [id, name] of [["puts", "put_keys"], ["gets", "get_keys"], ["exists", "exist_keys"], ["evicted", "evicted_keys"]]) {
    show(id, count(rate(name)));
    line(id + "Line", rate(name));
    show(id + "Note", count(now[name]) + " so far");
  }
  show("evictedNote", bytes(now.evicted_bytes) + " so far, " + bytes(rate("evicted_bytes")) + "/s");
  show("putsNote", count(now.put_keys) + " so far, " + count(now.refused_for_space) + " refused for space");
  const asked = last ? now.lookup_keys - last.lookup_keys : 0, found = last ? now.lookup_found - last.lookup_found : 0;
  const overall = now.lookup_keys ? now.lookup_found / now.lookup_keys : 0, recent = asked > 0 ? found / asked : null;
  show("hits", now.lookup_keys ? (100 * overall).toFixed(1) + " %" : "-");
  show("hitsNote", recent === null ? "none asked lately" : (100 * recent).toFixed(1) + " % now");
  if (recent !== null) line("hitsLine", recent, 1);
}
function draw(now) {
  const share = now.capacity_bytes ? now.used_bytes / now.capacity_bytes : 0, rest = now.capacity_bytes ? now.resting_bytes / now.capacity_bytes : 0;
  show("where", now.address + "   version " + now.version + "   up " + duration(now.uptime_ms));
  show("used", bytes(now.used_bytes) + " of " + bytes(now.capacity_bytes));
  show("usedNote", now.capacity_bytes ? (100 * share).toFixed(1) + " % used, " + bytes(now.resting_bytes) + " of it resting until leases end" : "no node lends memory yet");
  $("pool").className = share > .97 ? "bar hot" : "bar";
  $("pool").children[0].style.width = (100 * (share - rest)).toFixed(2) + "%";
  $("pool").children[1].style.width = (100 * rest).toFixed(2) + "%";
  show("keys", count(now.keys));
  show("keysNote", count(now.writes_in_progress) + " being written");
  line("keysLine", now.keys);
  rates(now);
  show("segmentsTitle", now.segments.length + (now.segments.length === 1 ? " segment" : " segments"));
  table("segments", now.segments, "no node has lent memory", (row, segment) => {
    cell(row, segment.name);
    cell(row, segment.status, segment.status);
    cell(row, segment.protocol);
    cell(row, bytes(segment.used_bytes));
    bar(cell(row, "", "grow"), segment.capacity_bytes ? segment.used_bytes / segment.capacity_bytes : 0);
    cell(row, bytes(segment.capacity_bytes));
  });
  show("clientsTitle", now.clients.length + (now.clients.length === 1 ? " client" : " clients"));
  table("clients", now.clients, "no client is connected", (row, client) => {
    cell(row, client.id);
    cell(row, client.segments);
    cell(row, client.segments ? bytes(client.lent_bytes) : "nothing");
    cell(row, (client.expires_in_ms / 1000).toFixed(1) + " s");
  });
  last = now;
}
async function poll() {
  try {
    const answer = await fetch("api/v1/overview", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    const now = await answer.json();
    if (last && now.uptime_ms < last.uptime_ms) last = null;
    draw(now);
    show("live", "live");
    $("live").className = "";
  } catch (problem) {
    show("live", "no answer from the master");
    $("live").className = "lost";
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}
poll();
</script>
</body>
</html>
)html";

}  // namespace

std::string_view dashboard_html() noexcept { return kPage; }

}  // namespace mooncake::store
