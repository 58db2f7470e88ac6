// One queue: its counts, its history, its jobs by state, what waits in it, its workers, its settings.

import { button, field, tell } from "./actions.js";
import { enc, get, post } from "./api.js";
import { charts } from "./charts.js";
import { card, choice, fill, h, say, some, table, tiles } from "./dom.js";
import { ago, count, rate, span } from "./format.js";
import { jobColumns, pages } from "./jobs.js";
import { failing, kindTable } from "./kinds.js";
import { everywhere, goneTable, workerTable } from "./others.js";
import { note } from "./place.js";
import { pauseButton } from "./queues.js";

const STATES = ["ready", "reserved", "scheduled", "waiting", "dead", "done"];
/** The states in which somebody looks for jobs first. */
const FIRST = ["ready", "reserved", "dead", "waiting", "scheduled", "done"];

const written = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

/** Settings in force, where each comes from, and what brokers' files say differently. */
function settingsCard() {
  const list = table("Settings", [
    { title: "Setting", kind: "name", cell: (row) => row.key },
    { title: "Value", kind: "grow", cell: (row) => ({ text: written(row.value), tone: row.source === "default" ? "zero" : "" }) },
    { title: "From", cell: (row) => ({ text: row.source }) },
    { title: "File", more: true, cell: (row) => ({ text: "file" in row ? written(row.file) : "" }) },
    { title: "Brokers differ", kind: "grow", more: true, cell: (row) => ({ text: row.differs, tone: row.differs && "warn" }) },
  ], { key: (row) => row.key, empty: "Every setting is the default." });
  let all = false;
  let rows = [];
  const show = choice("Settings shown", [["set", "Changed"], ["all", "All"]], "set", (value) => { all = value === "all"; draw(); });
  const draw = () => list.update(rows.filter((row) => all || row.source !== "default" || row.differs));

  function update({ settings, differs }) {
    const different = new Map();
    for (const each of differs) {
      const values = Object.entries(each.values).map(([broker, value]) => `${written(value)} at ${broker}`).join(", ");
      different.set(each.key, [different.get(each.key), values].filter(Boolean).join("; "));
    }
    rows = settings.map((row) => ({ ...row, differs: different.get(row.key) || "" }));
    draw();
  }

  return { element: card("Settings and limits", { acts: show, bare: list.element }), update, fail: list.fail };
}

/** What the jobs that wait are: by kind, by tenant, by group. */
function backlogCard() {
  const now = () => Date.now() / 1000;
  const kinds = table("Kinds that wait", [
    { title: "Kind", kind: "grow", cell: (row) => row.name || "(none)" },
    { title: "Ready", num: true, cell: (row) => count(row.jobs) },
    { title: "Oldest", num: true, cell: (row) => ago(row.oldest, now()) },
  ], { empty: "No job is ready." });
  const tenants = table("Tenants that wait", [
    { title: "Tenant", kind: "grow", cell: (row) => h("span", {}, row.name || "(none)", row.held_back ? h("span", { class: "badge warn" }, "at its limit") : "") },
    { title: "Ready", num: true, cell: (row) => count(row.jobs) },
    { title: "Oldest", num: true, cell: (row) => ago(row.oldest, now()) },
  ], { empty: "No job of a tenant is ready." });
  const groups = table("Groups that wait", [
    { title: "Group", kind: "grow", cell: (row) => row.name },
    { title: "Waiting", num: true, cell: (row) => count(row.jobs) },
    { title: "Oldest", num: true, cell: (row) => ago(row.oldest, now()) },
  ], { empty: "No group has jobs that wait for an earlier one." });
  const parts = [kinds, tenants, groups];
  const shown = parts.map((each) => some(each, 6));
  const bound = h("p", { class: "small" });
  return {
    element: card("What waits", { acts: bound, body: h("div", { class: "thirds" }, shown.map((each) => each.element)) }),
    update(found) {
      [found.kinds, found.tenants, found.groups].forEach((rows, at) => shown[at].update(rows));
      say(bound, found.more ? `among the first ${count(found.looked)} jobs` : "");
    },
    fail(words) { parts.forEach((each) => each.fail(words)); },
  };
}

