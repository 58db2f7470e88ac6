// Workers, schedules, streams and what follows them, long orders.

import { button } from "./actions.js";
import { enc, get, post } from "./api.js";
import { card, h, table } from "./dom.js";
import { ago, bytes, count, span, time } from "./format.js";
import { jobAddress } from "./jobs.js";
import { address } from "./queues.js";
import { noneSeen } from "./session.js";

const link = (name) => h("a", { href: address(name) }, name);

/** A page that asks again every few seconds. */
function asking(title, note, parts, ask, every) {
  const trouble = h("p", { class: "empty", hidden: true });
  let closed = false;
  let timer = null;
  async function load() {
    clearTimeout(timer);
    try { const found = await ask(); if (!closed) { trouble.hidden = true; parts.forEach((each) => each.show(found)); } } catch (error) { if (!closed) { trouble.hidden = false; trouble.textContent = error.message; } }
    if (!closed) timer = setTimeout(load, every);
  }
  load();
  parts.forEach((each) => { each.reload = load; });
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, title), h("p", { class: "small" }, note)), trouble, parts.map((each) => each.element)),
    close() { closed = true; clearTimeout(timer); },
  };
}

export function workerTable(withQueue = false) {
  return table("Workers", [
    { title: "Worker", kind: "name long", cell: (row) => row.name },
    withQueue && { title: "Queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "Through", cell: (row) => row.door },
    { title: "Since", more: true, cell: (row) => ({ text: span(row.connected), title: time(Date.now() / 1000 - row.connected) }) },
    { title: "Has", num: true, cell: (row) => ({ text: `${count(row.in_flight)}/${count(row.prefetch)}`, tone: row.in_flight ? "" : "zero" }) },
    { title: "Jobs", kind: "grow", more: true, cell: (row) => h("span", {}, row.jobs.slice(0, 3).map((job, at) => [at ? ", " : "", h("a", { href: jobAddress(row.queue, job.id), class: "mono" }, job.id), ` ${span(job.seconds)}`]), row.in_flight > 3 ? ` and ${count(row.in_flight - 3)} more` : "") },
    { title: "Overdue", num: true, cell: (row) => ({ text: count(row.overdue), tone: row.overdue ? "warn" : "zero" }) },
  ].filter(Boolean), { key: (row) => `${row.queue} ${row.name} ${row.door}`, empty: "no workers are connected here" });
}

export function workers() {
  const list = workerTable(true);
  const part = { element: card("Connected now", { bare: list.element }), show: (found) => list.update(found.workers) };
  return asking("Workers", "at this broker", [part], () => get("/workers"), 3000);
}

export function schedules() {
  let reload = () => {};
  const buttons = (row) => {
    const path = `/schedules/${enc(row.name)}`;
    const make = (words, verb, text) => button(words, { on: row.queue, label: `${words} ${row.name}`, ask: () => ({ title: `${words} ${row.name}?`, text, yes: words, after: () => `${row.name}: done` }), order: () => post(`${path}/${verb}`), done: () => reload() });
    return h("span", { class: "acts" },
      row.paused ? make("Resume", "resume", "It goes on with its next run; missed runs are skipped.") : make("Pause", "pause", "No job of it is pushed until it is resumed."),
      make("Run now", "run", "One job of it is pushed now."));
  };
  const list = table("Schedules", [
    { title: "Schedule", kind: "name", cell: (row) => row.name },
    { title: "Queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "When", cell: (row) => (row.every ? `every ${span(row.every)}` : `${row.cron} ${row.timezone}`) },
    { title: "Next", cell: (row) => (row.problem ? { text: row.problem, tone: "bad" } : row.paused ? { text: "paused", tone: "warn" } : ago(row.next_at, Date.now() / 1000)) },
    { title: "Last", more: true, cell: (row) => ago(row.last_at, Date.now() / 1000) },
    { title: "Pushed", num: true, more: true, cell: (row) => count(row.pushed) },
    { title: "Skipped", num: true, more: true, cell: (row) => count(row.skipped || 0) },
    { title: "", hidden: "Actions", kind: "grow how", cell: buttons },
  ], { empty: noneSeen("manage", "schedules", "no recurring jobs: sluicemq schedule add, or [schedules.NAME]") });
  const part = { element: card("Recurring jobs", { bare: list.element }), show: (found) => list.update(found.schedules) };
  const page = asking("Schedules", "", [part], () => get("/schedules"), 5000);
  reload = part.reload;
  return page;
}

export function streams() {
  const lag = (row) => ({ text: count(row.behind), tone: row.behind > 1000 ? "warn" : row.behind ? "" : "zero" });
  const late = (row) => (row.seconds_behind === null ? "–" : { text: span(row.seconds_behind), tone: row.seconds_behind > 60 ? "warn" : row.seconds_behind ? "" : "zero" });
  const kept = table("Streams", [
    { title: "Stream", kind: "name", cell: (row) => row.name },
    { title: "Messages", num: true, cell: (row) => count(row.messages) },
    { title: "First", num: true, more: true, cell: (row) => count(row.first) },
    { title: "Last", num: true, cell: (row) => count(row.last) },
    { title: "Size", num: true, cell: (row) => bytes(row.bytes) },
    { title: "Last message", more: true, kind: "grow", cell: (row) => ago(row.last_at, Date.now() / 1000) },
  ], { empty: noneSeen("subscribe", "streams", "no streams yet: the first message makes one") });
  const subscriptions = table("Subscriptions", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Stream", kind: "name", cell: (row) => row.stream },
    { title: "Behind", num: true, cell: lag },
    { title: "Late", num: true, cell: late },
    { title: "Watermark", num: true, more: true, cell: (row) => count(row.watermark) },
    { title: "Held by", kind: "grow", cell: (row) => row.holder || "nobody" },
    { title: "For", more: true, cell: (row) => row.kind || "–" },
  ], { key: (row) => `${row.stream} ${row.name}`, empty: "no subscriptions" });
  const routes = table("Routes", [
    { title: "From stream", kind: "name", cell: (row) => row.stream },
    { title: "Topics", cell: (row) => row.topics.join(", ") || "all" },
    { title: "Into queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "Behind", num: true, cell: lag },
    { title: "Late", num: true, cell: late },
    { title: "At", kind: "grow", more: true, cell: (row) => row.holder || "nobody" },
  ], { key: (row) => `${row.stream} ${row.subscription} ${row.queue}`, empty: "no routes: [[routes]] in the configuration" });
  return asking("Streams", "", [
    { element: card("Messages", { bare: kept.element }), show: (found) => kept.update(found.streams) },
    { element: card("Subscriptions", { bare: subscriptions.element }), show: (found) => subscriptions.update(found.subscriptions) },
    { element: card("Routes into queues", { bare: routes.element }), show: (found) => routes.update(found.routes) },
  ], () => get("/streams"), 3000);
}

export function operations() {
  let reload = () => {};
  const list = table("Operations", [
    { title: "Task", kind: "name", cell: (row) => ({ text: row.kind, title: row.id }) },
    { title: "Queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "State", cell: (row) => ({ text: row.state, tone: row.state === "failed" || row.state === "interrupted" ? "bad" : "" }) },
    { title: "Done", num: true, cell: (row) => count(row.done) },
    { title: "Of about", num: true, cell: (row) => count(row.total) },
    { title: "Begun", cell: (row) => ago(row.started_at, Date.now() / 1000) },
    { title: "At", more: true, cell: (row) => row.broker },
    { title: "", hidden: "Actions", kind: "grow", cell: (row) => (row.state === "running"
      ? button("Cancel", { on: row.queue, danger: true, ask: () => ({ title: `Cancel ${row.kind} of ${row.queue}?`, text: "It ends after the jobs that it is working on; nothing is undone.", yes: "Cancel it", danger: true }), order: () => post(`/operations/${row.id}/cancel`), done: () => reload() })
      : h("span", { class: "small" }, row.error ? row.error.message : "")) },
  ], { key: (row) => row.id, empty: "no operations in the last day" });
  const part = { element: card("Operations on many jobs", { bare: list.element }), show: (found) => list.update(found.operations) };
  const page = asking("Operations", "purges, redrives and deletions of the last day, at all brokers", [part], () => get("/operations"), 2000);
  reload = part.reload;
  return page;
}

/** What is kept, what bounds it, and how much of that bound is used; the nearest to its bound first. */
export function kept() {
  const some = (value, words) => (value === null ? { text: "–", tone: "zero" } : words(value));
  const used = (value) => ({ text: `${Math.round(100 * value)} %`, tone: value >= 1 ? "bad" : value >= 0.9 ? "warn" : value < 0.005 ? "zero" : "" });
  const name = (row) => (row.kind === "dead letters" ? h("a", { href: `#/dead?queue=${encodeURIComponent(row.name)}` }, row.name) : row.name);
  const list = table("Kept", [
    { title: "What", kind: "name", cell: (row) => row.kind },
    { title: "Of", kind: "name", cell: name },
    { title: "How many", num: true, cell: (row) => some(row.number, count) },
    { title: "Size", num: true, more: true, cell: (row) => some(row.bytes, bytes) },
    { title: "Oldest", more: true, cell: (row) => some(row.oldest, (at) => ago(at, Date.now() / 1000)) },
    { title: "Bound", kind: "grow", more: true, cell: (row) => row.bound },
    { title: "Used", num: true, cell: (row) => some(row.used, used) },
  ], { key: (row) => `${row.kind} ${row.name}`, empty: "nothing was looked at yet" });
  const order = (one, other) => (other.used ?? -1) - (one.used ?? -1);
  const part = { element: card("Bounds", { bare: list.element }), show: (found) => list.update([...found.kept].sort(order)) };
  return asking("Kept", "what is kept, up to which bound; looked at once a minute", [part], () => get("/kept"), 10000);
}
