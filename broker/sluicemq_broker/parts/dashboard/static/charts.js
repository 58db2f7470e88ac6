// Charts of the history, and the small curves beside a queue's name.

import { get, enc } from "./api.js";
import { card, choice, fill, h } from "./dom.js";
import { count, labels, rate, span, steps, time } from "./format.js";
import { incidentList, marks } from "./incidents.js";

const SPANS = [["hour", "1 h"], ["day", "24 h"], ["month", "30 d"]];
const AGAIN = { hour: 20000, day: 60000, month: 300000 };
const CHARTS = [
  { title: "Throughput, jobs a second", form: rate, curves: [
    { name: "in", colour: "--in", of: (series, at) => series.curves.pushed[at] / series.step },
    { name: "out", colour: "--out", of: (series, at) => ended(series, at) / series.step },
    { name: "failed", colour: "--bad", of: (series, at) => failed(series, at) / series.step },
  ] },
  { title: "Latency, mean", form: span, curves: [
    { name: "in the queue", colour: "--back", of: (series, at) => mean(series.curves.waited[at], series.curves.delivered[at]) },
    { name: "at a worker", colour: "--out", of: (series, at) => mean(series.curves.worked[at], ended(series, at) + failed(series, at)) },
  ] },
  { title: "Backlog, ready jobs", form: count, curves: [
    { name: "ready, maximum", colour: "--in", of: (series, at) => series.curves.ready[at] },
  ] },
];

const ended = ({ curves }, at) => curves.committed[at] + curves.forwarded[at];
const failed = ({ curves }, at) => curves.rolled_back[at] + curves.rejected[at];
const mean = (milliseconds, jobs) => (jobs ? milliseconds / 1000 / jobs : null);
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
    const plot = h("div", { class: "plot", role: "img", "aria-label": `${title}: loading.` });
    return { plot, element: h("div", { class: "chart" }, h("h3", {}, title), plot), chart: null };
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
      // Numbered as they came, so that a number stays what it is while more happens.
      incidents = found.incidents.map((each, at) => ({ ...each, number: found.incidents.length - at }));
      if (!closed) happened.update(incidents);
      if (!closed) { trouble.textContent = ""; draw(); }
    } catch (error) { if (!closed) trouble.textContent = `no history: ${error.message}`; }
    if (!closed) timer = setTimeout(load, AGAIN[chosen]);
  }

  function draw() {
    if (!latest) return;
    places.forEach((place, at) => drawOne(place, CHARTS[at], latest, incidents));
  }

  const sizes = new ResizeObserver(() => places.forEach(({ chart, plot }) => {
    if (chart && plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: 150 });
  }));
  places.forEach(({ plot }) => sizes.observe(plot));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  load();
  return { element, happened: happened.element, close() { closed = true; clearTimeout(timer); sizes.disconnect(); dark.removeEventListener("change", draw); places.forEach(({ chart }) => chart?.destroy()); } };
}

function drawOne(place, { title, form, curves }, series, incidents) {
  const over = series.curves.pushed.length - 1; // the last one goes on
  const times = Array.from({ length: over }, (_, at) => series.since + at * series.step);
  const values = curves.map((curve) => times.map((_, at) => curve.of(series, at)));
  const hidden = place.chart ? place.chart.series.slice(1).map((each) => !each.show) : [];
  place.chart?.destroy();
  fill(place.plot);
  const lines = curves.map((curve, at) => ({
    label: curve.name, stroke: colour(curve.colour), width: 1.75, fill: at === 0 ? `${colour(curve.colour)}1f` : undefined,
    points: { show: false }, spanGaps: false, show: !hidden[at], value: (_, value) => (value === null || value === undefined ? "–" : form(value)),
  }));
  const axis = { stroke: colour("--soft"), font: "11.5px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  place.chart = new uPlot({
    width: place.plot.clientWidth || 320, height: 150, padding: [8, 8, 0, 0], cursor: { y: false, sync: { key: "history" } }, plugins: [marks(incidents, colour)],
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    series: [{ value: (_, at) => (at ? moment(at) : "–"), label: "at" }, ...lines],
    axes: [{ ...axis, space: 64, size: 28, values: (_, all) => all.map((at) => (series.step < 3600 ? moment(at).slice(11) : moment(at).slice(5, 10))) }, { ...axis, size: 52, incrs: steps.get(form), values: (_, all, __, ___, step) => labels(form, all, step) }],
  }, [times, ...values], place.plot);
  place.plot.setAttribute("aria-label", summary(title, form, curves, values));
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
