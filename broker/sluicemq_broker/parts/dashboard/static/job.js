// One job: all that is known of it, its payload as text, JSON or bytes, its errors, and what can be done with it.

import { button } from "./actions.js";
import { enc, get, payloadAddress, post } from "./api.js";
import { card, choice, fill, h } from "./dom.js";
import { ago, bytes, count, span, time } from "./format.js";
import { address } from "./queues.js";

const SHOWN = 65536;
const TONES = { dead: "bad", done: "good", ready: "", scheduled: "", waiting: "", reserved: "warn" };
const TIMES = ["created_at", "eligible_at", "reserved_at", "started_at", "ended_at", "expires_at", "remove_at", "dedupe_until"];
const ELSEWHERE = new Set([...TIMES, "id", "state", "payload", "payload_bytes", "result", "result_bytes", "errors", "headers", "seq", "owner", "hold"]);
/** Ends of jobs that a broker remembers, in words. */
const ENDS = { committed: "It is done", forwarded: "It went on to another queue", cancelled: "It was cancelled", expired: "Its time to live was over" };

export function job({ queue, id }) {
  const place = h("div", { "aria-busy": "true" });
  const badge = h("span", { class: "badge" });
  const acts = h("div", { class: "acts" });
  const element = h("div", {},
    h("div", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: "#/queues" }, "Queues"), " / ", h("a", { href: address(queue) }, queue)), h("h1", { class: "mono" }, id), badge, acts),
    place);
  let closed = false;

  async function load() {
    try {
      const found = await get(`/queues/${enc(queue)}/jobs/${enc(id)}`, { payload: SHOWN });
      if (closed) return;
      badge.textContent = found.state;
      badge.className = `badge ${TONES[found.state] || ""}`;
      fill(acts, orders(queue, id, found, load));
      fill(place, shown(queue, id, found));
    } catch (error) {
      if (closed) return;
      const text = error.status === 404 ? await ended(queue, id) : error.message;
      if (closed) return;
      badge.textContent = error.status === 404 ? "gone" : "unknown";
      fill(acts);
      fill(place, h("p", { class: "card empty" }, text));
    }
    place.removeAttribute("aria-busy");
  }
  load();
  return { element, close() { closed = true; } };
}

/** How a job ended that is not there any more, as far as this broker remembers. */
async function ended(queue, id) {
  const { ends } = await get(`/queues/${enc(queue)}/ended`, { id }).catch(() => ({ ends: [] }));
  if (!ends.length) return "It is not there any more: done, cancelled, removed, or moved. This broker does not remember its end.";
  const [{ end, at, worker, attempt, seconds }] = ends;
  const details = [attempt && `attempt ${attempt}`, worker && `at ${worker}`, seconds != null && `in ${span(seconds)}`].filter(Boolean);
  return `${ENDS[end] || end}: ${time(at)}${details.length ? `, ${details.join(", ")}` : ""}.`;
}

function orders(queue, id, found, done) {
  const path = `/queues/${enc(queue)}/jobs/${enc(id)}`;
  const make = (words, verb, title, text, danger = false, body = {}) => button(words, {
    on: queue, danger, done, ask: () => ({ title, text, yes: words, danger, after: () => `job ${id}: ${verb} done` }), order: () => post(`${path}/${verb}`, body),
  });
  return [
    found.state === "dead" && make("Retry", "redrive", "Retry this job?", "It becomes ready again: its attempts and its time to live start again; its history is kept."),
    found.state === "scheduled" && make("Promote", "promote", "Run this job now?", "It becomes ready now, before its delay is over."),
    ["ready", "scheduled", "waiting"].includes(found.state) && make("Cancel", "cancel", "Cancel this job?", "It is removed; clients that wait for its result get an error.", true),
    found.state === "reserved" && make("Stop", "cancel", "Stop this job?", "It ends as cancelled, whatever its worker says later; its handler is interrupted where that is possible.", true, { running: true }),
    ["dead", "done"].includes(found.state) && make("Delete", "delete", "Delete this job?", "It is removed with its payload and its history.", true),
    h("button", { type: "button", onclick: done }, "Reload"),
  ];
}

function shown(queue, id, found) {
  const now = Date.now() / 1000;
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  const times = TIMES.filter((name) => name in found).map((name) => fact(name.replaceAll("_", " "), [time(found[name]), " ", h("span", { class: "small" }, ago(found[name], now).text)]));
  const rest = Object.entries(found).filter(([name]) => !ELSEWHERE.has(name)).map(([name, value]) => fact(name.replaceAll("_", " "), name === "visibility_timeout" ? span(value) : typeof value === "object" ? JSON.stringify(value) : String(value)));
  const errors = [...(found.errors || [])].reverse();
  return [
    h("div", { class: "columns" },
      card("Facts", { body: h("dl", { class: "facts" }, times, rest) }),
      card("History of errors", { body: errors.length
        ? h("ol", { class: "story" }, errors.map(attempt))
        : h("p", { class: "small" }, "It has not failed.") })),
    content("Payload", found.payload, found.payload_bytes, h("a", { class: "button", href: payloadAddress(queue, id), download: "payload.bin" }, "Download")),
    "result" in found ? content("Result", found.result, found.result_bytes) : null,
    found.headers ? card("Headers", { body: h("pre", { class: "content" }, JSON.stringify(found.headers, null, 2)) }) : null,
  ];
}

/** An attempt that failed: why, when and where, its traceback folded. */
function attempt(each) {
  const where = [`attempt ${each.attempt}`, time(each.at), each.began_at && `after ${span(each.at - each.began_at)}`, each.worker, each.host && `${each.host}, process ${each.pid}`];
  return h("li", {},
    h("div", {}, each.reason || "no reason"),
    each.type ? h("div", { class: "small mono" }, `${each.type} in ${each.place || "unknown"}`) : null,
    h("div", { class: "small" }, where.filter(Boolean).join(", ")),
    each.traceback ? h("details", {}, h("summary", {}, "Traceback"), h("pre", { class: "content", tabindex: "0", "aria-label": `traceback of attempt ${each.attempt}` }, each.traceback)) : null);
}

/** Text, JSON or bytes; the first of these that it can be is shown. */
function content(title, value, size, link = null) {
  const raw = asBytes(value);
  const text = typeof value === "string" ? value : null;
  const cut = size > raw.length;
  const json = cut || text === null ? null : parsed(text);
  const forms = [json !== null && ["json", "JSON"], text !== null && ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  const place = h("pre", { class: "content", tabindex: "0", "aria-label": title });
  const draw = (form) => {
    place.className = form === "hex" ? "content hex" : "content";
    place.textContent = form === "json" ? json : form === "text" ? text : hex(raw);
  };
  draw(forms[0][0]);
  const note = cut ? `the first ${bytes(raw.length)} of ${bytes(size)}` : bytes(size ?? raw.length);
  return card(title, { acts: [h("span", { class: "small" }, note), choice(`${title} as`, forms, forms[0][0], draw), link], body: place });
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? JSON.stringify(value, null, 2) : null;
  } catch { return null; }
}

function asBytes(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return value?.base64 ? Uint8Array.from(atob(value.base64), (each) => each.charCodeAt(0)) : new Uint8Array();
}

function hex(raw) {
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, 16384); at += 16) {
    const part = [...raw.slice(at, at + 16)];
    const numbers = part.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers}  ${signs}`);
  }
  if (raw.length > 16384) lines.push(`and ${count(raw.length - 16384)} bytes more`);
  return lines.join("\n") || "(empty)";
}
