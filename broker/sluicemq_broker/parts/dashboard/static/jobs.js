// Jobs in a table, page by page.

import { enc } from "./api.js";
import { h, table } from "./dom.js";
import { ago, bytes, count, time } from "./format.js";

export const jobAddress = (queue, id) => `#/queues/${enc(queue)}/jobs/${enc(id)}`;

/** Text as it is; bytes that are none as so many of them. */
export function words(payload) {
  if (payload === undefined || payload === null) return "";
  return typeof payload === "string" ? payload : "(no text)";
}

export const lastReason = (job) => (job.errors?.length ? job.errors[job.errors.length - 1].reason : "") || job.unreadable || "";

/** The columns for jobs of one queue; `chosen` is a Set of ids to be ticked. */
export function jobColumns(queue, { chosen = null, onchoose = () => {}, state = false } = {}) {
  const now = () => Date.now() / 1000;
  return [
    chosen && { title: "", hidden: "Choose", cell: (job) => {
      const box = h("input", { type: "checkbox", "aria-label": `choose job ${job.id}`, onchange: () => { if (box.checked) chosen.add(job.id); else chosen.delete(job.id); onchoose(); } });
      box.checked = chosen.has(job.id);
      return box;
    } },
    { title: "Job", kind: "name", cell: (job) => h("a", { href: jobAddress(queue, job.id), class: "mono id", title: job.id }, job.id) },
    state && { title: "State", cell: (job) => job.state },
    { title: "What", kind: "grow", cell: (job) => {
      const reason = lastReason(job);
      const about = [job.kind, words(job.payload)].filter(Boolean).join(" · ");
      return h("div", {}, reason ? h("div", { class: "preview reason", title: reason }, reason) : null, about || !reason ? h("div", { class: "preview" }, about) : null);
    } },
    { title: "When", cell: (job) => ago(job.ended_at ?? (job.state === "scheduled" ? job.eligible_at : job.reserved_at ?? job.created_at), now()) },
    { title: "Attempts", num: true, more: true, cell: (job) => count(job.attempts ?? 0) },
    { title: "Priority", num: true, more: true, cell: (job) => count(job.priority ?? 0) },
    { title: "Size", num: true, more: true, cell: (job) => bytes(job.payload_bytes) },
  ].filter(Boolean);
}

/**
 * A table of pages: `ask(after)` gives {jobs, next}. `starts`: where the pages up to the first shown one begin, so
 * that one can go back; `onmove(starts)` is called when another page is asked for.
 */
export function pages(caption, columns, ask, { empty = "no such jobs", starts = [null], onmove = () => {} } = {}) {
  const list = table(caption, columns, { key: (job) => job.id, empty });
  const where = h("span", { role: "status" });
  const back = h("button", { type: "button", disabled: true, onclick: () => { starts.pop(); onmove(starts); load(); } }, "Previous");
  const on = h("button", { type: "button", disabled: true, onclick: () => { starts.push(next); onmove(starts); load(); } }, "Next");
  const again = h("button", { type: "button", onclick: () => load() }, "Reload");
  let next = null;
  let turn = 0;
  const self = {
    element: h("div", {}, list.element, h("div", { class: "pager" }, where, h("div", { class: "acts" }, again, back, on))),
    jobs: [],
    load,
    first() { starts = [null]; return load(); },
    onload: () => {},
  };

  async function load() {
    const mine = ++turn;
    where.textContent = "…";
    try {
      const page = await ask(starts[starts.length - 1]);
      if (mine !== turn) return;
      self.jobs = page.jobs;
      next = page.next;
      list.update([]); // whatever is ticked or shown of a job is made anew
      list.update(page.jobs);
      where.textContent = `page ${starts.length}, as of ${time(Date.now() / 1000).slice(11)}`;
    } catch (error) {
      if (mine !== turn) return;
      where.textContent = error.message;
      next = null;
    }
    back.disabled = starts.length === 1;
    on.disabled = next === null;
    self.onload();
  }
  return self;
}
