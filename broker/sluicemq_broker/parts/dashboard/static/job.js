// One job: what happened to it, what it carries, what belongs to it, and what can be done with it. It is live.

import { button, field } from "./actions.js";
import { enc, get, payloadAddress, post } from "./api.js";
import { content } from "./content.js";
import { card, fill, h } from "./dom.js";
import { bytes, count, span, time } from "./format.js";
import { jobAddress } from "./jobs.js";
import { address } from "./queues.js";
import { ENDS, refresh, relative, timeline } from "./timeline.js";

const SHOWN = 65536;
const TONES = { dead: "bad", done: "good", reserved: "warn" };
const TIMES = { eligible_at: "Due", expires_at: "Expires", remove_at: "Removed", dedupe_until: "Dedupe window ends" };
/** Times of the timeline, values with a card of their own, and what is the broker's own. */
const ELSEWHERE = new Set([
  "id", "state", "created_at", "reserved_at", "started_at", "ended_at", "payload", "payload_bytes", "result", "result_bytes", "errors", "headers", "progress", "worker", "attempts", "max_attempts",
  "parent", "children", "joined", "passed", "forwarded_to", "group", "head", "wait", "seq", "owner", "hold", "slot", "asked", "remember", "done_by",
]);
const WAITS = ["ready", "scheduled", "waiting"];

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
/** A name of a field as people write it. */
const words = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

export function job({ queue, id }) {
  const path = `/queues/${enc(queue)}/jobs/${enc(id)}`;
  const places = { acts: h("div", { class: "acts" }), progress: h("div"), story: h("div"), facts: h("div"), family: h("div"), payload: h("div"), result: h("div"), headers: h("div") };
  const trouble = h("p", { class: "card empty", role: "status" }, "loading");
  const badge = h("span", { class: "badge", role: "status" });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/queues" }, "Queues"), " / ", h("a", { href: address(queue) }, queue)), h("h1", { class: "mono" }, id), badge, places.acts),
    trouble, places.progress, h("div", { class: "columns" }, places.story, h("div", {}, places.facts, places.family)), places.payload, places.result, places.headers);
  const drawn = new Map();
  let whole = null; // with the beginnings of payload and result, which a job that goes on does not read again
  let loading = false;
  let closed = false;

  /** Draw a part where it differs from what is shown: whoever has opened or chosen something in it keeps that. */
  function put(name, about, make) {
    const key = JSON.stringify(about);
    if (drawn.get(name) === key) return;
    drawn.set(name, key);
    fill(places[name], make());
  }

  async function load() {
    if (loading || closed) return;
    loading = true;
    try {
      let found = await get(path, { payload: whole ? 0 : SHOWN });
      if (whole && found.state !== whole.state) found = await get(path, { payload: SHOWN });
      else if (whole) found = { ...found, payload: whole.payload, result: whole.result };
      whole = found;
      if (!closed) show(found);
    } catch (error) {
      if (error.status === 404) await gone();
      else if (!whole) trouble.textContent = error.message; // else the head says that the broker does not answer
    } finally { loading = false; }
  }

  function show(found) {
    trouble.hidden = true;
    badge.textContent = found.state;
    badge.className = `badge ${TONES[found.state] || ""}`;
    put("acts", [found.state, found.children?.left], () => orders(queue, id, found, load));
    put("progress", found.progress, () => progress(found));
    put("story", [found.state, found.created_at, found.eligible_at, found.reserved_at, found.ended_at, found.errors, found.worker, found.children], () => card("What happened", { body: timeline(queue, found) }));
    const { progress: _, payload, result, errors, ...about } = found;
    put("facts", about, () => card("About the job", { body: facts(found) }));
    put("family", [found.parent, found.children, found.joined, found.group, found.passed], () => family(queue, id, found));
    const type = found.headers?.["content-type"] || "";
    put("payload", [found.payload_bytes, payload], () => content("Payload", payload, found.payload_bytes, { type: String(type), link: h("a", { class: "button", href: payloadAddress(queue, id), download: "payload.bin" }, "Download") }));
    put("result", result, () => (result === undefined ? null : content("Result", result, found.result_bytes)));
    put("headers", found.headers, () => (found.headers ? content("Headers", JSON.stringify(found.headers)) : null));
    refresh(element);
  }

  async function gone() {
    const { ends: [end] } = await get(`/queues/${enc(queue)}/ended`, { id }).catch(() => ({ ends: [] }));
    if (closed) return;
    closed = true; // it does not come back under this id, but for a new job
    trouble.hidden = false;
    badge.textContent = "gone";
    badge.className = "badge";
    fill(places.acts);
    fill(places.progress);
    if (whole) put("story", ["gone"], () => card("What happened", { body: timeline(queue, { ...whole, state: "gone", end }) }));
    fill(trouble, ended(end));
  }

  load();
  return {
    element,
    view: { only: queue, limit: 1 },
    update() { refresh(element); if (whole?.state !== "done") load(); },
    close() { closed = true; },
  };
}