export function queue({ queue: name, asked }) {
  const path = `/queues/${enc(name)}`;
  let state = STATES.includes(asked.get("state")) ? asked.get("state") : null; // null: until it is known where jobs are
  let beginning = asked.get("id") || "";
  let row = null;
  const figures = tiles([{ name: "in", label: "In" }, { name: "out", label: "Out" }, { name: "ready", label: "Ready" }, { name: "flight", label: "At workers" },
    { name: "oldest", label: "Oldest waits" }, { name: "dead", label: "Dead letters", href: `#/dead?queue=${enc(name)}` }, { name: "workers", label: "Workers", href: `#/workers?filter=${enc(name)}` }]);
  const badges = h("span", { class: "badges" });
  const acts = h("div", { class: "acts" });
  const drawn = charts("queue", name);
  const workers = workerTable();
  const present = some(workers, 10);
  const gone = goneTable(false);
  const left = some(gone, 5);
  const settings = settingsCard();
  const backlog = backlogCard();
  const sorts = kindTable("Kinds of jobs", { key: (each) => each.kind, empty: "no job has come since the broker's start" });
  const kinds = some(sorts, 6);
  const missing = h("p", { class: "empty", hidden: true }, "There is no such queue: the first push makes it.");
  const where = (starts, step) => note(`queues/${enc(name)}`, { state, id: beginning, after: starts.at(-1), page: starts.length > 1 ? starts.length : 0 }, { step, state: { starts } });
  const list = pages(`Jobs of ${name}`, jobColumns(name, { state: true }), (after) => get(`${path}/jobs`, beginning ? { id: beginning, limit: 50 } : { state, limit: 25, after }), {
    empty: "no such jobs", starts: [...(history.state?.starts || (asked.get("after") ? [null, asked.get("after")] : [null]))], onmove: (starts) => where(starts, true),
  });
  const search = h("input", { type: "search", id: "job-id", value: beginning, placeholder: "beginning of an id", autocomplete: "off", oninput: () => { clearTimeout(typing); typing = setTimeout(() => { beginning = search.value.trim(); where([null], false); list.first(); }, 250); } });
  const tabs = h("div", { class: "acts" });
  const purging = h("div", { class: "acts" });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/queues" }, "Queues")), h("h1", {}, name), badges, acts),
    missing, figures.element, drawn.element, drawn.happened,
    card("Jobs", { acts: [tabs, h("label", { for: "job-id", class: "hidden-words" }, "Find by id"), search, purging], bare: list.element }),
    backlog.element, card("Kinds", { bare: kinds.element }), card("Workers", { bare: h("div", {}, present.element, left.element) }), settings.element);
  let typing = null;
  let shown = null;
  let timer = null;
  let closed = false;

  function choose(value) {
    state = value;
    fill(tabs, choice("State", STATES.map((each) => [each, each]), state, (other) => { search.value = beginning = ""; choose(other); where([null], true); list.first(); }));
    fill(purging, state === "reserved" ? null : button(`Purge ${state}`, {
      on: name, danger: true,
      ask: async () => {
        const { [state]: number } = await get(path);
        return number ? { title: `Remove ${plural(number, `${state} job`, `${state} jobs`)} of ${name}?`, text: "They are removed with their payloads and histories. This can't be undone.", yes: "Remove them", danger: true, after: (removed) => `${count(removed)} removed` } : (tell(`${name} has no ${state} jobs`), null);
      },
      order: () => post(`${path}/purge`, { state }), done: () => list.first(),
    }));
    label();
  }

  /** How many jobs each state has, in its tab. */
  function label() {
    const buttons = tabs.querySelectorAll("button");
    if (row) STATES.forEach((each, at) => { if (buttons[at]) say(buttons[at], `${each} ${row[each] && row.estimates.includes(each) ? "~" : ""}${count(row[each])}`); });
  }

  async function ask(address, query, each) {
    try { const found = await get(address, query); if (!closed) each.update(found); } catch (error) { if (!closed) each.fail(`not known now: ${error.message}`); }
  }

  async function look() {
    await Promise.all([
      ask("/workers", { queue: name }, { update(found) { present.update(everywhere(found)); left.element.hidden = !found.gone?.length; left.update(found.gone || []); }, fail: workers.fail }),
      ask(`${path}/settings`, {}, settings),
      ask(`${path}/backlog`, {}, backlog),
      ask("/kinds", { queue: name }, { update(found) { kinds.update(found.kinds.sort(failing)); }, fail: sorts.fail }),
    ]);
    if (!closed) timer = setTimeout(look, 5000);
  }
  left.element.hidden = true;
  look();
  if (state || beginning) { choose(state || "ready"); list.load(); }

  function update({ queues: [found], dying }) {
    missing.hidden = Boolean(found);
    if (!found) { if (!state) { choose("ready"); list.first(); } return; }
    row = found;
    if (!state) { choose(FIRST.find((each) => row[each]) || "ready"); list.load(); }
    label();
    figures.update("in", rate(row.rates.pushed), "/s", "in");
    figures.update("out", rate(row.rates.committed), "/s", "out");
    figures.update("ready", count(row.ready));
    figures.update("flight", count(row.in_flight));
    figures.update("oldest", row.ready && row.oldest_ready_age !== null ? span(row.oldest_ready_age) : "–", "", row.oldest_ready_age > 300 ? "warn" : "");
    figures.update("dead", count(row.dead), "", row.dead ? "bad" : "");
    figures.update("workers", count(row.workers));
    const whole = `${row.paused.join()} ${dying[name] || ""} ${row.full} ${row.held_back} ${row.error || ""}`;
    if (whole === shown) return;
    shown = whole;
    fill(badges, dying[name] && h("span", { class: "badge bad" }, `jobs die: ${count(dying[name])} lately`), row.paused.map((what) => h("span", { class: "badge warn" }, `${what} paused`)),
      row.full ? h("span", { class: "badge warn" }, "full") : null, row.held_back ? h("span", { class: "badge warn" }, `${plural(row.held_back, "tenant", "tenants")} at the limit`) : null, row.error && h("span", { class: "badge bad" }, row.error));
    fill(acts, pushButton(name, () => list.load()), ["delivery", "intake"].map((what) => pauseButton(name, what, row.paused.includes(what))), deleteButton(name),
      h("a", { class: "button", href: `#/dead?queue=${enc(name)}` }, "Dead letters"));
  }

  return { element, update, view: { only: name, limit: 1 }, close() { closed = true; clearTimeout(timer); clearTimeout(typing); drawn.close(); } };
}

