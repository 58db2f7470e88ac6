// Charts of the history, and the small curves beside a queue's name.

import { get, enc } from "./api.js";
import { card, choice, fill, h, say } from "./dom.js";
import { count, labels, rate, span, steps, time } from "./format.js";
import { incidentList, strip } from "./incidents.js";

const SPANS = [["hour", "1 h"], ["day", "24 h"], ["month", "30 d"]];
const AGAIN = { hour: 20000, day: 60000, month: 300000 };
const HEIGHT = 150;
const percentiles = (timing) => [["p50", "--out"], ["p95", "--back"], ["p99", "--warn"]].map(([name, colour]) => ({ name, colour, of: (series, at) => series.latency[`${timing}_${name}`][at] }));
/** `log`: a scale on which one slow minute leaves the others visible. */
const CHARTS = [
  { title: "Jobs a second", form: rate, curves: [
    { name: "in", colour: "--in", of: (series, at) => series.curves.pushed[at] / series.step },
    { name: "out", colour: "--out", of: (series, at) => ended(series, at) / series.step },
    { name: "failed", colour: "--bad", of: (series, at) => failed(series, at) / series.step },
  ] },
  { title: "Time in the queue", form: span, log: true, curves: percentiles("time_in_queue") },
  { title: "Time at a worker", form: span, log: true, curves: percentiles("time_at_worker") },
  { title: "Ready jobs, the most", form: count, curves: [{ name: "ready", colour: "--in", of: (series, at) => series.curves.ready[at] }] },
];

const ended = ({ curves }, at) => curves.committed[at] + curves.forwarded[at];
const failed = ({ curves }, at) => curves.rolled_back[at] + curves.rejected[at];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A card with the charts of one subject ("queue" or "broker" and its name), and one with what happened in the
 * time that they show; close() ends both.
 */
export function charts(subject, name) {
  let chosen = sessionStorage.getItem("sluicemq-span") || "hour";
  let timer = null;
  let closed = false;
  let latest = null;
  let incidents = [];
  const happened = incidentList((queue) => `#/queues/${enc(queue)}`);
  const places = CHARTS.map(({ title }) => {
    const plot = h("div", { class: "plot", role: "img", "aria-label": `${title}: loading.` }, h("p", { class: "small loading" }, "loading"));
    const cut = h("span", { class: "small" });
    return { plot, cut, element: h("div", { class: "chart" }, h("h3", {}, title, " ", cut), plot), chart: null };
  });
  const trouble = h("p", { class: "small", role: "status" });
  const switcher = choice("Time shown", SPANS, chosen, (value) => { chosen = value; sessionStorage.setItem("sluicemq-span", value); load(); });
  const element = card("History", { acts: switcher, body: [h("div", { class: "charts" }, places.map((each) => each.element)), trouble] });

  async function load() {
    clearTimeout(timer);
    try {
      const [series, found] = await Promise.all([
        get(`/series/${subject}/${enc(name)}`, { span: chosen }),
        get("/incidents", { span: chosen, queue: subject === "queue" ? name : null }),
      ]);
      latest = series;
      incidents = found.incidents;
      if (!closed) { happened.update(incidents); trouble.textContent = ""; draw(); }
    } catch (error) { if (!closed) fail(error.message); }
    if (!closed) timer = setTimeout(load, AGAIN[chosen]);
  }

  /** Words in the place of charts that were never drawn; those that were stay, with a word below. */
  function fail(why) {
    const words = `no history now: ${why}`;
    happened.fail(words);
    if (latest) { say(trouble, words); return; }
    places.forEach(({ plot }, at) => { fill(plot, h("p", { class: "small" }, words)); plot.setAttribute("aria-label", `${CHARTS[at].title}: ${words}`); });
  }

  const draw = () => { if (latest) places.forEach((place, at) => drawOne(place, CHARTS[at], latest, incidents)); };
  const sizes = new ResizeObserver(() => places.forEach(({ chart, plot }) => {
    if (chart && plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: HEIGHT });
  }));
  places.forEach(({ plot }) => sizes.observe(plot));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  load();
  return { element, happened: happened.element, close() { closed = true; clearTimeout(timer); sizes.disconnect(); dark.removeEventListener("change", draw); places.forEach(({ chart }) => chart?.destroy()); } };
}

