// The form that logs in, by a token or by user and password: as a page, and before an order.

import { logIn } from "./session.js";
import { choice, fill, h } from "./dom.js";

/** The fields and buttons of a form; `done()` is called after the login. `cancel`: a button, or nothing. */
export function loginFields(done, cancel = null) {
  const why = h("p", { id: "login-why", class: "small", role: "status" }, "A token or a password that was given to you.");
  const place = h("div", { class: "logins" });
  const yes = h("button", { type: "submit", class: "main" }, "Log in");
  let fields = {};

  function offer(way) {
    const field = (name, label, kind, complete) => {
      fields[name] = h("input", { type: kind, id: `login-${name}`, name, autocomplete: complete, required: true, spellcheck: "false", "aria-describedby": "login-why" });
      return [h("label", { for: `login-${name}`, class: "small" }, label), fields[name]];
    };
    fields = {};
    fill(place, way === "token" ? field("token", "Token", "password", "off")
      : [field("user", "User", "text", "username"), field("password", "Password", "password", "current-password")]);
    Object.values(fields)[0].focus();
  }

  const ways = choice("Log in by", [["token", "By token"], ["password", "By password"]], "token", offer);
  offer("token");
  return {
    parts: [ways, place, why, h("div", { class: "acts" }, cancel, yes)],
    focus: () => Object.values(fields)[0].focus(),
    async submit(event) {
      event.preventDefault();
      yes.disabled = true;
      try {
        const trimmed = (name, value) => (name === "password" ? value : value.trim());
        await logIn(Object.fromEntries(Object.entries(fields).map(([name, { value }]) => [name, trimmed(name, value)])));
        done();
      } catch (error) {
        why.textContent = error.message;
        why.classList.add("bad");
        Object.values(fields).at(-1).select();
      } finally { yes.disabled = false; }
    },
  };
}

/** The page for whoever may see nothing yet. */
export function loginPage() {
  const form = loginFields(() => {});
  return {
    element: h("div", { class: "login" },
      h("section", { class: "card", "aria-labelledby": "login-title" },
        h("form", { class: "body", onsubmit: form.submit }, h("h1", { id: "login-title" }, "Log in to SluiceMQ"), form.parts))),
    focus: form.focus,
  };
}
