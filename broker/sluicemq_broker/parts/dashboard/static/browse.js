// A table of all rows of one kind: with a filter, an order and pages, which stand in the address.

import { h, say, table } from "./dom.js";
import { count } from "./format.js";
import { note } from "./place.js";

/**
 * Columns as in table(), and `by(row)`: a value by which the column is sorted, numbers with the largest first.
 * `text(row)`: what the filter looks through. `keep`: further values of the address. `onfilter()`: it has changed.
 */
export function browse(caption, columns, { path, asked, text, keep = {}, size = 50, onfilter = () => {}, ...rest }) {
  const view = { filter: asked.get("filter") || "", sort: asked.get("sort") || "", reverse: asked.get("reverse") === "true", page: Number(asked.get("page")) || 1 };
  const ordered = columns.filter(Boolean).map((column) => ({ ...column, sort: column.by ? column.title.toLowerCase() : null }));
  let all = [];
  const list = table(caption, ordered, { ...rest, onsort(by) { Object.assign(view, { reverse: by === view.sort && !view.reverse, sort: by, page: 1 }); move(true); } });
  const filter = h("input", { type: "search", value: view.filter, placeholder: "part of a name", autocomplete: "off", "aria-label": `Filter: ${caption}`, oninput: () => { Object.assign(view, { filter: filter.value, page: 1 }); move(); onfilter(); } });
  const where = h("span", { role: "status" });
  const before = h("button", { type: "button", onclick: () => { view.page -= 1; move(true); } }, "Previous");
  const after = h("button", { type: "button", onclick: () => { view.page += 1; move(true); } }, "Next");
  const pager = h("div", { class: "pager", hidden: true }, where, h("div", { class: "acts" }, before, after));

  function move(step = false) {
    note(path, { ...keep, ...view, page: view.page > 1 ? view.page : 0 }, { step });
    draw();
  }

  function draw() {
    const words = view.filter.toLowerCase();
    const rows = all.filter((row) => text(row).toLowerCase().includes(words));
    const by = ordered.find((column) => column.sort && column.sort === view.sort);
    if (by) rows.sort((one, other) => compare(by.by(one), by.by(other)) * (view.reverse ? -1 : 1));
    list.sorted(view.sort, view.reverse, all.length && by && typeof by.by(all[0]) === "number" ? "down" : "up");
    const pages = Math.max(1, Math.ceil(rows.length / size));
    const page = Math.min(view.page, pages);
    list.update(rows.slice((page - 1) * size, page * size));
    pager.hidden = pages === 1;
    say(where, `${count((page - 1) * size + 1)} to ${count(Math.min(page * size, rows.length))} of ${count(rows.length)}`);
    before.disabled = page === 1;
    after.disabled = page === pages;
  }

  return { element: h("div", {}, list.element, pager), filter, update(rows) { all = rows; draw(); }, fail: list.fail };
}

/** Numbers with the largest first, texts by the alphabet. */
const compare = (one, other) => (typeof one === "number" ? other - one : String(one).localeCompare(String(other)));
