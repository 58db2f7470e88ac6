// What changes something: it is asked for first, needs the token, and says what came of it.

import { get, hasToken, post, useToken } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";

let allowed = false; // whether http_token is set at the broker
let quiet = null;

/** Say something in the corner, for a moment and to those who listen. */
export function tell(words) {
  const place = document.getElementById("said");
  place.textContent = words;
  place.classList.add("shown");
  clearTimeout(quiet);
  quiet = setTimeout(() => place.classList.remove("shown"), 5000);
}

/** The button in the head: read only, locked, or unlocked. */
export function rights(possible) {
  allowed = possible;
  const button = document.getElementById("unlock");
  button.hidden = false;
  button.textContent = !possible ? "Read only" : hasToken() ? "Lock" : "Unlock actions";
  button.title = possible ? "" : "read only: [broker] http_token is not set";
  button.disabled = !possible;
  document.documentElement.dataset.actions = String(possible);
}

export function prepare() {
  document.getElementById("unlock").addEventListener("click", async () => {
    if (hasToken()) { useToken(""); rights(allowed); tell("locked"); } else { await unlock(); }
  });
}

/**
 * A button that changes something. `ask()` returns the question to confirm, {title, text, yes, danger}, or null for
 * nothing to do; it may ask the broker first. `order()` sends the request; `done(answer)` is called afterwards.
 */
export function button(words, { ask, order, done = () => {}, danger = false, label = null }) {
  return h("button", {
    type: "button", class: `act${danger ? " danger" : ""}`, "aria-label": label,
    onclick: async (event) => {
      const pressed = event.currentTarget;
      pressed.disabled = true;
      try { await carryOut(ask, order, done); } finally { pressed.disabled = false; pressed.focus(); }
    },
  }, words);
}

async function carryOut(ask, order, done) {
  if (!allowed) { tell("read only: [broker] http_token is not set"); return; }
  try {
    if (!hasToken() && !(await unlock())) return;
    const question = await ask();
    if (!question || !(await confirm(question))) return;
    const answer = await follow(await order());
    tell(question.after ? question.after(answer) : "done");
    await done(answer);
  } catch (error) {
    if (error.status === 401) { useToken(""); rights(allowed); }
    tell(error.message);
  }
}

/** Wait for a task, and show how far it is. */
async function follow(ordered) {
  if (!("task" in ordered)) return ordered.answer;
  for (;;) {
    await new Promise((go) => setTimeout(go, 1000));
    const task = await get(`/tasks/${ordered.task}`);
    if (task.state === "done") return task.answer;
    if (task.error) throw new Error(task.error.message);
    if (task.ended_at) throw new Error(`the task was ${task.state}`);
    tell(`${count(task.done)} of about ${count(task.total)} jobs so far; it goes on without this page`);
  }
}

function confirm({ title, text, yes, danger = false }) {
  return shown((dialog, close) => [
    h("h2", { id: "asks" }, title), h("p", {}, text),
    h("div", { class: "acts" },
      h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
      h("button", { type: "submit", class: `main${danger ? " danger" : ""}` }, yes)),
  ], () => true);
}

/** Ask for the token until it is right, or the dialog is closed. */
async function unlock() {
  for (let problem = ""; ;) {
    const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-describedby": "token-why" });
    const given = await shown((dialog, close) => [
      h("h2", { id: "asks" }, "Unlock actions"),
      h("p", { id: "token-why", class: "small" }, problem || "The token is http_token in the broker's configuration. It is kept until this tab is closed."),
      h("label", { for: "token", class: "small" }, "Token"), field,
      h("div", { class: "acts" },
        h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
        h("button", { type: "submit", class: "main" }, "Unlock")),
    ], () => field.value);
    if (given === false) return false;
    useToken(given.trim());
    try { await post("/token"); rights(allowed); tell("unlocked"); return true; } catch (error) { useToken(""); problem = error.message; }
  }
}

function shown(make, value) {
  return new Promise((settled) => {
    const before = document.activeElement;
    const dialog = h("dialog", { "aria-labelledby": "asks" });
    const close = (what) => { dialog.close(); dialog.remove(); before?.focus?.(); settled(what); };
    const form = h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); close(value()); } }, make(dialog, close));
    dialog.append(form);
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(false); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
