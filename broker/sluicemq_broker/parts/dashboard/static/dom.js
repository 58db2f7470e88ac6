// Elements are made of names, attributes and texts. What comes from outside is only ever a text: there is no
// way here for it to become markup (and the page's policy forbids the browser to make any of it).

/** An element. Attributes: on* are listeners, true is an empty one, null and false are left out. */
export function h(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

/** Put children into an element: elements, texts, lists of them; null is nothing. */
export function add(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Put these in the place of what is there. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Set a text where it differs, so that nothing else is touched. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A card with a heading; `acts` stand at its right. */
export function card(title, { acts = null, body = null, bare = null } = {}) {
  const id = `card-${++cards}`;
  return h("section", { class: "card", "aria-labelledby": id },
    h("div", { class: "top" }, h("h2", { id }, title), acts && h("div", { class: "acts" }, acts)),
    body && h("div", { class: "body" }, body), bare);
}
let cards = 0;

/**
 * A table whose rows stay where they are when they change: whoever has the focus in one keeps it.
 * Columns: {title, cell(row) -> text, element, or {text, tone, title}, num, more (not on a narrow screen), sort}.
 */
export function table(caption, columns, { key = (row) => row.name, empty = "nothing here", onsort = null } = {}) {
  const heads = columns.map((column) => {
    const sorts = onsort && column.sort;
    const words = column.title || h("span", { class: "hidden-words" }, column.hidden || "");
    return h("th", { scope: "col", class: classes(column) },
      sorts ? h("button", { type: "button", onclick: () => onsort(column.sort) }, words) : words);
  });
  const named = columns.findIndex((column) => column.kind === "name");
  const body = h("tbody");
  const list = h("table", { class: "list", hidden: true }, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body);
  const nothing = h("p", { class: "empty loading", role: "status" }, "loading");
  const known = new Map();

  function update(rows) {
    const before = new Set(known.keys());
    rows.forEach((row, place) => {
      const id = key(row);
      before.delete(id);
      let line = known.get(id);
      if (!line) {
        line = h("tr", {}, columns.map((column, at) => h(at === named ? "th" : "td", { class: classes(column), scope: at === named ? "row" : null })));
        known.set(id, line);
      }
      columns.forEach((column, at) => put(line.children[at], column.cell(row), classes(column)));
      if (body.children[place] !== line) body.insertBefore(line, body.children[place] || null);
    });
    for (const id of before) { known.get(id).remove(); known.delete(id); }
    nothing.classList.remove("loading");
    say(nothing, empty);
    nothing.hidden = rows.length > 0;
    list.hidden = rows.length === 0;
  }

  /** Say why there are no rows; rows that are shown stay. */
  function fail(words) { if (list.hidden) { nothing.classList.remove("loading"); say(nothing, words); } }

  function sorted(by, reverse, natural) {
    columns.forEach((column, at) => {
      if (column.sort !== by || !by) heads[at].removeAttribute("aria-sort");
      else heads[at].setAttribute("aria-sort", reverse === (natural === "down") ? "ascending" : "descending");
    });
  }

  return { element: h("div", { class: "scroll", tabindex: "-1" }, list, nothing), update, sorted, fail };
}

function classes(column) {
  return [column.num && "num", column.more && "more", column.kind].filter(Boolean).join(" ") || null;
}

function put(cell, value, base) {
  if (value instanceof Node) { if (cell.firstChild !== value) cell.replaceChildren(value); return; }
  const { text, tone = "", title = null } = value !== null && typeof value === "object" ? value : { text: value };
  say(cell, text === null || text === undefined || text === "" ? "–" : String(text));
  const wanted = [base, tone].filter(Boolean).join(" ");
  if (cell.className !== wanted) cell.className = wanted;
  if (title === null) cell.removeAttribute("title"); else cell.title = title;
}

/** Some buttons of which one is pressed. */
export function choice(label, options, chosen, onchoose) {
  const buttons = options.map(([value, words]) => h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
    buttons.forEach((each, at) => each.setAttribute("aria-pressed", String(options[at][0] === value)));
    onchoose(value);
  } }, words));
  return h("div", { class: "switch", role: "group", "aria-label": label }, buttons);
}

/** Tiles with a number each; update({name: text or [text, unit], ...}). */
export function tiles(items) {
  const values = new Map();
  const list = h("ul", { class: "tiles" }, items.map(({ name, label, href = null }) => {
    const value = h("span", { class: "value" }, "–");
    const inner = [h("span", { class: "label" }, label), value];
    const item = h("li", {}, href ? h("a", { href }, inner) : inner);
    values.set(name, { value, item });
    return item;
  }));
  function update(name, text, unit = "", tone = "") {
    const { value, item } = values.get(name);
    const whole = `${text}\u0000${unit}`;
    if (value.dataset.whole !== whole) {
      value.dataset.whole = whole;
      fill(value, text, unit && h("span", { class: "unit" }, ` ${unit}`));
    }
    if (item.dataset.tone !== tone) item.dataset.tone = tone;
  }
  return { element: list, update };
}

/** How much of something is used: a bar, and the share in words. */
export function bar(share, words = `${Math.round(100 * share)} %`, tone = share >= 0.9 ? "bad" : share >= 0.7 ? "warn" : "") {
  return h("span", { class: `used ${tone}` }, h("svg:svg", { "aria-hidden": "true", viewBox: "0 0 40 6", width: 40, height: 6 },
    h("svg:rect", { class: "whole", width: 40, height: 6, rx: 3 }), h("svg:rect", { class: "part", width: (40 * Math.min(1, Math.max(share, 0.03))).toFixed(1), height: 6, rx: 3 })), words);
}

/** A card with a list of which the first `few` are shown, and a button for the others. */
export function some(list, few, update = list.update) {
  let all = false;
  let rows = [];
  const more = h("button", { type: "button", class: "more-rows", onclick: () => { all = !all; draw(); } });
  const draw = () => {
    update(all ? rows : rows.slice(0, few));
    more.hidden = rows.length <= few;
    say(more, all ? "fewer" : `${rows.length - few} more`);
    more.setAttribute("aria-expanded", String(all));
  };
  return { element: h("div", {}, list.element, more), update(found) { rows = found; draw(); }, fail: list.fail };
}
