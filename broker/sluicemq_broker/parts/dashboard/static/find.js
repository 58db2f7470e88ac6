// Find jobs of all queues: by id first, else by what is in them. The broker searches for a tenth of a second at a
// time; the page goes on until it has enough, or somebody stops it.

import { get } from "./api.js";
import { card, fill, h, say, table } from "./dom.js";
import { ago, count, number, time } from "./format.js";
import { jobAddress, lastReason, words } from "./jobs.js";
import { link } from "./others.js";
import { note } from "./place.js";

const STATES = ["ready", "scheduled", "waiting", "reserved", "done", "dead"];
const MORE = 50; // jobs until the page waits for "Go on"
const TEXTS = [
  ["words", "Words in any part", "id, kind, tenant, error, payload"], ["kind", "Kind", "whole name"], ["tenant", "Tenant", "whole name"],
  ["group", "Group", "whole name"], ["header", "Header", "order=17"], ["error", "In the last error", "part of it, or its type"],
  ["text", "In the payload", "part of it"], ["queue", "Queue", "all that you may read"],
];

const columns = () => [
  { title: "Job", kind: "name", cell: (job) => h("a", { href: jobAddress(job.queue, job.id), class: "mono" }, job.id) },
  { title: "Queue", kind: "name slim", cell: (job) => link(job.queue) },
  { title: "State", cell: (job) => ({ text: job.state, tone: job.state === "dead" ? "bad" : "" }) },
  { title: "What", kind: "grow", cell: (job) => {
    const what = [job.kind, words(job.payload), lastReason(job)].filter(Boolean).join(" · ");
    return h("div", { class: "preview", title: lastReason(job) || null }, what);
  } },
  { title: "When", more: true, cell: (job) => ago(job.ended_at ?? job.created_at, Date.now() / 1000) },
];

export function find({ asked }) {
  const fields = new Map(TEXTS.map(([name, , hint]) => [name, h("input", { type: name === "words" ? "search" : "text", id: `find-${name}`, value: asked.get(name) || "", placeholder: hint, autocomplete: "off", maxlength: 256 })]));
  const state = h("select", { id: "find-state" }, h("option", { value: "" }, "any"), STATES.map((each) => h("option", { value: each, selected: asked.get("state") === each }, each)));
  fields.set("state", state);
  for (const name of ["since", "until"]) fields.set(name, h("input", { type: "datetime-local", id: `find-${name}`, value: asked.get(name) || "" }));
  const values = () => Object.fromEntries([...fields].map(([name, field]) => [name, field.value.trim()]).filter(([, value]) => value));
  const list = table("Jobs that were found", columns(), { key: (job) => `${job.queue} ${job.id}`, empty: "no job found" });
  const far = h("progress", { "aria-label": "how much is searched", hidden: true });
  const status = h("p", { role: "status", class: "small" });
  const ends = h("ul", { class: "notices", hidden: true });
  const stop = h("button", { type: "button", hidden: true, onclick: () => search?.abort() }, "Stop");
  const on = h("button", { type: "button", hidden: true, onclick: () => go() }, "Go on");
  const results = card("Jobs, those with the newest ids first", { acts: [status, stop, on], body: far, bare: list.element });
  results.hidden = true;
  let search = null; // an AbortController while one runs
  let wanted = null; // what is asked of the broker
  let jobs = [];
  let next = null;
  let closed = false;

  /** Begin anew with what stands in the fields. */
  async function begin() {
    search?.abort();
    const given = values();
    if (!Object.keys(given).length) { say(status, ""); results.hidden = true; return; }
    [jobs, next] = [[], null];
    ends.hidden = true;
    results.hidden = false;
    list.update([]);
    const { words: text = "", ...others } = given;
    const alone = text && !/\s/.test(text) && Object.keys(others).every((name) => name === "queue");
    wanted = { ...given, since: unix(given.since), until: unix(given.until) };
    if (alone && await byId({ id: text, queue: given.queue })) return;
    if (!closed) await go();
  }

  /** Look for a job of this id, and how one ended; returns whether that is an answer. */
  async function byId(about) {
    const found = await ask({ ...about, limit: 50 });
    if (!found) return true;
    const exact = found.jobs.filter((job) => job.id === about.id);
    if (!exact.length && !found.ends?.length) return false;
    jobs = exact;
    list.update(jobs);
    fill(ends, (found.ends || []).map((end) => h("li", {}, ended(end))));
    ends.hidden = !found.ends?.length;
    say(status, `by its id, in ${count(found.queues)} ${found.queues === 1 ? "queue" : "queues"}`);
    return true;
  }

  /** Go on until there are more jobs to look at, all is searched, or it is stopped. */
  async function go() {
    const enough = jobs.length + MORE;
    do {
      const found = await ask({ ...wanted, limit: Math.min(MORE, enough - jobs.length), after: next });
      if (!found) return;
      jobs = [...jobs, ...found.jobs];
      next = found.next ?? null;
      list.update(jobs);
      Object.assign(far, { max: Math.max(1, found.total), value: found.searched, hidden: false });
      const unread = found.unread ? `, but not in ${count(found.unread)} that are too large` : "";
      say(status, `${count(jobs.length)} found; searched ${number(found.searched)} of ${number(found.total)} jobs${unread}`);
    } while (next && jobs.length < enough);
    on.hidden = !next;
  }

  /** One question to the broker; null where it was stopped or refused, and the page says so. */
  async function ask(query) {
    const mine = search = new AbortController();
    [stop.hidden, on.hidden] = [false, true];
    try {
      return await get("/find", query, mine.signal);
    } catch (error) {
      if (search !== mine) return null; // another one has begun
      if (error.name !== "AbortError") say(status, error.message);
      on.hidden = false;
      return null;
    } finally {
      if (search === mine) stop.hidden = true;
    }
  }

  const label = (name, title) => h("label", { class: name === "words" ? "wide" : null, for: `find-${name}` }, title, fields.get(name));
  const form = h("form", { class: "fields grid", onsubmit: (event) => {
    event.preventDefault();
    note("find", values(), { step: true });
    begin();
  } }, TEXTS.map(([name, title]) => label(name, title)), label("state", "State"), label("since", "Ended, or pushed, from"), label("until", "Before"),
  h("button", { type: "submit", class: "main" }, "Find"));
  begin();
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Find jobs")), card("Which: all that is given must hold", { body: form }), ends, results),
    close() { closed = true; search?.abort(); search = null; },
  };
}

const unix = (local) => (local ? new Date(local).getTime() / 1000 : null);

/** How a job ended that may be stored no longer. */
function ended(end) {
  const worker = end.worker ? ` by ${end.worker}` : "";
  const to = end.to ? [" to ", link(end.to)] : "";
  return h("span", { title: time(end.at) }, `${end.id} was ${end.end} in `, link(end.queue), to, `${worker} ${ago(end.at, Date.now() / 1000).text}`);
}
