// Workers, operations on many jobs, and what is stored.

import { button } from "./actions.js";
import { get, post } from "./api.js";
import { browse } from "./browse.js";
import { bar, card, h, some, table } from "./dom.js";
import { ago, bytes, count, span, time } from "./format.js";
import { jobAddress } from "./jobs.js";
import { address } from "./queues.js";

export const link = (name) => h("a", { href: address(name) }, name);

/** A page that asks again every few seconds; `parts`: [{element, show(found), fail(words)}]. */
export function asking(title, words, parts, ask, every) {
  const trouble = h("p", { class: "empty", role: "status", hidden: true });
  let closed = false;
  let timer = null;
  async function load() {
    clearTimeout(timer);
    try {
      const found = await ask();
      if (!closed) { trouble.hidden = true; parts.forEach((each) => each.show(found)); }
    } catch (error) {
      if (!closed) { trouble.hidden = false; trouble.textContent = error.message; parts.forEach((each) => each.fail?.(`not known now: ${error.message}`)); }
    }
    if (!closed) timer = setTimeout(load, every);
  }
  load();
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, title), h("p", { class: "small" }, words)), trouble, parts.map((each) => each.element)),
    reload: load,
    close() { closed = true; clearTimeout(timer); },
  };
}

function workerColumns(withQueue) {
  return [
    { title: "Worker", kind: "name long", cell: (row) => row.name, by: (row) => row.name },
    withQueue && { title: "Queue", kind: "name", cell: (row) => link(row.queue), by: (row) => row.queue },
    { title: "Broker", more: true, cell: (row) => row.broker || "this one", by: (row) => row.broker },
    { title: "Door", more: true, cell: (row) => row.door, by: (row) => row.door },
    { title: "Connected", more: true, cell: (row) => ({ text: span(row.connected), title: time(Date.now() / 1000 - row.connected) }), by: (row) => row.connected },
    { title: "Busy", num: true, cell: (row) => (row.in_flight ? bar(row.in_flight / row.prefetch, `${count(row.in_flight)} of ${count(row.prefetch)}`, "") : { text: `0 of ${count(row.prefetch)}`, tone: "zero" }), by: (row) => row.in_flight / row.prefetch },
    { title: "Working on", kind: "grow", more: true, cell: (row) => h("span", {}, row.jobs.slice(0, 3).map((job, at) => [at ? ", " : "", h("a", { href: jobAddress(row.queue, job.id), class: "mono" }, job.id), `${job.kind ? ` ${job.kind}` : ""} for ${span(job.seconds)}`]), row.in_flight > 3 ? ` and ${count(row.in_flight - 3)} more` : ""), by: (row) => Math.max(0, ...row.jobs.map((job) => job.seconds)) },
    { title: "Overdue", num: true, more: true, cell: (row) => ({ text: count(row.overdue), tone: row.overdue ? "warn" : "zero" }), by: (row) => row.overdue },
    { title: "State", kind: "short", cell: state, by: (row) => (row.stuck?.length || 0) * 2 + Number(row.quiet || false) },
    withQueue && { title: "", hidden: "Actions", kind: "how", cell: (row) => (row.broker ? "" : orders(row)) },
  ];
}

/** A stuck worker goes on with jobs that are no longer its own, so it takes no others. */
function state(row) {
  const [first] = row.stuck || [];
  if (first) return { text: `stuck with ${first.id} for ${span(first.seconds)}`, title: "its handler has not ended: stop the worker, and start it again", tone: "bad" };
  return row.quiet ? { text: "quiet: gets no more jobs", tone: "warn" } : { text: "works", tone: "zero" };
}

/** Give a worker no more jobs, or end it; all of its name at this broker. */
function orders(row) {
  const make = (words, verb, text, danger) => button(words, { on: row.queue, danger, label: `${words} ${row.name}`, ask: () => ({ title: `${words} ${row.name}?`, text, yes: words, danger, after: () => `${row.name}: done` }), order: () => post(`/workers/${verb}`, { name: row.name }) });
  return h("span", { class: "acts" },
    row.quiet ? null : make("Quiet", "quiet", "All workers of this name here get no more jobs until they connect again; what they have goes on.", false),
    make("Stop", "stop", "All workers of this name here get no more jobs, end what they have, and then end themselves.", true));
}

const workerKey = (row) => `${row.broker} ${row.queue} ${row.name} ${row.door} ${row.number}`;

/** The workers at all brokers; those of one name get a number each. */
export function everywhere({ workers, elsewhere = [] }) {
  const named = new Map();
  return [...workers, ...elsewhere].map((row) => {
    const name = workerKey({ ...row, number: 0 }), number = named.get(name) || 0;
    named.set(name, number + 1);
    return { ...row, number };
  });
}

export const workerTable = () => table("Workers", workerColumns(false).filter(Boolean), { key: workerKey, empty: "no workers are connected" });

