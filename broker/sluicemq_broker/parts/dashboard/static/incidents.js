// What was out of the ordinary: a list in words, and marks in the charts.

import { card, h, table } from "./dom.js";
import { count, span, time } from "./format.js";

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
const from = ({ brokers }) => brokers.join(", ");

/** Of each kind: how bad it is, its name, and what happened, in words. */
const KINDS = {
  started: ["", "Broker started", from],
  stopped: ["", "Broker stopped", (each) => `${from(each)} was stopped`],
  died: ["bad", "Broker died", (each) => `${from(each)}: last heartbeat at ${clock(each.at)}, declared dead at ${clock(each.until)}`],
  lease_lost: ["bad", "Declared dead", (each) => `${from(each)} sent no heartbeat for too long; its jobs went to others`],
  store_away: ["bad", "MongoDB away", (each) => `no answer for ${span(each.until - each.at)}; no jobs were handed out`],
  clock_set: ["bad", "MongoDB's clock was set", ({ figures }) => `${figures.seconds < 0 ? "back" : "forward"} by ${span(Math.abs(figures.seconds))}: planned jobs come ${figures.seconds < 0 ? "later" : "sooner"}`],
  reclaimed: ["warn", "Jobs taken back", ({ figures }) => `${plural(figures.count, "job", "jobs")} of dead brokers became ready again`],
  lost: ["bad", "Jobs not stored", ({ figures }) => `${plural(figures.count, "job", "jobs")} of producers that get no answers: the log says why`],
  flood: ["warn", "Flood", ({ figures }) => `${plural(figures.pushed, "job", "jobs")} came; ${count(figures.usual)} in a minute are usual`],
  backlog: ["warn", "Jobs waited", ({ figures }) => `up to ${span(figures.longest)}; ${count(figures.ready)} ready (maximum); ${count(figures.pushed)} came, ${count(figures.committed)} were done`],
  dead_letters: ["bad", "Dead letters", ({ figures }) => `${plural(figures.count, "job", "jobs")} died${figures.reason ? `, the latest of: ${figures.reason}` : ""}`],
  dead_removed: ["warn", "Dead letters removed", ({ figures }) => `${plural(figures.count, "dead letter", "dead letters")} went: older than dead_retention, or more than max_dead`],
  refused: ["warn", "Pushes refused", ({ figures }) => plural(figures.count, "job was not taken", "jobs were not taken")],
  timed_out: ["warn", "Timed out", ({ figures }) => `${plural(figures.count, "delivery", "deliveries")} without an answer in time`],
  paused: ["warn", "Paused", ({ figures }) => `${figures.what}`],
  resumed: ["", "Resumed", ({ figures }) => `${figures.what}`],
  disagree: ["warn", "Brokers differ", ({ figures }) => `${figures.said}`],
  bound_near: ["warn", "Almost full", ({ figures }) => `${figures.said}`],
};
const UNKNOWN = ["", "", () => ""];

export const tone = ({ kind }) => (KINDS[kind] || UNKNOWN)[0];
export const title = ({ kind }) => (KINDS[kind] || [0, kind])[1];
const words = (incident) => (KINDS[incident.kind] || UNKNOWN)[2](incident);
const clock = (at) => time(at).slice(11, 16);

/** When it was: the time, with its day where it is not today's, and how long it took. */
function when({ at, until }) {
  const today = time(Date.now() / 1000).slice(0, 10);
  const begun = time(at).startsWith(today) ? clock(at) : time(at).slice(5, 16);
  const took = until - at;
  return { text: took >= 60 ? `${begun} – ${clock(until)}` : begun, title: `${time(at)} to ${time(until)}` };
}

/** A card with the list; `address(queue)` is where a queue is shown, null on the page of one. */
export function incidentList(address) {
  const link = (row) => (row.queue ? h("a", { href: row.kind === "dead_letters" ? `#/dead?queue=${encodeURIComponent(row.queue)}` : address(row.queue) }, row.queue) : "");
  const list = table("What happened", [
    { title: "No.", num: true, more: true, cell: (row) => ({ text: row.number, tone: "zero" }) },
    { title: "When", cell: when },
    { title: "What", kind: "what", cell: (row) => h("span", { class: `badge ${tone(row)}` }, title(row)) },
    { title: "Queue", kind: "name", cell: link },
    { title: "How much", kind: "grow how", cell: (row) => ({ text: words(row) }) },
  ], { key: (row) => `${row.kind} ${row.queue} ${row.at} ${row.brokers[0]}`, empty: "No incidents in this time." });
  return { element: card("What happened", { bare: list.element }), update: list.update };
}

/** Marks in a chart: a band for what lasted, a line for what did not, with the number that it has in the list. */
export function marks(incidents, colour) {
  return { hooks: { drawClear: [(plot) => {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${10.5 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    let free = -Infinity;
    for (const each of [...incidents].sort((one, other) => one.at - other.at)) {
      const [left, right] = [each.at, each.until].map((at) => Math.min(Math.max(plot.valToPos(at, "x", true), bbox.left), bbox.left + bbox.width));
      if (each.until < plot.scales.x.min || each.at > plot.scales.x.max) continue;
      ctx.fillStyle = ctx.strokeStyle = colour(tone(each) ? `--${tone(each)}` : "--soft");
      ctx.globalAlpha = 0.13;
      if (right - left > 2 * ratio) ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.globalAlpha = 0.8;
      ctx.fillRect(left, bbox.top, ratio, bbox.height);
      const label = String(each.number);
      if (left + 3 * ratio > free) {
        ctx.globalAlpha = 1;
        ctx.fillText(label, left + 3 * ratio, bbox.top + ratio);
        free = left + 3 * ratio + ctx.measureText(label).width;
      }
    }
    ctx.restore();
  }] } };
}
