// Kinds of jobs: how many come, how many fail, how long they take.

import { get } from "./api.js";
import { browse } from "./browse.js";
import { card, h, table } from "./dom.js";
import { count, rate, span } from "./format.js";
import { asking, link } from "./others.js";

const quiet = (value, form, tone = "") => ({ text: value ? form(value) : "0", tone: value ? tone : "zero" });

/** The columns of kinds; `withQueue`: of several queues. */
function columns(withQueue) {
  return [
    { title: "Kind", kind: "name", cell: (row) => (row.kind ? h("a", { href: `#/find?${new URLSearchParams({ kind: row.kind, queue: row.queue })}` }, row.kind) : "(none)"), by: (row) => row.kind },
    withQueue && { title: "Queue", kind: "name slim", cell: (row) => link(row.queue), by: (row) => row.queue },
    { title: "In/s", num: true, more: true, cell: (row) => quiet(row.rates.pushed, rate), by: (row) => row.rates.pushed },
    { title: "Out/s", num: true, more: true, cell: (row) => quiet(row.rates.committed, rate), by: (row) => row.rates.committed },
    { title: "Failing/s", num: true, cell: (row) => quiet(row.rates.rolled_back, rate, "bad"), by: (row) => row.rates.rolled_back },
    { title: "Failed", num: true, more: true, cell: (row) => quiet(row.rolled_back + row.rejected, count, "bad"), by: (row) => row.rolled_back + row.rejected },
    { title: "Dead", num: true, cell: (row) => quiet(row.dead, count, "bad"), by: (row) => row.dead },
    { title: "Waited", num: true, more: true, cell: (row) => span(row.waited), by: (row) => row.waited ?? -1 },
    { title: "p50", num: true, more: true, cell: (row) => span(row.p50), by: (row) => row.p50 ?? -1 },
    { title: "p95", num: true, cell: (row) => span(row.p95), by: (row) => row.p95 ?? -1 },
    { title: "p99", num: true, more: true, cell: (row) => span(row.p99), by: (row) => row.p99 ?? -1 },
  ].filter(Boolean);
}

/** Those that fail most now come first, then those of which most have died. */
export const failing = (one, other) => other.rates.rolled_back - one.rates.rolled_back || other.dead - one.dead || other.pushed - one.pushed;

export const kindTable = (caption, options) => table(caption, columns(false), options);

export function kinds({ asked }) {
  // The broker looks through all kinds, and answers with those that fail most.
  const list = browse("Kinds of jobs", columns(true), { path: "kinds", onfilter: () => shown.reload(), asked, text: (row) => row.kind, key: (row) => `${row.queue} ${row.kind}`, empty: asked.get("filter") ? "no matching kind" : "no job has come since the broker's start" });
  const shown = asking("Kinds", "at this broker since its start, the 100 that fail most; times are those at a worker", [
    { element: card("Kinds of jobs, those that fail first", { acts: list.filter, bare: list.element }), show: (found) => list.update(found.kinds.sort(failing)), fail: list.fail },
  ], () => get("/kinds", { contains: list.filter.value, limit: 100 }), 5000);
  return shown;
}
