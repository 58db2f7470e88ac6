// Recurring jobs: listed, added, changed, run by hand.

import { button } from "./actions.js";
import { enc, get, post } from "./api.js";
import { card, h, table } from "./dom.js";
import { ago, count, span } from "./format.js";
import { asking, link } from "./others.js";
import { noneSeen } from "./session.js";

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
    { title: "Skipped", num: true, more: true, cell: (row) => count(row.skipped ?? 0) },
    { title: "", hidden: "Actions", kind: "grow how", cell: buttons },
  ], { empty: noneSeen("manage", "schedules", "no recurring jobs: sluicemq schedule add, or [schedules.NAME]") });
  const part = { element: card("Recurring jobs", { bare: list.element }), show: (found) => list.update(found.schedules) };
  const page = asking("Schedules", "", [part], () => get("/schedules"), 5000);
  reload = page.reload;
  return page;
}