/** Workers that have left in the last hour. */
export function goneTable(withQueue) {
  return table("Workers that have gone", [
    { title: "Worker", kind: "name long", cell: (row) => row.name },
    withQueue && { title: "Queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "Gone", cell: (row) => ago(row.at, Date.now() / 1000) },
    { title: "Was connected", more: true, cell: (row) => span(row.connected) },
    { title: "With jobs", num: true, cell: (row) => ({ text: count(row.jobs), tone: row.jobs ? "warn" : "zero" }) },
    { title: "Broker", kind: "grow", more: true, cell: (row) => row.broker },
  ].filter(Boolean), { key: (row) => `${row.broker} ${row.queue} ${row.name} ${row.at}`, empty: "no worker has left in the last hour" });
}

export function workers({ asked }) {
  const list = browse("Workers", workerColumns(true), { path: "workers", asked, text: (row) => `${row.name} ${row.queue} ${row.broker}`, key: workerKey, empty: asked.get("filter") ? "no matching worker" : "no workers are connected" });
  const gone = goneTable(true);
  const left = some(gone, 10);
  return asking("Workers", "at all brokers", [
    { element: card("Connected now", { acts: list.filter, bare: list.element }), show: (found) => list.update(everywhere(found)), fail: list.fail },
    { element: card("Gone in the last hour", { bare: left.element }), show: (found) => left.update(found.gone || []), fail: gone.fail },
  ], () => get("/workers"), 3000);
}

export function operations({ asked }) {
  let reload = () => {};
  const list = browse("Operations", [
    { title: "Operation", kind: "name", cell: (row) => ({ text: row.kind, title: row.id }), by: (row) => row.kind },
    { title: "Queue", kind: "name", cell: (row) => link(row.queue), by: (row) => row.queue },
    { title: "State", cell: (row) => ({ text: row.state, tone: row.state === "failed" || row.state === "interrupted" ? "bad" : "" }), by: (row) => row.state },
    { title: "Done", num: true, cell: (row) => count(row.done) },
    { title: "Of about", num: true, cell: (row) => (row.total && row.state === "running" ? bar(row.done / row.total, count(row.total), "") : count(row.total)) },
    { title: "Begun", cell: (row) => ago(row.started_at, Date.now() / 1000), by: (row) => row.started_at || 0 },
    { title: "Broker", more: true, cell: (row) => row.broker },
    { title: "", hidden: "Actions", kind: "grow", cell: (row) => (row.state === "running"
      ? button("Cancel", { on: row.queue, danger: true, ask: () => ({ title: `Cancel ${row.kind} of ${row.queue}?`, text: "It ends after the jobs that it is working on; nothing is undone.", yes: "Cancel it", danger: true }), order: () => post(`/operations/${row.id}/cancel`), done: () => reload() })
      : h("span", { class: "small" }, row.error ? row.error.message : "")) },
  ], { path: "operations", asked, text: (row) => `${row.kind} ${row.queue} ${row.state} ${row.broker}`, key: (row) => row.id, empty: "no operations in the last day" });
  const part = { element: card("Operations on many jobs", { acts: list.filter, bare: list.element }), show: (found) => list.update(found.operations), fail: list.fail };
  const page = asking("Operations", "purges, redrives and deletions of the last day, at all brokers", [part], () => get("/operations"), 2000);
  reload = page.reload;
  return page;
}

/** What is stored, what limits it, and how much of that limit is used; the nearest to its limit first. */
export function kept({ asked }) {
  const known = (value, words) => (value === null ? { text: "–", tone: "zero" } : words(value));
  const name = (row) => (row.kind === "dead letters" ? h("a", { href: `#/dead?queue=${encodeURIComponent(row.name)}` }, row.name) : row.name);
  const list = browse("Storage", [
    { title: "Kind", kind: "name", cell: (row) => row.kind, by: (row) => row.kind },
    { title: "Name", kind: "name", cell: name, by: (row) => row.name },
    { title: "Number", num: true, cell: (row) => known(row.number, count), by: (row) => row.number ?? -1 },
    { title: "Size", num: true, more: true, cell: (row) => known(row.bytes, bytes), by: (row) => row.bytes ?? -1 },
    { title: "Oldest", more: true, cell: (row) => known(row.oldest, (at) => ago(at, Date.now() / 1000)), by: (row) => -(row.oldest ?? 1e12) },
    { title: "Limit", kind: "grow", more: true, cell: (row) => row.bound },
    { title: "Used", num: true, cell: (row) => known(row.used, (share) => bar(share)), by: (row) => row.used ?? -1 },
  ], { path: "storage", asked, text: (row) => `${row.kind} ${row.name}`, key: (row) => `${row.kind} ${row.name}`, empty: "not measured yet: that is done once a minute" });
  const order = (one, other) => (other.used ?? -1) - (one.used ?? -1);
  const part = { element: card("What is stored", { acts: list.filter, bare: list.element }), show: (found) => list.update([...found.kept].sort(order)), fail: list.fail };
  return asking("Storage", "what is stored, and its limits; measured once a minute", [part], () => get("/kept"), 10000);
}