/** How a job ended that is not there any more, as far as this broker remembers. */
function ended(end) {
  if (!end) return "It is not there any more: done, cancelled, removed, or moved. This broker does not remember its end.";
  const { at, worker, attempt, seconds, to } = end;
  const details = [attempt && `attempt ${attempt}`, worker && `at ${worker}`, seconds != null && `in ${span(seconds)}`].filter(Boolean);
  return [`${ENDS[end.end] || end.end}: ${time(at)}${details.length ? `, ${details.join(", ")}` : ""}.`, to ? [" It is in ", h("a", { href: jobAddress(to, end.id) }, to), "."] : null];
}

/** How far it is: as its worker said last. */
function progress({ progress: said, state }) {
  if (!said || state === "done") return null;
  const { done, total, note } = said;
  const share = total ? `${count(done)} of ${count(total)}, ${Math.floor(100 * Math.min(1, done / total))} %` : `${count(done)} done`;
  return card("Progress", { acts: [note ? h("span", {}, note) : null, h("span", { class: "small" }, share, " ", relative(said.at))], body: h("progress", { max: total || 1, value: total ? Math.min(done, total) : null, "aria-label": share }) });
}

function facts(found) {
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  const times = Object.entries(TIMES).filter(([name]) => name in found && !(name === "eligible_at" && found.eligible_at <= found.created_at)).map(([name, title]) => fact(title, [time(found[name]), " ", relative(found[name])]));
  const rest = Object.entries(found).filter(([name]) => !ELSEWHERE.has(name) && !(name in TIMES)).map(([name, value]) => fact(words(name), written(name, value)));
  const attempts = found.max_attempts ? `${count(found.attempts ?? 0)} of ${count(found.max_attempts)}` : count(found.attempts ?? 0);
  return h("dl", { class: "facts" }, fact("Attempts", attempts), rest, times);
}

