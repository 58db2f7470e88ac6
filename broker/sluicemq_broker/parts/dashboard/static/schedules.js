// Recurring jobs: listed, added, changed, run by hand; one with its latest and its next runs.

import { button, field } from "./actions.js";
import { enc, get, post } from "./api.js";
import { browse } from "./browse.js";
import { card, fill, h, table } from "./dom.js";
import { ago, count, span, time } from "./format.js";
import { jobAddress } from "./jobs.js";
import { asking, link } from "./others.js";
import { noneSeen } from "./session.js";

const page = (name) => `#/schedules/${enc(name)}`;
const when = (row) => (row.every ? `every ${span(row.every)}` : `${row.cron} ${row.timezone}`);
const next = (row) => (row.problem ? { text: row.problem, tone: "bad" } : row.paused ? { text: "paused", tone: "warn" } : ago(row.next_at, Date.now() / 1000));

export function schedules({ asked, parts }) {
  if (parts.length > 1) return one(parts[1]);
  let reload = () => {};
  const list = browse("Schedules", [
    { title: "Schedule", kind: "name", cell: (row) => h("a", { href: page(row.name) }, row.name), by: (row) => row.name },
    { title: "Queue", kind: "name", cell: (row) => link(row.queue), by: (row) => row.queue },
    { title: "When", cell: when },
    { title: "Next", cell: next, by: (row) => -row.next_at },
    { title: "Last", more: true, cell: (row) => ago(row.last_at, Date.now() / 1000), by: (row) => row.last_at ?? 0 },
    { title: "Pushed", num: true, more: true, cell: (row) => count(row.pushed), by: (row) => row.pushed },
    { title: "Skipped", num: true, more: true, cell: (row) => count(row.skipped ?? 0), by: (row) => row.skipped ?? 0 },
    { title: "", hidden: "Actions", kind: "grow how", cell: (row) => h("span", { class: "acts" }, orders(row, () => reload())) },
  ], { path: "schedules", asked, text: (row) => `${row.name} ${row.queue}`, key: (row) => row.name, empty: asked.get("filter") ? "no matching schedule" : noneSeen("manage", "schedules", "no recurring jobs: add one here, or with sluicemq schedules add, or in [schedules.NAME]") });
  const part = { element: card("Recurring jobs", { acts: [list.filter, edit("Add a schedule", {}, () => reload())], bare: list.element }), show: (found) => list.update(found.schedules), fail: list.fail };
  const shown = asking("Schedules", "", [part], () => get("/schedules"), 5000);
  reload = shown.reload;
  return shown;
}

/** Pause or resume a schedule, or run it now. */
function orders(row, done) {
  const make = (words, verb, text, danger = false) => button(words, { on: row.queue, danger, label: `${words} ${row.name}`, ask: () => ({ title: `${words} ${row.name}?`, text, yes: words, danger, after: () => `${row.name}: done` }), order: () => post(`/schedules/${enc(row.name)}/${verb}`), done });
  return [
    row.paused ? make("Resume", "resume", "It goes on with its next run; missed runs are skipped.") : make("Pause", "pause", "No job of it is pushed until it is resumed."),
    make("Run now", "run", "One job of it is pushed now."),
  ];
}

/** A form for a new schedule, or for one that is there. */
function edit(words, { schedule = null, payload = "" }, done) {
  const row = schedule || { name: "", queue: "", cron: "0 3 * * *", timezone: Intl.DateTimeFormat().resolvedOptions().timeZone, misfire: "one", options: {} };
  const text = (value, more = {}) => h("input", { type: "text", value, autocomplete: "off", spellcheck: "false", ...more });
  const fields = {
    name: text(row.name, { required: true, readonly: Boolean(schedule) }), queue: text(row.queue, { required: true }),
    cron: text(row.cron || ""), timezone: text(row.timezone || "UTC"), every: text(row.every || "", { inputmode: "decimal" }),
    misfire: h("select", {}, [["one", "run once"], ["all", "run all"], ["skip", "skip them"]].map(([value, label]) => h("option", { value, selected: value === row.misfire }, label))),
  };
  const content = h("textarea", { spellcheck: "false" });
  content.value = payload;
  const options = h("textarea", { spellcheck: "false", rows: 2 });
  options.value = Object.keys(row.options).length ? JSON.stringify(row.options) : "";
  return button(words, {
    on: schedule ? row.queue : null, done,
    ask: () => ({ title: schedule ? `Change ${row.name}` : "Add a schedule", yes: schedule ? "Change it" : "Add it", text: row.from_configuration ? "It comes from a file, whose values are back when the broker starts again." : "", body: [
      h("div", { class: "grid" }, field("Name", fields.name), field("Queue", fields.queue)),
      h("div", { class: "grid" }, field("Cron", fields.cron, "minute hour day month weekday"), field("Time zone", fields.timezone), field("Or every, seconds", fields.every, "leave Cron empty")),
      field("Missed runs", fields.misfire), field("Payload", content, "text, such as JSON"), field("Options of its jobs", options, 'JSON, such as {"priority": 5}'),
    ], after: (made) => `${made.name}: next run at ${time(made.next_at)}` }),
    order: () => {
      const { name, queue, cron, timezone, every, misfire } = Object.fromEntries(Object.entries(fields).map(([key, each]) => [key, each.value.trim()]));
      const times = every ? { every: Number(every) } : { cron, timezone };
      if (every && cron) throw new Error("give either Cron or a number of seconds");
      return post(`/schedules/${enc(name)}/add`, { queue, payload: content.value, ...times, misfire, options: options.value.trim() ? JSON.parse(options.value) : {} });
    },
  });
}