function drawOne(place, { title, form, curves, log = false }, series, incidents) {
  const over = series.curves.pushed.length - 1; // the last one goes on
  const times = Array.from({ length: over }, (_, at) => series.since + at * series.step);
  const values = curves.map((curve) => times.map((_, at) => curve.of(series, at)));
  const known = values.flat().filter((each) => each !== null);
  const hidden = place.chart ? place.chart.series.slice(1).map((each) => !each.show) : [];
  place.chart?.destroy();
  place.chart = null;
  fill(place.plot);
  place.plot.setAttribute("aria-label", summary(title, form, curves, values));
  if (!known.some((each) => each > 0)) { say(place.cut, ""); fill(place.plot, h("p", { class: "small" }, "no jobs in this time")); return; }
  const most = log ? null : top(known);
  say(place.cut, most && Math.max(...known) > most ? `(cut off: up to ${form(Math.max(...known))})` : "");
  const lines = curves.map((curve, at) => ({
    label: curve.name, stroke: colour(curve.colour), width: 1.75, fill: at === 0 && !log ? `${colour(curve.colour)}1f` : undefined,
    points: { show: log && over < 61, size: 3 }, spanGaps: false, show: !hidden[at], value: (_, value) => (value === null || value === undefined ? "–" : form(value)),
  }));
  const axis = { stroke: colour("--soft"), font: "11.5px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const side = log
    ? { ...axis, size: 52, values: (_, all) => all.map((each) => (Number.isInteger(Math.round(Math.log10(each) * 1e6) / 1e6) ? span(each) : "")) }
    : { ...axis, size: 52, incrs: steps.get(form), values: (_, all, __, ___, step) => labels(form, all, step) };
  place.chart = new uPlot({
    width: place.plot.clientWidth || 320, height: HEIGHT, padding: [8, 8, 0, 0], cursor: { y: false, sync: { key: "history" } }, plugins: [strip(incidents, colour)],
    scales: { y: log ? { distr: 3, range: () => decades(known) } : { range: () => [0, most] } },
    series: [{ value: (_, at) => (at ? moment(at) : "–"), label: "at" }, ...lines],
    axes: [{ ...axis, space: 64, size: 32, gap: 9, values: (_, all) => all.map((at) => (series.step < 3600 ? moment(at).slice(11) : moment(at).slice(5, 10))) }, side],
  }, [times, ...(log ? values.map((each) => each.map((value) => (value === null ? null : Math.max(value, LEAST)))) : values)], place.plot);
}

/** Seconds below which a duration is drawn as this one. */
const LEAST = 1e-4;

/** Whole powers of ten around these durations. */
function decades(known) {
  const [least, most] = [Math.max(LEAST, Math.min(...known)), Math.max(LEAST, ...known)].map(Math.log10);
  return [10 ** Math.floor(least), 10 ** Math.max(Math.ceil(most), Math.floor(least) + 2)];
}

/** The end of a scale: above all values, but for a few that are more than three times as high as all the others. */
function top(known) {
  const sorted = known.filter((each) => each > 0).sort((one, other) => one - other);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.97)];
  return (sorted.at(-1) > 3 * usual ? 1.5 * usual : sorted.at(-1) * 1.1) || 1;
}

const moment = (at) => time(at).slice(0, 16);

function summary(title, form, curves, values) {
  const words = curves.map(({ name }, at) => {
    const known = values[at].filter((each) => each !== null);
    if (!known.length) return `${name}: nothing`;
    return `${name}: ${form(known[known.length - 1])} now, maximum ${form(Math.max(...known))}`;
  });
  return `${title}. ${words.join("; ")}.`;
}

/** Small curves of an hour: `curves` is {pushed: [...], committed: [...]}. */
export function spark(curves) {
  const most = Math.max(1, ...(curves?.pushed || []), ...(curves?.committed || []));
  const path = (values) => values.map((value, at) => `${at ? "L" : "M"}${(at * 110 / (values.length - 1)).toFixed(1)} ${(24 - value / most * 22).toFixed(1)}`).join("");
  const total = (values) => values.reduce((sum, each) => sum + each, 0);
  const words = curves ? `in the last hour ${count(total(curves.pushed))} in, ${count(total(curves.committed))} out` : "nothing in the last hour";
  const drawing = h("svg:svg", { class: "spark", viewBox: "0 0 110 26", role: "img", "aria-label": words, preserveAspectRatio: "none" });
  if (curves) drawing.append(h("svg:path", { class: "in", d: path(curves.pushed) }), h("svg:path", { class: "out", d: path(curves.committed) }));
  return drawing;
}
