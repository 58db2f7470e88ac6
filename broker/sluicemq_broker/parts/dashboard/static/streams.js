// Streams, their subscriptions, and the routes into queues; one stream with its messages.

import { button, field } from "./actions.js";
import { enc, get, post } from "./api.js";
import { browse } from "./browse.js";
import { card, h, say, table } from "./dom.js";
import { ago, bytes, count, span, time } from "./format.js";
import { asking, link } from "./others.js";
import { note } from "./place.js";
import { noneSeen } from "./session.js";

const PAGE = 50;
const page = (name) => `#/streams/${enc(name)}`;
const linked = (name) => h("a", { href: page(name) }, name);
const lag = (row) => ({ text: count(row.behind), tone: row.behind > 1000 ? "warn" : row.behind ? "" : "zero" });
const late = (row) => (row.seconds_behind === null ? "–" : { text: span(row.seconds_behind), tone: row.seconds_behind > 60 ? "warn" : row.seconds_behind ? "" : "zero" });

export function streams({ asked, parts }) {
  if (parts.length > 1) return one(parts[1], asked);
  const kept = browse("Streams", [
    { title: "Stream", kind: "name", cell: (row) => linked(row.name), by: (row) => row.name },
    { title: "Messages", num: true, cell: (row) => count(row.messages), by: (row) => row.messages },
    { title: "First", num: true, more: true, cell: (row) => count(row.first) },
    { title: "Last", num: true, cell: (row) => count(row.last), by: (row) => row.last },
    { title: "Size", num: true, cell: (row) => bytes(row.bytes), by: (row) => row.bytes },
    { title: "Last message", more: true, kind: "grow", cell: (row) => ago(row.last_at, Date.now() / 1000), by: (row) => row.last_at ?? 0 },
  ], { path: "streams", asked, text: (row) => row.name, key: (row) => row.name, empty: asked.get("filter") ? "no matching stream" : noneSeen("subscribe", "streams", "no streams yet: the first message makes one") });
  const subscriptions = table("Subscriptions", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Stream", kind: "name", cell: (row) => linked(row.stream) },
    { title: "Behind", num: true, cell: lag },
    { title: "Lag", num: true, cell: late },
    { title: "Watermark", num: true, more: true, cell: (row) => count(row.watermark) },
    { title: "Held by", kind: "grow", cell: (row) => row.holder || "nobody" },
    { title: "For", more: true, cell: (row) => row.kind || "–" },
  ], { key: (row) => `${row.stream} ${row.name}`, empty: "no subscriptions" });
  const routes = table("Routes", [
    { title: "From stream", kind: "name", cell: (row) => linked(row.stream) },
    { title: "Topics", cell: (row) => row.topics.join(", ") || "all" },
    { title: "Into queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "Behind", num: true, cell: lag },
    { title: "Lag", num: true, cell: late },
    { title: "Held by", kind: "grow", more: true, cell: (row) => row.holder || "nobody" },
  ], { key: (row) => `${row.stream} ${row.subscription} ${row.queue}`, empty: "no routes: [[routes]] in the configuration" });
  return asking("Streams", "", [
    { element: card("Streams", { acts: kept.filter, bare: kept.element }), show: (found) => kept.update(found.streams), fail: kept.fail },
    { element: card("Subscriptions", { bare: subscriptions.element }), show: (found) => subscriptions.update(found.subscriptions), fail: subscriptions.fail },
    { element: card("Routes into queues", { bare: routes.element }), show: (found) => routes.update(found.routes), fail: routes.fail },
  ], () => get("/streams"), 3000);
}

