// Dead letters: by error over all queues, and of one queue, by why and when they died. Some or all are made jobs
// again or removed, with a count before.

import { button } from "./actions.js";
import { enc, exportAddress, get, post } from "./api.js";
import { card, fill, h, say, some, table } from "./dom.js";
import { ago, count } from "./format.js";
import { jobAddress, jobColumns, pages } from "./jobs.js";
import { note } from "./place.js";

const plural = (number) => `${count(number)} dead ${number === 1 ? "letter" : "letters"}`;
/** Stands for a type or a place that no worker has said. */
const UNKNOWN = "?";
const RETRIED = "They become ready in their queues, the oldest first. Their attempts and times to live start again; their history is kept. A job that dies again meanwhile is not redriven twice.";
const REMOVED = "They are removed with their payloads and histories. This can't be undone.";

export function dead({ asked }) {
  const name = asked.get("queue");
  return name ? letters(name, asked) : which();
}

/** The choice of dead letters of one error: of a type, raised in a place. */
const chosenBy = ({ type, place }) => ({ error: type || UNKNOWN, place: place || UNKNOWN });

const lettersOf = (queue, choice) => `#/dead?${new URLSearchParams({ queue, ...choice })}`;

/** Hosts, or workers, at which an error occurs: the first three, and all in a title. */
const places = (title, names) => (names.length ? h("div", { class: "small", title: names.join(", ") }, `${title} ${names.slice(0, 3).join(", ")}${names.length > 3 ? " and more" : ""}`) : null);

/** How many dead letters match: of one queue, counted now. */
const counted = (queue, choice) => get(`/queues/${enc(queue)}/dead-letters/count`, choice);

/** Errors over all queues, and the queues that have some. */
function which() {
  const links = new Map();
  let closed = false;
  let timer = null;
  const list = table("Queues with dead letters", [
    { title: "Queue", kind: "name", cell: (row) => {
      if (!links.has(row.name)) links.set(row.name, h("a", { href: `#/dead?queue=${enc(row.name)}` }, row.name));
      return links.get(row.name);
    } },
    { title: "Dead letters", num: true, cell: (row) => ({ text: (row.estimates.includes("dead") ? "~" : "") + count(row.dead), tone: "bad" }) },
    { title: "Ready", num: true, cell: (row) => ({ text: count(row.ready), tone: row.ready ? "" : "zero" }) },
    { title: "Workers", num: true, more: true, cell: (row) => ({ text: count(row.workers), tone: row.workers ? "" : "zero" }) },
    { title: "", kind: "grow", cell: () => " " },
  ], { empty: "No dead letters." });
  const errors = table("Errors", [
    { title: "Error", kind: "name", cell: (row) => h("div", {}, h("div", {}, row.type || "(no reason)"), h("div", { class: "small mono" }, row.place || "place not known")) },
    { title: "Dead", num: true, cell: (row) => ({ text: `${row.exact ? "" : "~"}${count(row.count)}`, tone: "bad" }) },
    { title: "Latest", kind: "grow how", cell: (row) => h("div", {},
      h("a", { href: jobAddress(row.queue, row.job), class: "preview" }, row.reason || row.job),
      h("div", { class: "small" }, row.kinds.length ? `kinds ${row.kinds.join(", ")}; ` : "", "in ", row.queues.map((name, at) => [at ? ", " : "", h("a", { href: lettersOf(name, chosenBy(row)) }, name)])),
      places("hosts", row.hosts), places("workers", row.workers)) },
    { title: "First", more: true, cell: (row) => ago(row.first_at, Date.now() / 1000) },
    { title: "Last", more: true, cell: (row) => ago(row.last_at, Date.now() / 1000) },
    { title: "", hidden: "Actions", kind: "how", cell: (row) => h("span", { class: "acts" }, ["Redrive", "Delete"].map((title) => ofError(title, row, load))) },
  ], { key: (row) => JSON.stringify([row.type, row.place]), empty: "No dead letters." });
  const few = some(errors, 10);
  const bound = h("p", { class: "small" });

  async function load() {
    clearTimeout(timer);
    try {
      const found = await get("/errors");
      if (closed) return;
      few.update(found.errors);
      say(bound, found.looked < found.dead ? `the latest ${count(found.looked)} of ${count(found.dead)} stand for all` : "");
    } catch (error) { if (!closed) errors.fail(`not known now: ${error.message}`); }
    if (!closed) timer = setTimeout(load, 10000);
  }
  load();
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Dead letters")), card("By error, over all queues", { acts: bound, bare: few.element }), card("By queue", { bare: list.element })),
    view: { sort: "dead", limit: 100 },
    update({ queues }) { list.update(queues.filter((row) => row.dead > 0)); },
    close() { closed = true; clearTimeout(timer); },
  };
}

