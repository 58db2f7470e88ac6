// What a job carries or returns: JSON as a tree, text, or bytes; its content type says which is shown first.

import { card, choice, fill, h } from "./dom.js";
import { bytes, count } from "./format.js";

/** Values of one JSON array or object that are shown at once, and bytes in hex. */
const MANY = 100;
const HEX = 16384;

/** A card with a value as the broker sends it: a text, or {base64}; `size` is its whole length. */
export function content(title, value, size, { type = "", link = null } = {}) {
  const raw = asBytes(value);
  const text = typeof value === "string" ? value : null;
  const cut = size > raw.length;
  const json = cut || text === null ? undefined : parsed(text, type);
  const forms = [json !== undefined && ["json", "JSON"], text !== null && ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  const first = (type.startsWith("text/") && forms.find(([form]) => form === "text")) || forms[0];
  const place = h("div");
  const draw = (form) => fill(place, form === "json"
    ? h("div", { class: "content tree", tabindex: "0", role: "group", "aria-label": title }, node(null, json, 0))
    : h("pre", { class: `content ${form}`, tabindex: "0", "aria-label": title }, form === "text" ? text : hex(raw)));
  draw(first[0]);
  const note = [type, cut ? `the first ${bytes(raw.length)} of ${bytes(size)}` : bytes(size ?? raw.length)].filter(Boolean).join(", ");
  return card(title, { acts: [h("span", { class: "small" }, note), choice(`${title} as`, forms, first[0], draw), link], body: place });
}

/** A JSON value at a depth: one that has others is open or closed, and makes them when it is opened. */
function node(name, value, depth) {
  const label = name === null ? null : [h("span", { class: "key" }, name), ": "];
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, label, h("span", { class: value === null ? "null" : typeof value }, JSON.stringify(value)));
  const inside = Object.entries(value);
  const size = Array.isArray(value) ? `[${count(inside.length)}]` : `{${count(inside.length)}}`;
  if (!inside.length) return h("div", { class: "leaf" }, label, Array.isArray(value) ? "[]" : "{}");
  const place = h("div", { class: "inside" });
  const open = depth === 0 || (depth < 4 && inside.length <= 20);
  let shown = 0;
  const more = () => {
    const rest = inside.slice(shown, shown += MANY).map(([key, each]) => node(key, each, depth + 1));
    place.append(...rest);
    if (shown < inside.length) place.append(h("button", { type: "button", class: "more-rows", onclick: (event) => { event.target.remove(); more(); } }, `${count(inside.length - shown)} more`));
  };
  const element = h("details", { open, ontoggle: () => { if (element.open && !shown) more(); } }, h("summary", {}, label, h("span", { class: "null" }, size)), place);
  if (open) more();
  return element;
}

/** JSON with others inside, or of any value where the content type says so; undefined: it is none. */
function parsed(text, type) {
  try {
    const value = JSON.parse(text);
    return (value !== null && typeof value === "object") || type.includes("json") ? value : undefined;
  } catch { return undefined; }
}

function asBytes(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return value?.base64 ? Uint8Array.from(atob(value.base64), (each) => each.charCodeAt(0)) : new Uint8Array();
}

function hex(raw) {
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, HEX); at += 16) {
    const part = [...raw.slice(at, at + 16)];
    const numbers = part.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers}  ${signs}`);
  }
  if (raw.length > HEX) lines.push(`and ${count(raw.length - HEX)} bytes more`);
  return lines.join("\n") || "(empty)";
}