/** One schedule. */
function one(name) {
  const acts = h("div", { class: "acts" });
  const facts = h("dl", { class: "facts" });
  const coming = h("ol", { class: "small" });
  const content = h("pre", { class: "content", tabindex: "0", "aria-label": "Payload" });
  const runs = table("Latest runs", [
    { title: "Job", kind: "name", cell: (row) => h("a", { href: jobAddress(queue, row.id), class: "mono" }, row.id) },
    { title: "State", cell: (row) => ({ text: row.state, tone: row.state === "dead" ? "bad" : "" }) },
    { title: "Pushed", cell: (row) => ago(row.created_at, Date.now() / 1000) },
    { title: "Ended", kind: "grow", cell: (row) => ago(row.ended_at, Date.now() / 1000) },
  ], { key: (row) => row.id, empty: "No job of a run is there: done ones go, unless keep_done keeps them." });
  let queue = "";
  let shown = null;
  const place = asking(name, "", [{ fail: runs.fail, element: [
    h("div", { class: "columns" }, card("Schedule", { body: facts }), card("Next runs", { body: coming })),
    card("Latest runs", { bare: runs.element }), card("Payload", { body: content }),
  ], show(found) {
    const row = found.schedule;
    queue = row.queue;
    const fact = (term, value) => [h("dt", {}, term), h("dd", {}, value)];
    fill(facts, fact("queue", link(queue)), fact("when", when(row)), fact("state", row.problem || (row.paused ? "paused" : "running")), fact("missed runs", { one: "run once", all: "run all", skip: "skipped" }[row.misfire] || row.misfire),
      fact("pushed", count(row.pushed)), fact("skipped", count(row.skipped ?? 0)), fact("last run", row.last_at ? time(row.last_at) : "none yet"), fact("options", Object.keys(row.options).length ? JSON.stringify(row.options) : "none"),
      fact("added by", row.from_configuration ? "a file" : row.added_by || "anybody"));
    fill(coming, found.next.map((at) => h("li", {}, `${time(at)}, ${ago(at, Date.now() / 1000).text}`)));
    if (!found.next.length) fill(coming, h("p", {}, row.problem || "none"));
    content.textContent = typeof found.payload === "string" ? found.payload : "(no text)";
    runs.update(found.runs);
    const whole = JSON.stringify([row.paused, row.queue, found.payload, row.options, row.cron, row.every]);
    if (whole === shown) return;
    shown = whole;
    fill(acts, typeof found.payload === "string" ? edit("Change", found, () => place.reload()) : null, orders(row, () => place.reload()),
      button("Delete", { on: queue, danger: true, label: `Delete ${name}`, ask: () => ({ title: `Delete ${name}?`, text: "It pushes no more jobs; those that it has pushed stay.", yes: "Delete it", danger: true, after: () => `${name} is deleted` }), order: () => post(`/schedules/${enc(name)}/delete`), done: () => { location.hash = "#/schedules"; } }));
  } }], () => get(`/schedules/${enc(name)}`), 5000);
  place.element.querySelector(".title").append(acts);
  place.element.querySelector(".title").prepend(h("p", { class: "crumb" }, h("a", { href: "#/schedules" }, "Schedules")));
  return place;
}
