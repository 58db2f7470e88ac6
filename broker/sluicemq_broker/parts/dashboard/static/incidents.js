// What was out of the ordinary: a list in words, and a strip under the axis of each chart.

import { card, h, some, table } from "./dom.js";
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
  stuck: ["bad", "Worker stuck", ({ figures }) => `${figures.said || plural(figures.count, "worker", "workers")}`],
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
    { title: "When", cell: when },
    { title: "What", kind: "what", cell: (row) => h("span", { class: `badge ${tone(row)}` }, title(row)) },
    { title: "Queue", kind: "name slim", cell: link },
    { title: "Details", kind: "grow how", cell: (row) => ({ text: words(row) }) },
  ], { key: (row) => `${row.kind} ${row.queue} ${row.at} ${row.brokers[0]}`, empty: "No incidents in this time." });
  const few = some(list, 5);
  return { element: card("What happened", { bare: few.element }), update: few.update, fail: list.fail };
}

/** A strip under the axis of a chart: a piece for each incident, as long as it lasted. */
export function strip(incidents, colour) {
  return { hooks: { draw: [(plot) => {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio || 1;
    const place = (at) => Math.min(Math.max(plot.valToPos(at, "x", true), bbox.left), bbox.left + bbox.width);
    ctx.save();
    const worst = (one, other) => RANKS.indexOf(tone(one)) - RANKS.indexOf(tone(other)); // the worst one is drawn last
    for (const each of [...incidents].sort(worst)) {
      if (each.until < plot.scales.x.min || each.at > plot.scales.x.max) continue;
      ctx.fillStyle = colour(tone(each) ? `--${tone(each)}` : "--soft");
      ctx.fillRect(place(each.at), bbox.top + bbox.height + 2 * ratio, Math.max(3 * ratio, place(each.until) - place(each.at)), 4 * ratio);
    }
    ctx.restore();
  }] } };
}
const RANKS = ["", "warn", "bad"];
