// What has happened to a job, in order: pushed, moved, each attempt that failed, and where it is now.

import { h } from "./dom.js";
import { ago, count, span, time } from "./format.js";
import { address } from "./queues.js";

/** Ends of jobs that a broker remembers, in words. */
export const ENDS = { committed: "It is done", forwarded: "It went on to another queue", cancelled: "It was cancelled", expired: "Its time to live was over" };

/** Entries of a history that are no attempts: the broker has written them, without a worker. */
const attempted = (each) => each.worker || each.began_at;

/** The events of a job; what is still going on is last. */
export function timeline(queue, job) {
  const errors = job.errors || [];
  const first = errors.find(attempted);
  const events = [
    ...(job.passed || []).flatMap(passed),
    { at: job.created_at, title: job.passed?.length ? `Came into ${queue}` : "Pushed", text: job.pushed_by && `by ${job.pushed_by}` },
    ...errors.map((each) => failed(each, each === first)),
  ].filter(({ at }) => typeof at === "number").sort((one, other) => one.at - other.at);
  return h("ol", { class: "story" }, [...events, now(job)].map(shown));
}

function shown({ at, title, tone = "", text = "", more = null, next = null }) {
  return h("li", { class: tone || null },
    h("div", {}, h("strong", {}, title), text ? [" ", text] : null, at ? [" ", relative(at)] : null),
    next, at ? h("div", { class: "small" }, time(at)) : null, more);
}

/** How long ago something was; `refresh` keeps it true. */
export const relative = (at) => h("span", { class: "small", "data-at": at }, ago(at, Date.now() / 1000).text);

export function refresh(element) {
  for (const each of element.querySelectorAll("[data-at]")) each.textContent = ago(Number(each.dataset.at), Date.now() / 1000).text;
}

const passed = (each) => [
  { at: each.accepted_at, title: "Pushed into", text: link(each.queue) },
  { at: each.at, title: "Left", text: [link(each.queue), each.worker ? ` from ${each.worker}` : "", each.attempts ? `, attempt ${count(each.attempts)}` : ""] },
];

const link = (queue) => h("a", { href: address(queue) }, queue);

/** An attempt that failed: why, when and where, its traceback folded; or what the broker did instead of one. */
function failed(each, first) {
  if (!attempted(each)) return { at: each.at, title: each.reason || "no reason", tone: each.reason?.startsWith("redriven") ? "" : "bad" };
  const took = each.began_at && `ran for ${span(each.at - each.began_at)}`;
  const named = each.worker?.includes(`${each.host}:${each.pid}`); // as the library names its workers
  const where = [took, each.worker && `at ${each.worker}`, each.host && !named && `${each.host}, process ${each.pid}`].filter(Boolean).join(", ");
  return {
    at: each.at, title: `Attempt ${count(each.attempt)} failed`, text: where, tone: "bad",
    next: [first && each.attempt > 1 ? h("div", { class: "small" }, `nothing is kept of attempts before attempt ${count(each.attempt)}`) : null, h("div", {}, each.reason || "no reason"), each.type ? h("div", { class: "small mono" }, `${each.type} in ${each.place || "unknown"}`) : null],
    more: each.traceback ? h("details", {}, h("summary", {}, "Traceback"), traceback(each)) : null,
  };
}

const LIBRARY = /^ {2}File ".*(?:site-packages|dist-packages|lib\/python\d)/;

/** A traceback whose frames of libraries are folded: those of the handler's own code are what one looks for. */
function traceback({ traceback: text, attempt }) {
  const blocks = [];
  for (const frame of text.trimEnd().split(/\n(?= {2}File |\S)/)) {
    const library = LIBRARY.test(frame);
    if (blocks.at(-1)?.library === library) blocks.at(-1).frames.push(frame);
    else blocks.push({ library, frames: [frame] });
  }
  return h("div", { class: "content code", tabindex: "0", role: "group", "aria-label": `traceback of attempt ${attempt}` }, blocks.map(({ library, frames }) => (library
    ? h("details", {}, h("summary", {}, frames.length === 1 ? "a frame of a library" : `${frames.length} frames of libraries`), h("pre", {}, frames.join("\n")))
    : h("pre", {}, frames.join("\n")))));
}

/** Where the job is now, or how it ended. */
function now(job) {
  const { state, worker } = job;
  const waits = Math.max(job.eligible_at ?? 0, job.created_at ?? 0);
  if (state === "gone") return { at: job.end?.at, title: ENDS[job.end?.end] || "It is not there any more", tone: job.end?.end === "committed" ? "good" : "" };
  if (state === "dead") return { at: job.ended_at, title: "Dead letter", tone: "bad", text: job.remove_at ? `kept until ${time(job.remove_at)}` : "" };
  if (state === "done" && job.forwarded_to) return { at: job.ended_at, title: "Went on to", tone: "good", text: link(job.forwarded_to) };
  if (state === "done") return { at: job.ended_at, title: "Done", tone: "good", text: [job.started_at && `in ${span(job.ended_at - job.started_at)}`, worker && `at ${worker}`, job.attempts > 1 && `in attempt ${count(job.attempts)}`].filter(Boolean).join(" ") };
  if (state === "reserved") return { at: job.reserved_at, title: worker ? `Attempt ${count(job.attempts ?? 1)} runs` : "Reserved for a worker", tone: "now", text: worker ? `at ${worker}` : "at a broker" };
  if (state === "scheduled") return { at: job.eligible_at, title: job.attempts ? "Next attempt" : "Due", tone: "now" };
  if (state === "waiting" && job.children) return { title: `Waits for ${count(job.children.left)} of ${count(job.children.total)} children`, tone: "now" };
  if (state === "waiting") return { title: `Waits for an earlier job of its group ${job.group || ""}`, tone: "now" };
  return { at: waits || null, title: state === "ready" ? "Ready, waits for a worker" : state, tone: "now" };
}
