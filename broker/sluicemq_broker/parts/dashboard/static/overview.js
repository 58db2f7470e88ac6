// The whole broker on one page: how much flows, how long it takes, what lies, who is there.

import { get } from "./api.js";
import { charts } from "./charts.js";
import { card, fill, h, table, tiles } from "./dom.js";
import { count, rate, span, time } from "./format.js";
import { may, noneSeen } from "./session.js";
import { address, queueColumns, withDying } from "./queues.js";

export function overview() {
  const figures = tiles([
    { name: "in", label: "In" }, { name: "out", label: "Out" }, { name: "ready", label: "Ready", href: "#/queues?sort=ready" },
    { name: "flight", label: "At workers", href: "#/workers" }, { name: "oldest", label: "Oldest waits", href: "#/queues?sort=oldest" },
    { name: "scheduled", label: "Scheduled", href: "#/queues?sort=scheduled" },
    { name: "dead", label: "Dead letters", href: "#/dead" }, { name: "workers", label: "Workers", href: "#/workers" },
  ]);
  const notices = h("ul", { class: "notices", hidden: true });
  const operates = may("operate"); // who may not sees queues, and nothing of the brokers
  const drawn = operates ? charts("broker", "*") : { element: null, happened: null, close() {} };
  const busiest = table("The busiest queues", queueColumns({ sparks: false }), { empty: noneSeen("read", "queues", "no queues yet: the first push makes one") });
  const brokers = table("Brokers", [
    { title: "Broker", kind: "name", cell: (row) => (row.here ? { text: `${row.name} (this one)` } : row.name) },
    { title: "Version", more: true, cell: (row) => row.version || "older" },
    { title: "There since", more: true, cell: (row) => time(row.since) },
    { title: "Is", kind: "grow", cell: (row) => stands(row) },
  ], { key: (row) => `${row.name} ${row.since}` });
  const attention = table("Queues that need attention", [
    { title: "Queue", kind: "name", cell: (row) => h("a", { href: address(row.name) }, row.name) },
    { title: "Why", kind: "grow", cell: why },
    { title: "Ready", num: true, cell: (row) => count(row.ready) },
  ], { empty: "None: no queue is paused, no job has waited for a minute, none died lately." });
  const about = h("p", { class: "small" });
  const element = h("div", {},
    h("div", { class: "title" }, h("h1", {}, "Overview"), about),
    notices, figures.element, drawn.element, drawn.happened,
    h("div", { class: "columns" },
      card("Busiest queues", { acts: h("a", { href: "#/queues" }, "all queues"), bare: busiest.element }),
      h("div", {}, card("To look at", { bare: attention.element }), operates && card("Brokers on this database", { bare: brokers.element }))));
  let closed = false;
  let timer = null;

  async function loadBrokers() {
    try { const found = await get("/brokers"); if (!closed) brokers.update(found.brokers); } catch { /* the head says so */ }
    if (!closed) timer = setTimeout(loadBrokers, 10000);
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
    const words = `${broker.name}, version ${broker.version}, up ${span(broker.uptime)}, ${operates ? `${count(broker.connections)} connections, ` : ""}${count(totals.queues)} queues`;
    if (about.textContent !== words) about.textContent = words;
    notice(notices, totals, problems);
  }

  return { element, update, view: { sort: "in", limit: 8 }, close() { closed = true; clearTimeout(timer); drawn.close(); } };
}

/** Whether a broker is there; of one that is not, its last sign. */
function stands({ ended, seen }) {
  if (ended !== null) return { text: `dead: last heartbeat at ${time(seen).slice(11)}, declared dead at ${time(ended).slice(11)}`, tone: "bad" };
  return { text: "there" };
}

/** What is wrong with a queue, in words. */
function why(row) {
  const words = [
    row.dying ? `jobs die: ${count(row.dying)} lately` : "",
    row.paused.length ? `${row.paused.join(" and ")} paused` : "",
    row.ready && row.oldest_ready_age > 60 ? `a job has waited for ${span(row.oldest_ready_age)}` : "",
    row.ready && !row.workers ? "no workers here" : "",
  ];
  return { text: words.filter(Boolean).join("; "), tone: row.dying ? "bad" : "warn" };
}

function notice(list, totals, problems) {
  const lines = [
    ...Object.entries(problems).map(([what, why]) => ["bad", h("span", {}, h("strong", {}, what), `: ${why}`)]),
    totals.ready && !totals.workers ? ["", `${count(totals.ready)} jobs are ready, and no worker is connected to this broker.`] : null,
  ].filter(Boolean);
  const whole = lines.map(([kind, line]) => kind + (line.textContent ?? line)).join("\n");
  if (list.dataset.whole === whole) return;
  list.dataset.whole = whole;
  list.hidden = !lines.length;
  fill(list, lines.map(([kind, line]) => h("li", { class: kind || null }, line)));
}
