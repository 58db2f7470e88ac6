// Dead letters: of which queue, why, when; given another life or removed, some or all, with a count before.

import { button } from "./actions.js";
import { enc, get, post } from "./api.js";
import { card, fill, h, table } from "./dom.js";
import { count } from "./format.js";
import { jobColumns, pages } from "./jobs.js";

export function dead({ asked }) {
  const name = asked.get("queue");
  return name ? letters(name, asked) : which();
}

/** The queues that have some. */
function which() {
  const links = new Map();
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
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Dead letters")), card("By queue", { bare: list.element })),
    view: { sort: "dead", limit: 100 },
    update({ queues }) { list.update(queues.filter((row) => row.dead > 0)); },
  };
}

function letters(name, asked) {
  const path = `/queues/${enc(name)}/dead-letters`;
  const chosen = new Set();
  const reason = h("input", { type: "search", id: "reason", value: asked.get("reason") || "", placeholder: "part of the last reason", autocomplete: "off" });
  const since = h("input", { type: "datetime-local", id: "since" });
  const until = h("input", { type: "datetime-local", id: "until" });
  const seconds = (field) => (field.value ? new Date(field.value).getTime() / 1000 : null);
  const filter = () => Object.fromEntries(Object.entries({ reason: reason.value, since: seconds(since), until: seconds(until) }).filter(([, value]) => value !== null && value !== ""));
  const matching = h("p", { role: "status", class: "small" });
  const reasons = h("div", { class: "bars" });
  const acts = h("div", { class: "acts" });
  const list = pages(`Dead letters of ${name}`, jobColumns(name, { chosen, onchoose: offer }), (after) => get(path, { ...filter(), limit: 25, after }), { empty: "no matching dead letters on this page" });
  let typing = null;
  let closed = false;
  let filtered = filter();

  async function search() {
    chosen.clear();
    filtered = filter();
    const query = new URLSearchParams({ queue: name, ...(filtered.reason ? { reason: filtered.reason } : {}) });
    history.replaceState(null, "", `#/dead?${query}`);
    offer();
    matching.textContent = "counting";
    const [counted] = await Promise.all([counting(), list.first(), why()]);
    if (!closed) matching.textContent = counted;
  }

  async function howMany() {
    const { count: number, exact } = await get(`${path}/count`, filtered);
    return { number, words: `${exact ? "" : "about "}${count(number)} dead ${number === 1 ? "letter" : "letters"}` };
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
      const { number, words } = some ? { number: chosen.size, words: `${chosen.size} dead ${chosen.size === 1 ? "letter" : "letters"}` } : await howMany();
      return number ? { title: `${title} ${words}?`, text, yes: title, danger, after: (answer) => result(title, answer) } : null;
    };
    const what = some ? `${chosen.size} chosen` : Object.keys(filtered).length ? "all that match" : "all";
    fill(acts,
      button(`Redrive ${what}`, { on: name, ask: ask("Redrive", `They become ready in ${name}, the oldest first. Their attempts and times to live start again; their history is kept. A job that dies again meanwhile is not redriven twice.`), order: () => post(`${path}/redrive`, body()), done: search }),
      button(`Delete ${what}`, { on: name, danger: true, ask: ask("Delete", "They are removed with their payloads and histories. This can't be undone.", true), order: () => post(`${path}/discard`, body()), done: search }));
  }

  for (const field of [reason, since, until]) field.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 350); });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/dead" }, "Dead letters")), h("h1", {}, name), acts),
    card("Which", { body: h("div", { class: "fields" },
      h("label", { class: "wide", for: "reason" }, "Reason has", reason), h("label", { for: "since" }, "Died from", since), h("label", { for: "until" }, "Died before", until)) }),
    card("Reasons of the latest", { body: reasons }),
    card("Dead letters, the latest first", { acts: matching, bare: list.element }));
  search();
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