/** A button for all dead letters of one error, in the queues that have most of them; counted before. */
function ofError(title, row, done) {
  const choice = chosenBy(row);
  const removes = title === "Delete";
  return button(title, {
    on: row.queues.length === 1 ? row.queues[0] : null, danger: removes, done, label: `${title} ${row.type || "those without a reason"} in ${row.place || "an unknown place"}`,
    ask: async () => {
      const found = await Promise.all(row.queues.map((queue) => counted(queue, choice)));
      const number = found.reduce((sum, each) => sum + each.count, 0);
      const where = row.queues.map((queue, at) => `${count(found[at].count)} in ${queue}`).join(", ");
      return number ? { title: `${title} ${found.every((each) => each.exact) ? "" : "about "}${plural(number)}?`, text: `${row.type}: ${where}. ${removes ? REMOVED : RETRIED}`, yes: title, danger: removes, after: (answers) => answers.join("; ") } : null;
    },
    order: async () => {
      const answers = [];
      for (const queue of row.queues) {
        const ordered = await post(`/queues/${enc(queue)}/dead-letters/${removes ? "discard" : "redrive"}`, choice);
        answers.push(`${queue}: ${"task" in ordered ? "it goes on, see Operations" : result(title, ordered.answer)}`);
      }
      return { answer: answers };
    },
  });
}

