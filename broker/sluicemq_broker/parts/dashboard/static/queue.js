// One queue: its counts, its history, its jobs by state, its workers.

import { enc, get } from "./api.js";
import { charts } from "./charts.js";
import { card, choice, fill, h, table, tiles } from "./dom.js";
import { count, rate, span } from "./format.js";
import { jobColumns, pages } from "./jobs.js";
import { workerTable } from "./others.js";
import { pauseButton } from "./queues.js";

const STATES = ["ready", "scheduled", "waiting", "reserved", "done", "dead"];

const shown = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));

/** Settings that are not the default, where they are from, and what brokers' files say differently. */
function settingsCard() {
  const list = table("Settings", [
    { title: "Setting", kind: "name", cell: (row) => row.key },
    { title: "Value", kind: "grow", cell: (row) => ({ text: shown(row.value) }) },
    { title: "From", cell: (row) => ({ text: row.source }) },
    { title: "File", cell: (row) => ({ text: "file" in row ? shown(row.file) : "" }) },
    { title: "Brokers differ", kind: "grow", cell: (row) => ({ text: row.differs, tone: "warn" }) },
  ], { key: (row) => row.key, empty: "Every setting is the default." });

  function update({ settings, differs }) {
    const said = new Map();
    for (const each of differs) {
      const values = Object.entries(each.values).map(([broker, value]) => `${shown(value)} at ${broker}`).join(", ");
      said.set(each.key, [said.get(each.key), values].filter(Boolean).join("; "));
    }
    list.update(settings.map((row) => ({ ...row, differs: said.get(row.key) || "" }))
      .filter((row) => row.source !== "default" || row.differs));
  }

  return { element: card("Settings", { bare: list.element }), update };
}

export function queue({ queue: name, asked }) {
  let state = STATES.includes(asked.get("state")) ? asked.get("state") : "ready";
  let beginning = "";
  const figures = tiles([...STATES.map((each) => ({ name: each, label: each[0].toUpperCase() + each.slice(1) })),
    { name: "in", label: "In" }, { name: "out", label: "Out" }, { name: "oldest", label: "Oldest waits" }, { name: "workers", label: "Workers" }]);
  const badges = h("span", { class: "acts" });
  const acts = h("div", { class: "acts" });
  const drawn = charts("queue", name);
  const workers = workerTable();
  const settings = settingsCard();
  const missing = h("p", { class: "empty", hidden: true }, "There is no such queue at this broker: the first push makes it.");
  const list = pages(`Jobs of ${name}`, jobColumns(name, { state: true }), (after) => get(`/queues/${enc(name)}/jobs`, beginning ? { id: beginning, limit: 50 } : { state, limit: 25, after }), { empty: "no such jobs" });
  const search = h("input", { type: "search", id: "job-id", placeholder: "beginning of an id", autocomplete: "off", oninput: () => { clearTimeout(typing); typing = setTimeout(() => { beginning = search.value.trim(); list.first(); }, 250); } });
  const states = choice("State", STATES.map((each) => [each, each]), state, (value) => { state = value; search.value = beginning = ""; list.first(); });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/queues" }, "Queues")), h("h1", {}, name), badges, acts),
    missing, figures.element, drawn.element, drawn.happened,
    card("Jobs", { acts: [states, h("label", { for: "job-id", class: "hidden-words" }, "Find by id"), search], bare: list.element }),
    card("Workers at this broker", { bare: workers.element }), settings.element);
  let typing = null;
  let shown = null;
  let timer = null;
  let closed = false;

  async function lookAtWorkers() {
    try { const found = await get("/workers", { queue: name }); if (!closed) workers.update(found.workers); } catch { /* the head says so */ }
    try { const found = await get(`/queues/${enc(name)}/settings`); if (!closed) settings.update(found); } catch { /* the head says so */ }
    if (!closed) timer = setTimeout(lookAtWorkers, 5000);
  }
  lookAtWorkers();
  list.first();

  function update({ queues: [row], dying }) {
    missing.hidden = Boolean(row);
    if (!row) return;
    for (const each of STATES) figures.update(each, (row[each] && row.estimates.includes(each) ? "~" : "") + count(row[each]), "", each === "dead" && row.dead ? "bad" : "");
    figures.update("in", rate(row.rates.pushed), "/s", "in");
    figures.update("out", rate(row.rates.committed), "/s", "out");
    figures.update("oldest", row.ready && row.oldest_ready_age !== null ? span(row.oldest_ready_age) : "–", "", row.oldest_ready_age > 300 ? "warn" : "");
    figures.update("workers", count(row.workers));
    const whole = `${row.paused.join()} ${dying[name] || ""}`;
    if (whole === shown) return;
    shown = whole;
    fill(badges, dying[name] && h("span", { class: "badge bad" }, `jobs die: ${count(dying[name])} lately`), row.paused.map((what) => h("span", { class: "badge warn" }, `${what} paused`)));
    fill(acts, ["delivery", "intake"].map((what) => pauseButton(name, what, row.paused.includes(what))),
      h("a", { class: "button", href: `#/dead?queue=${enc(name)}` }, "Dead letters"));
  }

  return { element, update, view: { only: name, limit: 1 }, close() { closed = true; clearTimeout(timer); clearTimeout(typing); drawn.close(); } };
}