/** Push a job by hand. */
function pushButton(name, done) {
  const payload = h("textarea", { spellcheck: "false" });
  const options = h("textarea", { spellcheck: "false", rows: 2, placeholder: '{"priority": 5, "delay": 60, "tenant": "north"}' });
  return button("Push a job", {
    on: name, done, action: "push",
    ask: () => ({ title: `Push a job into ${name}`, body: [field("Payload", payload, "text, such as JSON; sent as it is"), field("Options", options, "JSON; none is needed")], yes: "Push", after: (id) => `pushed job ${id}` }),
    order: () => post(`/queues/${enc(name)}/push`, { payload: payload.value, options: options.value.trim() ? JSON.parse(options.value) : {} }),
  });
}

function deleteButton(name) {
  return button("Delete", {
    on: name, danger: true, label: `Delete queue ${name}`,
    ask: async () => {
      const row = await get(`/queues/${enc(name)}`);
      const jobs = STATES.reduce((sum, each) => sum + row[each], 0);
      return { title: `Delete ${name} with ${plural(jobs, "job", "jobs")}?`, text: `${count(row.ready)} ready, ${count(row.reserved)} at workers, ${count(row.dead)} dead. It is refused while workers are connected. This can't be undone.`, yes: "Delete it", danger: true, after: (removed) => `${name} is deleted with ${plural(removed, "job", "jobs")}` };
    },
    order: () => post(`/queues/${enc(name)}/delete`), done: () => { location.hash = "#/queues"; },
  });
}
