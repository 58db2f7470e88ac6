// The audit log: who changed what, who logged in, what was refused; the newest first.

import { get } from "./api.js";
import { card, h, table } from "./dom.js";
import { count, time } from "./format.js";
import { pages } from "./jobs.js";

const OUTCOMES = [["", "any"], ["done", "done"], ["begun", "begun"], ["refused", "refused"]];
const TONES = { refused: "bad", begun: "warn" };

export function audit({ asked }) {
  const field = (id, placeholder) => h("input", { type: "search", id, value: asked.get(id) || "", placeholder, autocomplete: "off" });
  const fields = { principal: field("principal", "all"), action: field("action", "purge, users, login"), name: field("name", "queue, user") };
  const outcome = h("select", { id: "outcome" }, OUTCOMES.map(([value, words]) => h("option", { value, selected: value === (asked.get("outcome") || "") }, words)));
  const chosen = () => Object.fromEntries(Object.entries({ ...fields, outcome }).map(([name, each]) => [name, each.value.trim()]).filter(([, value]) => value));
  const list = pages("Audit log", columns(), async (after) => {
    const { records, next } = await get("/audit", { ...chosen(), limit: 50, after });
    return { jobs: records, next };
  }, { empty: "no records" });
  let typing = null;

  function search() {
    const query = new URLSearchParams(chosen()).toString();
    history.replaceState(null, "", `#/audit${query ? `?${query}` : ""}`);
    list.first();
  }

  for (const each of [...Object.values(fields), outcome]) each.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 350); });
  list.load();
  return {
    element: h("div", {},
      h("div", { class: "title" }, h("h1", {}, "Audit"), h("p", { class: "small" }, "acts, logins and refusals at all brokers")),
      card("Filter", { body: h("div", { class: "fields" },
        h("label", { for: "principal" }, "Who", fields.principal), h("label", { for: "action" }, "Action", fields.action),
        h("label", { for: "name" }, "About", fields.name), h("label", { for: "outcome" }, "Outcome", outcome)) }),
      card("Records", { bare: list.element })),
    close() { clearTimeout(typing); },
  };
}

function columns() {
  return [
    { title: "When", kind: "stamp", cell: (row) => ({ text: time(row.until), title: row.count > 1 ? `the first at ${time(row.at)}` : null }) },
    { title: "Who", kind: "short", cell: (row) => ({ text: row.principal || "–", title: row.key && `key ${row.key}` }) },
    { title: "From", more: true, cell: (row) => ({ text: row.peer || row.broker, title: `${row.door} at ${row.broker}` }) },
    { title: "What", kind: "grow", cell: (row) => h("div", {}, `${row.action} ${row.name}`.trim(), h("div", { class: "small" }, details(row.about))) },
    { title: "Outcome", kind: "short", cell: (row) => h("div", { class: TONES[row.outcome] || null }, row.outcome, h("div", { class: "small" }, [row.code, row.count > 1 && `${count(row.count)} times`].filter(Boolean).join(", "))) },
  ];
}

const details = (about) => Object.entries(about).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ");
