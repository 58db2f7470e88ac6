// All brokers on one page: what needs attention, how much flows, how long it takes, who is there.

import { get } from "./api.js";
import { charts } from "./charts.js";
import { bar, card, fill, h, say, some, table, tiles } from "./dom.js";
import { count, rate, span, time } from "./format.js";
import { may, noneSeen } from "./session.js";
import { address, queueColumns, withDying } from "./queues.js";

export function overview() {
  const figures = tiles([
    { name: "in", label: "In", href: "#/queues?sort=in" }, { name: "out", label: "Out", href: "#/queues?sort=out" }, { name: "ready", label: "Ready", href: "#/queues?sort=ready" },
    { name: "flight", label: "At workers", href: "#/workers" }, { name: "oldest", label: "Oldest waits", href: "#/queues?sort=oldest" },
    { name: "scheduled", label: "Scheduled", href: "#/queues?sort=scheduled" },
    { name: "dead", label: "Dead letters", href: "#/dead" }, { name: "workers", label: "Workers", href: "#/workers" },
  ]);
  const notices = h("ul", { class: "notices", hidden: true });
  const operates = may("operate"); // who may not sees queues, and nothing of the brokers
  const drawn = operates ? charts("broker", "*") : { element: null, happened: null, close() {} };
  const busiest = table("The busiest queues", queueColumns({ sparks: false }), { empty: noneSeen("read", "queues", "no queues yet: the first push makes one") });
  const brokers = some(table("Brokers", [
    { title: "Broker", kind: "name", cell: (row) => ({ text: row.here ? `${row.name} (this one)` : row.name, title: `version ${row.version || "older"}, since ${time(row.since)}` }) },
    { title: "State", kind: "short", cell: state },
    { title: "In/s", num: true, cell: (row) => (row.load ? rate(row.load.rates.pushed) : "–") },
    { title: "Out/s", num: true, cell: (row) => (row.load ? rate(row.load.rates.committed) : "–") },
    { title: "Workers", num: true, more: true, cell: (row) => (row.load ? count(row.load.workers) : "–") },
    { title: "Busy", num: true, cell: (row) => (row.load ? bar(row.load.busy) : "–") },
  ], { key: (row) => `${row.name} ${row.since}` }), 6);
  const attention = table("Queues that need attention", [
    { title: "Queue", kind: "name", cell: (row) => h("a", { href: address(row.name) }, row.name) },
    { title: "Why", kind: "grow", cell: why },
    { title: "Ready", num: true, cell: (row) => count(row.ready) },
  ], { empty: "None: no queue is paused, no job has waited for a minute, none died lately." });
  const about = h("p", { class: "small" });
  const element = h("div", {},
    h("div", { class: "title" }, h("h1", {}, "Overview"), about),
    notices, figures.element,
    h("div", { class: "columns" }, card("Needs attention", { bare: attention.element }), drawn.happened),
    drawn.element,
    h("div", { class: "columns" },
      card("Busiest queues", { acts: h("a", { href: "#/queues?sort=in" }, "all queues"), bare: busiest.element }),
      operates && card("Brokers", { acts: h("a", { href: "#/workers" }, "workers"), bare: brokers.element })));
  let closed = false;
  let timer = null;

  async function loadBrokers() {
    try { const found = await get("/brokers"); if (!closed) brokers.update(found.brokers.sort(living)); } catch (error) { if (!closed) brokers.fail(`not known now: ${error.message}`); }
    if (!closed) timer = setTimeout(loadBrokers, 5000);
  }
  if (operates) loadBrokers();

  function update({ totals, queues, broker, problems, attention: found, dying }) {
    attention.update(withDying(found, dying));
    figures.update("in", rate(totals.rates.pushed), "/s", "in");
    figures.update("out", rate(totals.rates.committed), "/s", "out");
    figures.update("ready", count(totals.ready));
    figures.update("flight", count(totals.in_flight));
    figures.update("oldest", totals.ready ? span(totals.oldest_ready_age) : "–", "", totals.oldest_ready_age > 300 ? "warn" : "");
    figures.update("scheduled", count(totals.scheduled));
    figures.update("dead", count(totals.dead), "", totals.dead ? "bad" : "");
    figures.update("workers", count(totals.workers));
    busiest.update(withDying(queues, dying));
    say(about, `${operates && broker.brokers > 1 ? `all ${broker.brokers} brokers together, seen from ` : ""}${broker.name}, version ${broker.version}, up ${span(broker.uptime)}, ${operates ? `${count(broker.connections)} connections, ` : ""}${count(totals.queues)} queues`);
    notice(notices, totals, problems);
  }

  return { element, update, view: { sort: "in", limit: 8 }, close() { closed = true; clearTimeout(timer); drawn.close(); } };
}

/** Brokers that run come first, then those that were silent last. */
const living = (one, other) => (one.ended || Infinity) < (other.ended || Infinity) ? 1 : (one.ended || Infinity) > (other.ended || Infinity) ? -1 : 0;

/** Whether a broker runs; of one that does not, its last sign. */
function state({ ended, seen }) {
  if (ended !== null) return { text: `silent since ${time(seen).slice(11)}`, title: `declared dead at ${time(ended)}`, tone: "bad" };
  return { text: "running" };
}

/** What is wrong with a queue, in words. */
function why(row) {
  const words = [
    row.dying ? `jobs die: ${count(row.dying)} lately` : "",
    row.paused.length ? `${row.paused.join(" and ")} paused` : "",
    row.ready && row.oldest_ready_age > 60 ? `a job has waited for ${span(row.oldest_ready_age)}` : "",
    row.ready && !row.workers ? "no workers" : "",
    row.full ? "full: it takes no more jobs" : "",
    row.held_back ? `${count(row.held_back)} tenants at their limit` : "",
  ];
  return { text: words.filter(Boolean).join("; "), tone: row.dying ? "bad" : "warn" };
}

function notice(list, totals, problems) {
  const lines = [
    ...Object.entries(problems).map(([what, why]) => ["bad", h("span", {}, h("strong", {}, PARTS[what] || what), `: ${why}`)]),
    problems.store ? ["", "The counts below are as they were before."] : null,
    totals.ready && !totals.workers ? ["", `${count(totals.ready)} jobs are ready, and no worker is connected.`] : null,
  ].filter(Boolean);
  const whole = lines.map(([kind, line]) => kind + (line.textContent ?? line)).join("\n");
  if (list.dataset.whole === whole) return;
  list.dataset.whole = whole;
  list.hidden = !lines.length;
  fill(list, lines.map(([kind, line]) => h("li", { class: kind || null }, line)));
}
const PARTS = { store: "MongoDB", lease: "Lease", doors: "Doors" };