/** One stream: its subscriptions with their lag while this page is open, and its messages. */
function one(name, asked) {
  const path = `/streams/${enc(name)}`;
  const lags = new Map();
  const facts = h("p", { class: "small" });
  let newest = 0;
  const subscriptions = table("Subscriptions", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Behind", num: true, cell: lag },
    { title: "Lag", num: true, cell: late },
    { title: "Behind, since this page is open", more: true, cell: (row) => curve(lags.get(row.name) || []) },
    { title: "Watermark", num: true, more: true, cell: (row) => count(row.watermark) },
    { title: "Held by", kind: "grow", more: true, cell: (row) => row.holder || "nobody" },
    { title: "", hidden: "Actions", cell: (row) => seek(row) },
  ], { key: (row) => row.name, empty: "no subscriptions" });

  /** Move a subscription, with what that repeats or skips. */
  function seek(row) {
    const where = h("input", { type: "number", min: -1, value: row.watermark, required: true });
    const warning = h("p", { role: "status", class: "small bad" });
    const warn = () => {
      const to = Number(where.value), moved = (to < 0 ? newest : to) - row.watermark;
      say(warning, moved < 0 ? `${count(-moved)} messages come again: what they caused happens again.` : moved > 0 ? `${count(moved)} messages are skipped, and nobody works on them.` : "Nothing changes.");
    };
    where.addEventListener("input", warn);
    return button("Seek", {
      on: name, label: `Seek ${row.name}`, danger: true,
      ask: () => { warn(); return { title: `Move ${row.name} of ${name}`, text: row.holder ? `It is held by ${row.holder}: that is refused until it is released.` : "", body: [field("Go on behind number", where, `it stands at ${count(row.watermark)}; the newest is ${count(newest)}, or -1`), warning], yes: "Move it", danger: true, after: () => `${row.name} is moved` }; },
      order: () => post(`${path}/subscriptions/${enc(row.name)}/seek`, { watermark: Number(where.value) }), done: () => shown.reload(),
    });
  }

  const input = (type, id, value, more = {}) => h("input", { type, id, value, autocomplete: "off", ...more });
  const number = input("number", "from", asked.get("from") || "", { min: 1, placeholder: "the newest" });
  const since = input("datetime-local", "since", asked.get("since") || "");
  const topic = input("search", "topic", asked.get("topic") || "", { placeholder: "all" });
  const where = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => go(Math.max(1, first - PAGE)) }, "Earlier");
  const on = h("button", { type: "button", onclick: () => go(after + 1) }, "Later");
  const list = table("Messages", [
    { title: "Number", num: true, cell: (row) => count(row.number) },
    { title: "Published", cell: (row) => ago(row.at, Date.now() / 1000) },
    { title: "Topic", kind: "name slim", cell: (row) => words(row.topic) },
    { title: "Content", kind: "grow", cell: (row) => content(row) },
    { title: "Size", num: true, more: true, cell: (row) => bytes(row.size) },
  ], { key: (row) => row.number, empty: "no messages here" });
  let first = 0, after = 0, typing = null, turn = 0;

  async function look(step = false) {
    note(`streams/${enc(name)}`, { from: number.value, since: since.value, topic: topic.value }, { step });
    const mine = ++turn;
    try {
      const found = await get(`${path}/messages`, { after: number.value ? Math.max(0, Number(number.value) - 1) : null, since: !number.value && since.value ? new Date(since.value).getTime() / 1000 : null, topic: topic.value, limit: PAGE });
      if (mine !== turn) return;
      list.update(found.messages);
      first = found.messages[0]?.number ?? Number(number.value || 1);
      after = found.after;
      say(where, found.messages.length ? `${count(first)} to ${count(found.messages.at(-1).number)} of ${count(found.first)} to ${count(found.newest)}` : found.more ? `none among those up to ${count(after)}: go on with Later` : "no further messages");
      back.disabled = first <= found.first || Boolean(topic.value);
      on.disabled = !found.more;
    } catch (error) { if (mine === turn) { list.fail(error.message); say(where, error.message); } }
  }

  function go(to) { number.value = to; since.value = ""; look(true); }

  for (const each of [number, since, topic]) {
    each.addEventListener("input", () => { if (each === since) number.value = ""; if (each === number) since.value = ""; clearTimeout(typing); typing = setTimeout(look, 350); });
  }
  const shown = asking(name, facts, [
    { element: card("Subscriptions", { bare: subscriptions.element }), fail: subscriptions.fail, show(found) {
      const row = found.streams.find((each) => each.name === name);
      newest = row?.last ?? 0;
      say(facts, row ? `${count(row.messages)} messages, ${bytes(row.bytes)}, numbers ${count(row.first)} to ${count(row.last)}` : "no such stream: the first message makes it");
      const rows = found.subscriptions.filter((each) => each.stream === name);
      for (const each of rows) lags.set(each.name, [...(lags.get(each.name) || []), each.behind].slice(-200));
      if (!document.querySelector("dialog")) subscriptions.update(rows);
    } },
    { element: card("Messages", { body: h("div", { class: "fields" }, h("label", { for: "from" }, "From number", number), h("label", { for: "since" }, "Or from", since), h("label", { class: "wide", for: "topic" }, "Topic begins with", topic)), bare: [list.element, h("div", { class: "pager" }, where, h("div", { class: "acts" }, h("button", { type: "button", onclick: () => { number.value = since.value = ""; look(true); } }, "Newest"), back, on))] }), show() {} },
  ], () => get("/streams"), 3000);
  shown.element.querySelector(".title").prepend(h("p", { class: "crumb" }, h("a", { href: "#/streams" }, "Streams")));
  look();
  const { close } = shown;
  return { ...shown, close() { turn = -1; clearTimeout(typing); close(); } };
}

const words = (value) => (typeof value === "string" ? value : "(no text)");

/** A message's content, of which a long one is opened. */
function content(row) {
  const text = words(row.body);
  const whole = row.size > 2048 ? `${text} …` : text;
  return text.length < 120 ? h("span", { class: "mono" }, text) : h("details", {}, h("summary", { class: "mono" }, `${text.slice(0, 120)}…`), h("pre", { class: "content" }, whole));
}

/** How far behind it was at each look. */
function curve(values) {
  const most = Math.max(1, ...values);
  const path = values.map((value, at) => `${at ? "L" : "M"}${(at * 110 / Math.max(1, values.length - 1)).toFixed(1)} ${(24 - value / most * 22).toFixed(1)}`).join("");
  return h("svg:svg", { class: "spark", viewBox: "0 0 110 26", role: "img", "aria-label": `behind by ${count(values.at(-1) ?? 0)} now, by ${count(most)} at most`, preserveAspectRatio: "none" }, h("svg:path", { class: "in", d: path }));
}
