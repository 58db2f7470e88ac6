// What changes something: it is asked for first, needs a login, and says what came of it.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { loginFields } from "./login.js";
import { logOut, may, maySome, refresh, who } from "./session.js";

const READ_ONLY = "read only: no token and no password is configured at the broker";
let quiet = null;

/** Say something in the corner, for a moment and to those who listen. */
export function tell(words) {
  const place = document.getElementById("said");
  place.textContent = words;
  place.classList.add("shown");
  clearTimeout(quiet);
  quiet = setTimeout(() => place.classList.remove("shown"), 5000);
}

/** Who is logged in, in the head, and the button beside it. */
export function rights() {
  const { name, actions, session } = who();
  const button = document.getElementById("login");
  document.getElementById("who").textContent = name;
  button.hidden = false;
  button.textContent = session ? "Log out" : actions ? "Log in" : "Read only";
  button.title = actions ? "" : READ_ONLY;
  button.disabled = !actions;
}

export function prepare() {
  document.getElementById("login").addEventListener("click", async () => {
    if (!who().session) { await askForLogin(); return; }
    await logOut();
    tell("logged out");
  });
}

/**
 * A button that changes something. `ask()` returns the question to confirm, {title, text, yes, danger}, or null for
 * nothing to do; it may ask the broker first. A question with a `body` is a form, which stays until the order is
 * carried out. `order()` sends the request; `done(answer)` is called afterwards.
 * `on` is the queue or stream that it changes, null for one that is named later: there is no button for who is logged in and lacks the `action` on it.
 */
export function button(words, { on, ask, order, done = () => {}, danger = false, label = null, action = "manage" }) {
  if (!permitted(on, action)) return null;
  return h("button", {
    type: "button", class: `act${danger ? " danger" : ""}`, "aria-label": label,
    onclick: async (event) => {
      const pressed = event.currentTarget;
      pressed.disabled = true;
      try { await carryOut(on, action, ask, order, done); } finally { pressed.disabled = false; pressed.focus(); }
    },
  }, words);
}

/** Anybody is asked for a login first, and may do it then. */
const permitted = (queue, action) => !who().name || (queue === null ? maySome(action) : may(action, queue));

async function carryOut(on, action, ask, order, done) {
  if (!who().actions) { tell(READ_ONLY); return; }
  try {
    if (!who().name && !(await askForLogin())) return;
    if (!permitted(on, action)) { tell(`${who().name} may not ${action} ${on}`); return; }
    const question = await ask();
    if (!question) return;
    let answer = null;
    if (question.body) {
      const filled = await form(question, async () => follow(await order()));
      if (!filled) return;
      ({ answer } = filled);
    } else {
      if (!(await confirm(question))) return;
      answer = await follow(await order());
    }
    tell(question.after ? question.after(answer) : "done");
    await done(answer);
  } catch (error) {
    if (error.status === 401) await refresh();
    tell(error.message);
  }
}

/** Wait for a task, and show how far it is. */
async function follow(ordered) {
  if (!("task" in ordered)) return ordered.answer;
  for (;;) {
    await new Promise((go) => setTimeout(go, 1000));
    const task = await get(`/operations/${ordered.task}`);
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

/** A form, until `order()` has been carried out: then {answer}; false: it was closed. */
function form({ title, text, body, yes, danger = false }, order) {
  const why = h("p", { class: "small bad", role: "status" });
  const send = h("button", { type: "submit", class: `main${danger ? " danger" : ""}` }, yes);
  let close = null;
  return shown((dialog, closing) => {
    close = closing;
    dialog.classList.add("wide");
    return [h("h2", { id: "asks" }, title), text && h("p", {}, text), body, why,
      h("div", { class: "acts" }, h("button", { type: "button", onclick: () => closing(false) }, "Cancel"), send)];
  }, null, async (event) => {
    event.preventDefault();
    send.disabled = true;
    try { close({ answer: await order() }); } catch (error) { why.textContent = error.message; } finally { send.disabled = false; }
  });
}

/** A field of a form with its label; `hint` says what may be written into it. */
export function field(label, input, hint = "") {
  const id = `field-${++fields}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, hint && h("span", { id: `${id}-hint`, class: "small" }, hint));
}
let fields = 0;

/** Ask for a login until there is one, or the dialog is closed. */
function askForLogin() {
  let form = null;
  return shown((dialog, close) => {
    form = loginFields(() => { tell(`logged in as ${who().name}`); close(true); }, h("button", { type: "button", onclick: () => close(false) }, "Cancel"));
    return [h("h2", { id: "asks" }, "Log in"), form.parts];
  }, null, (event) => form.submit(event), () => form.focus());
}

function shown(make, value, submit = null, opened = () => {}) {
  return new Promise((settled) => {
    const before = document.activeElement;
    const dialog = h("dialog", { "aria-labelledby": "asks" });
    const close = (what) => { dialog.close(); dialog.remove(); before?.focus?.(); settled(what); };
    const form = h("form", { method: "dialog", onsubmit: submit || ((event) => { event.preventDefault(); close(value()); }) }, make(dialog, close));
    dialog.append(form);
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(false); });
    document.body.append(dialog);
    dialog.showModal();
    opened();
  });
}