function written(name, value) {
  if (name === "visibility_timeout" || name === "keep_done" || name.endsWith("_limit")) return span(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** What belongs to the job: its parent, its children, those of its group, where it came from. */
function family(queue, id, { parent, children, joined, group }) {
  const of = (name, beginning) => h("a", { href: `${address(name)}?id=${enc(beginning)}` }, name);
  const lines = [
    parent && ["Parent", [h("a", { href: jobAddress(parent.queue, parent.id), class: "mono" }, parent.id), ` in ${parent.queue}`]],
    children && ["Children", [`${count(children.left)} of ${count(children.total)} have not ended; see `, (children.queues?.length ? children.queues : [queue]).map((name, at) => [at ? ", " : "", of(name, `${id}.`)])]],
    ...(joined || []).filter((each) => each.error).slice(0, 10).map((each) => ["Child failed", [h("span", { class: "mono" }, each.id), `: ${each.error}`]]),
    group && ["Group", h("a", { href: `#/find?${new URLSearchParams({ queue, group })}` }, group)],
  ].filter(Boolean);
  return lines.length ? card("What belongs to it", { body: h("dl", { class: "facts" }, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) }) : null;
}

function orders(queue, id, found, done) {
  const path = `/queues/${enc(queue)}/jobs/${enc(id)}`;
  const make = (title, verb, question, { danger = false, body = () => ({}), form = null } = {}) => button(title, {
    on: queue, danger, done,
    ask: () => ({ title: `${title} this job?`, text: question, body: form, yes: title, danger, after: () => `job ${id}: ${verb} done` }),
    order: () => post(`${path}/${verb}`, body()),
  });
  const { state, children } = found;
  const withChildren = children?.left ? h("input", { type: "checkbox" }) : null;
  const form = withChildren && h("label", {}, withChildren, ` Also the ${plural(children.left, "child that has", "children that have")} not ended`);
  const cancelled = (more) => ({ danger: true, form, body: () => ({ ...more, children: Boolean(withChildren?.checked) }) });
  const retry = state === "dead" && make("Retry", "redrive", "It becomes ready again: its attempts and its time to live start again; its history is kept.");
  return [
    retry,
    retry && !found.parent && again(queue, found, "Retry with an edit", "A new job with an id of its own is pushed, then this dead letter is removed.", () => post(`${path}/delete`)),
    state === "scheduled" && make("Promote", "promote", "It becomes ready now, before its delay is over."),
    WAITS.includes(state) && !children && changing(queue, found, done),
    WAITS.includes(state) && make("Cancel", "cancel", "It is removed; clients that wait for its result get an error.", cancelled({})),
    state === "reserved" && make("Stop", "cancel", "It ends as cancelled, whatever its worker says later; its handler is interrupted where that is possible.", cancelled({ running: true })),
    again(queue, found, "Clone", "A new job is pushed; this one stays as it is."),
    ["dead", "done"].includes(state) && make("Delete", "delete", "It is removed with its payload and its history.", { danger: true }),
  ];
}

/** Another priority or delay for a job that waits. */
function changing(queue, { id, priority }, done) {
  const level = h("input", { type: "number", min: 0, max: 255, value: priority ?? 0 });
  const delay = h("input", { type: "number", min: 0, step: "any" });
  return button("Change", {
    on: queue, done,
    ask: () => ({ title: "Change this job", body: h("div", { class: "grid" }, field("Priority", level, "0 to 255, higher first"), field("Delay", delay, "seconds from now; empty: as it is")), yes: "Change it", after: () => `job ${id} is changed` }),
    order: () => post(`/queues/${enc(queue)}/jobs/${enc(id)}/change`, { priority: Number(level.value), ...(delay.value === "" ? {} : { delay: Number(delay.value) }) }),
  });
}

/** Options that a new job takes over from another one. */
const TAKEN_OVER = ["priority", "group", "tenant", "kind", "headers", "max_attempts", "visibility_timeout", "backoff", "keep_done"];

/** A button that pushes a job like another one, with changes; `after()` follows when it is pushed. */
function again(queue, found, title, text, after = null) {
  const payload = h("textarea", { spellcheck: "false", rows: 8 });
  const options = h("textarea", { spellcheck: "false", rows: 4 });
  let kept = null; // bytes that are no text are pushed as they are
  return button(title, {
    on: queue, action: "push",
    ask: async () => {
      const { payload: value, payload_bytes: size } = await get(`/queues/${enc(queue)}/jobs/${enc(found.id)}`);
      kept = typeof value === "string" ? null : value;
      payload.value = kept ? "" : value;
      options.value = JSON.stringify(Object.fromEntries(TAKEN_OVER.filter((name) => found[name] != null && found[name] !== 0).map((name) => [name, found[name]])), null, 2);
      return { title, text, yes: "Push", after: (made) => `pushed job ${made}`, body: [kept ? h("p", { class: "small" }, `Its payload, ${bytes(size)} that are no text, is pushed as it is.`) : field("Payload", payload), field("Options", options, "JSON")] };
    },
    order: async () => {
      const pushed = await post(`/queues/${enc(queue)}/push`, { payload: kept || payload.value, options: options.value.trim() ? JSON.parse(options.value) : {} });
      try { await after?.(); } catch (error) { throw new Error(`job ${pushed.answer} is pushed, but this one stays: ${error.message}`); }
      return pushed;
    },
    done: (made) => { location.hash = jobAddress(queue, made); },
  });
}