function letters(name, asked) {
  const path = `/queues/${enc(name)}/dead-letters`;
  const chosen = new Set();
  const reason = h("input", { type: "search", id: "reason", value: asked.get("reason") || "", placeholder: "part of the last reason", autocomplete: "off" });
  const since = h("input", { type: "datetime-local", id: "since", value: asked.get("since") || "" });
  const until = h("input", { type: "datetime-local", id: "until", value: asked.get("until") || "" });
  const kind = h("input", { type: "search", id: "kind", value: asked.get("kind") || "", autocomplete: "off" });
  let error = asked.get("error");
  let place = asked.get("place");
  const seconds = (field) => (field.value ? new Date(field.value).getTime() / 1000 : null);
  const filter = () => Object.fromEntries(Object.entries({ reason: reason.value, since: seconds(since), until: seconds(until), kind: kind.value, error, place }).filter(([, value]) => value !== null && value !== ""));
  const matching = h("p", { role: "status", class: "small" });
  const reasons = h("div", { class: "bars" });
  const acts = h("div", { class: "acts" });
  const where = (starts, step) => note("dead", { queue: name, reason: reason.value, since: since.value, until: until.value, kind: kind.value, error, place, after: starts.at(-1), page: starts.length > 1 ? starts.length : 0 }, { step, state: { starts } });
  const list = pages(`Dead letters of ${name}`, jobColumns(name, { chosen, onchoose: offer }), (after) => get(path, { ...filter(), limit: 25, after }), {
    empty: "no matching dead letters on this page", starts: [...(history.state?.starts || (asked.get("after") ? [null, asked.get("after")] : [null]))], onmove: (starts) => where(starts, true),
  });
  const lines = h("a", { class: "button", download: `${name}-dead-letters.jsonl` }, "Export");
  const raised = h("p", { class: "small" });
  let typing = null;
  let closed = false;
  let filtered = filter();

  /** Show what matches; `again`: the filter has changed, so that the first page is shown. */
  async function search(again = true) {
    chosen.clear();
    filtered = filter();
    if (again) where([null], false);
    lines.href = exportAddress(name, filtered);
    fill(raised, error ? [`${error} in ${place || UNKNOWN} `, h("button", { type: "button", class: "quiet", onclick: () => { error = place = null; search(); } }, "All errors")] : null);
    offer();
    matching.textContent = "counting";
    const [counts] = await Promise.all([counting(), again ? list.first() : list.load(), why()]);
    if (!closed) matching.textContent = counts;
  }

  async function howMany() {
    const { count: number, exact } = await counted(name, filtered);
    return { number, words: `${exact ? "" : "about "}${plural(number)}` };
  }

  async function counting() {
    try { const { words } = await howMany(); return `${words} ${Object.keys(filtered).length ? "match" : "in all"}`; } catch (error) { return error.message; }
  }

  async function why() {
    try {
      const { reasons: found } = await get(`${path}/reasons`, { since: filtered.since, until: filtered.until });
      if (closed) return;
      const most = Math.max(1, ...found.map((each) => each.count));
      fill(reasons, found.map((each) => h("button", { type: "button", onclick: () => { reason.value = each.reason; search(); } },
        part(each.count / most), h("span", {}, each.reason || "(no reason)"), h("span", {}, count(each.count)))));
      if (!found.length) fill(reasons, h("p", { class: "small" }, "no dead letters"));
    } catch { /* the count says so */ }
  }

  /** The buttons: for those that are ticked, else for all that match. */
  function offer() {
    const some = chosen.size > 0;
    const body = () => (some ? { ids: [...chosen] } : Object.keys(filtered).length ? filtered : { all: true });
    const ask = (title, text, danger) => async () => {
      const { number, words } = some ? { number: chosen.size, words: plural(chosen.size) } : await howMany();
      return number ? { title: `${title} ${words}?`, text, yes: title, danger, after: (answer) => result(title, answer) } : null;
    };
    const what = some ? `${chosen.size} chosen` : Object.keys(filtered).length ? "all that match" : "all";
    fill(acts,
      button(`Redrive ${what}`, { on: name, ask: ask("Redrive", RETRIED), order: () => post(`${path}/redrive`, body()), done: () => search() }),
      button(`Delete ${what}`, { on: name, danger: true, ask: ask("Delete", REMOVED, true), order: () => post(`${path}/discard`, body()), done: () => search() }));
  }

  for (const field of [reason, since, until, kind]) field.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => search(), 350); });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/dead" }, "Dead letters")), h("h1", {}, name), acts),
    card("Which", { acts: raised, body: h("div", { class: "fields" },
      h("label", { class: "wide", for: "reason" }, "Reason has", reason), h("label", { for: "since" }, "Died from", since), h("label", { for: "until" }, "Died before", until), h("label", { for: "kind" }, "Kind", kind)) }),
    card("Reasons of the latest", { body: reasons }),
    card("Dead letters, the latest first", { acts: [matching, lines], bare: list.element }));
  search(false);
  return { element, close() { closed = true; clearTimeout(typing); } };
}

/** How long a bar is: an attribute of a drawing, for a page without styles of its own. */
function part(share) {
  return h("svg:svg", { class: "part", width: `${(share * 100).toFixed(1)}%`, height: "100%", "aria-hidden": "true" });
}

function result(title, answer) {
  if (title === "Delete") return `${count(answer)} removed`;
  const left = answer.left ? `, ${count(answer.left)} left${answer.refused.length ? `: ${answer.refused[0][2]}` : ""}` : "";
  return `${count(answer.moved)} redriven${left}`;
}
