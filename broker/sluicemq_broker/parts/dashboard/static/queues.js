// All queues: sorted, filtered, a page at a time, with the last hour of each.

import { button } from "./actions.js";
import { enc, get, post } from "./api.js";
import { spark } from "./charts.js";
import { h, table } from "./dom.js";
import { count, rate, span } from "./format.js";
import { note } from "./place.js";
import { noneSeen } from "./session.js";

const PAGE = 50;
const UP = new Set(["name"]);

/** A count, quiet if it is 0 and marked if it is an estimate. */
function counted(row, state, tone = "") {
  const about = row.estimates.includes(state);
  return { text: (about && row[state] ? "~" : "") + count(row[state]), tone: row[state] ? tone : "zero", title: about ? "an estimate" : null };
}

export const address = (name) => `#/queues/${enc(name)}`;

function linked(row, cache) {
  let link = cache.get(row.name);
  if (!link) { link = h("a", { href: address(row.name) }, row.name); cache.set(row.name, link); }
  link.className = row.dying ? "bad" : "";
  return link;
}

/** The rows with how many of their jobs have died of late. */
export const withDying = (rows, dying) => rows.map((row) => ({ ...row, dying: dying[row.name] || 0 }));

/** Dead letters, marked while they become more. */
function deadLetters(row) {
  const shown = counted(row, "dead", "bad");
  return row.dying ? { ...shown, text: `${shown.text} ↑`, title: `${count(row.dying)} died lately` } : shown;
}

export function queueColumns({ sparks = true, curves = new Map() } = {}) {
  const links = new Map();
  return [
    { title: "Queue", sort: "name", kind: "name", cell: (row) => linked(row, links) },
    sparks && { title: "Last hour", more: true, cell: (row) => curves.get(row.name) || "" },
    { title: "Ready", sort: "ready", num: true, cell: (row) => counted(row, "ready") },
    sparks && { title: "Scheduled", sort: "scheduled", num: true, more: true, cell: (row) => counted(row, "scheduled") },
    sparks && { title: "Reserved", sort: "reserved", num: true, more: true, cell: (row) => counted(row, "reserved") },
    { title: "Dead", sort: "dead", num: true, cell: deadLetters },
    { title: "In/s", sort: "in", num: true, cell: (row) => ({ text: rate(row.rates.pushed), tone: row.rates.pushed ? "" : "zero" }) },
    { title: "Out/s", sort: "out", num: true, cell: (row) => ({ text: rate(row.rates.committed), tone: row.rates.committed ? "" : "zero" }) },
    sparks && { title: "Oldest", sort: "oldest", num: true, more: true, cell: (row) => (row.ready && row.oldest_ready_age !== null ? { text: span(row.oldest_ready_age), tone: row.oldest_ready_age > 300 ? "warn" : "" } : { text: "–", tone: "zero" }) },
    { title: "Workers", sort: "workers", num: true, more: true, cell: (row) => ({ text: count(row.workers), tone: row.workers ? "" : "zero" }) },
  ].filter(Boolean);
}

export function queues({ asked, look }) {
  const view = {
    sort: asked.get("sort") || "name", reverse: asked.get("reverse") === "true", contains: asked.get("contains") || "",
    offset: Number(asked.get("offset")) || 0, limit: PAGE,
  };
  const curves = new Map();
  const pauses = new Map();
  const columns = [...queueColumns({ curves }), { title: "", hidden: "Paused", cell: (row) => pausing(row, pauses) }];
  const list = table("Queues", columns, {
    empty: view.contains ? "no matching queue" : noneSeen("read", "queues", "no queues yet: the first push makes one"),
    onsort(by) {
      view.reverse = by === view.sort ? !view.reverse : false;
      view.sort = by;
      view.offset = 0;
      renew(true);
    },
  });
  const search = h("input", { type: "search", id: "filter", value: view.contains, placeholder: "part of a name", autocomplete: "off", oninput: () => {
    clearTimeout(typing);
    typing = setTimeout(() => { view.contains = search.value; view.offset = 0; renew(); }, 250);
  } });
  const where = h("span", { role: "status" });
  const before = h("button", { type: "button", onclick: () => { view.offset = Math.max(0, view.offset - PAGE); renew(true); } }, "Previous");
  const after = h("button", { type: "button", onclick: () => { view.offset += PAGE; renew(true); } }, "Next");
  const element = h("div", {},
    h("div", { class: "title" }, h("h1", {}, "Queues"), h("div", { class: "acts" }, h("label", { for: "filter", class: "hidden-words" }, "Filter by name"), search)),
    h("section", { class: "card", "aria-label": "Queues" }, h("div", { class: "top" }), list.element, h("div", { class: "pager" }, where, h("div", { class: "acts" }, before, after))));
  let typing = null;
  let timer = null;
  let shown = "";
  let closed = false;

  function renew(step = false) {
    list.sorted(view.sort, view.reverse, UP.has(view.sort) ? "up" : "down");
    note("queues", { ...view, limit: 0 }, { step });
    look({ ...view });
  }

  function update({ queues, matching, dying }) {
    const rows = withDying(queues, dying);
    for (const row of rows) if (!curves.has(row.name)) curves.set(row.name, spark(null));
    list.update(rows);
    const last = Math.min(view.offset + rows.length, matching);
    where.textContent = matching ? `${count(view.offset + 1)} to ${count(last)} of ${count(matching)}` : "";
    before.disabled = view.offset === 0;
    after.disabled = last >= matching;
    const names = rows.map((row) => row.name).join(",");
    if (names !== shown) { shown = names; recent(); }
  }

  async function recent() {
    clearTimeout(timer);
    try {
      const found = shown ? await get("/recent", { queue: shown }) : { queues: {} };
      if (closed) return;
      for (const [name, each] of Object.entries(found.queues)) {
        if (curves.has(name)) { const drawing = spark(each); curves.get(name).replaceWith(drawing); curves.set(name, drawing); }
      }
    } catch { /* the curves stay as they were */ }
    if (!closed) timer = setTimeout(recent, 30000);
  }

  list.sorted(view.sort, view.reverse, UP.has(view.sort) ? "up" : "down");
  return { element, update, view, close() { closed = true; clearTimeout(timer); clearTimeout(typing); } };
}

/** What is paused of a queue, and the button that changes it. */
function pausing(row, cache) {
  const whole = row.paused.join(",");
  let known = cache.get(row.name);
  if (known?.whole !== whole) {
    known = { whole, element: h("span", { class: "acts" }, row.paused.includes("intake") && h("span", { class: "badge warn" }, "intake paused"), pauseButton(row.name, "delivery", row.paused.includes("delivery"), true)) };
    cache.set(row.name, known);
  }
  return known.element;
}

/** Pause or resume a part of a queue; `done` hears of it. */
export function pauseButton(name, what, paused, short = false, done = () => {}) {
  const verb = paused ? "Resume" : "Pause";
  const happens = what === "delivery"
    ? (paused ? "Workers get its jobs again." : "No broker gives its jobs to workers until it is resumed. Jobs at workers go on.")
    : (paused ? "Jobs are accepted again." : "All brokers refuse pushes, and plain PUSH producers block, until it is resumed.");
  return button(short ? verb : `${verb} ${what}`, {
    on: name,
    label: `${verb} ${what} of ${name}`,
    ask: () => ({ title: `${verb} ${what} of ${name}?`, text: happens, yes: verb, after: () => `${what} of ${name} is ${paused ? "resumed" : "paused"}` }),
    order: () => post(`/queues/${enc(name)}/${verb.toLowerCase()}`, { what }),
    done,
  });
}
