// Streams, their subscriptions, and the routes into queues.

import { get } from "./api.js";
import { card, table } from "./dom.js";
import { ago, bytes, count, span } from "./format.js";
import { asking, link } from "./others.js";
import { noneSeen } from "./session.js";

export function streams() {
  const lag = (row) => ({ text: count(row.behind), tone: row.behind > 1000 ? "warn" : row.behind ? "" : "zero" });
  const late = (row) => (row.seconds_behind === null ? "–" : { text: span(row.seconds_behind), tone: row.seconds_behind > 60 ? "warn" : row.seconds_behind ? "" : "zero" });
  const kept = table("Streams", [
    { title: "Stream", kind: "name", cell: (row) => row.name },
    { title: "Messages", num: true, cell: (row) => count(row.messages) },
    { title: "First", num: true, more: true, cell: (row) => count(row.first) },
    { title: "Last", num: true, cell: (row) => count(row.last) },
    { title: "Size", num: true, cell: (row) => bytes(row.bytes) },
    { title: "Last message", more: true, kind: "grow", cell: (row) => ago(row.last_at, Date.now() / 1000) },
  ], { empty: noneSeen("subscribe", "streams", "no streams yet: the first message makes one") });
  const subscriptions = table("Subscriptions", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Stream", kind: "name", cell: (row) => row.stream },
    { title: "Behind", num: true, cell: lag },
    { title: "Lag", num: true, cell: late },
    { title: "Watermark", num: true, more: true, cell: (row) => count(row.watermark) },
    { title: "Held by", kind: "grow", cell: (row) => row.holder || "nobody" },
    { title: "For", more: true, cell: (row) => row.kind || "–" },
  ], { key: (row) => `${row.stream} ${row.name}`, empty: "no subscriptions" });
  const routes = table("Routes", [
    { title: "From stream", kind: "name", cell: (row) => row.stream },
    { title: "Topics", cell: (row) => row.topics.join(", ") || "all" },
    { title: "Into queue", kind: "name", cell: (row) => link(row.queue) },
    { title: "Behind", num: true, cell: lag },
    { title: "Lag", num: true, cell: late },
    { title: "Held by", kind: "grow", more: true, cell: (row) => row.holder || "nobody" },
  ], { key: (row) => `${row.stream} ${row.subscription} ${row.queue}`, empty: "no routes: [[routes]] in the configuration" });
  return asking("Streams", "", [
    { element: card("Messages", { bare: kept.element }), show: (found) => kept.update(found.streams) },
    { element: card("Subscriptions", { bare: subscriptions.element }), show: (found) => subscriptions.update(found.subscriptions) },
    { element: card("Routes into queues", { bare: routes.element }), show: (found) => routes.update(found.routes) },
  ], () => get("/streams"), 3000);
}
