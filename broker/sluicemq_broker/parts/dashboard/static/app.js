// The frame around the pages: which one is shown, how the broker is, and what is counted in the navigation.
// One tab has one event stream, whatever it shows: browsers give a host six connections.

import { prepare, rights } from "./actions.js";
import { Live } from "./api.js";
import { audit } from "./audit.js";
import { fill, h, say } from "./dom.js";
import { count, span } from "./format.js";
import { dead } from "./dead.js";
import { find } from "./find.js";
import { job } from "./job.js";
import { kinds } from "./kinds.js";
import { loginPage } from "./login.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";
import { kept, operations, workers } from "./others.js";
import { entry } from "./place.js";
import { schedules } from "./schedules.js";
import { streams } from "./streams.js";
import { may, maySome, needsLogin, onchange, refresh, who } from "./session.js";

const reads = () => maySome("read");
const PAGES = [
  ["", "Overview", overview, () => true], ["queues", "Queues", queues, reads], ["kinds", "Kinds", kinds, reads], ["dead", "Dead letters", dead, reads],
  ["workers", "Workers", workers, reads], ["schedules", "Schedules", schedules, () => maySome("manage")],
  ["streams", "Streams", streams, () => maySome("subscribe")], ["operations", "Operations", operations, () => maySome("manage")],
  ["storage", "Storage", kept, () => may("operate")], ["audit", "Audit", audit, () => may("operate")],
];

const main = document.getElementById("main");
const links = new Map();
let page = null;
let latest = null;
let heard = 0;

const live = new Live((snapshot) => {
  if (snapshot) { latest = snapshot; heard = Date.now(); }
  if (snapshot && snapshot.actions !== who().actions) refresh();
  head(snapshot);
  if (snapshot) page?.update?.(snapshot);
}, refresh);

document.getElementById("pages").append(...PAGES.map(([path, title]) => {
  const counted = h("span", { class: "count" });
  const link = h("a", { href: `#/${path}` }, title, counted);
  const item = h("li", {}, link);
  links.set(path, { link, counted, item });
  return item;
}));

/** On a narrow screen the pages are one line that scrolls: show where we are. */
function here() {
  const link = document.querySelector("nav a[aria-current]");
  const nav = link?.closest("nav");
  if (nav) nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2; // the focus stays where it is
}

/** Where each entry of the browser's history was scrolled to, and how long its page was. */
const scrolled = new Map();
history.scrollRestoration = "manual";
addEventListener("scroll", () => { if (history.state?.key) scrolled.set(history.state.key, [scrollY, main.offsetHeight]); }, { passive: true });

/** A page that was shown before is where it was: as long, until its rows have come. */
function scroll() {
  const [top, height] = scrolled.get(history.state?.key) || [0, 0];
  if (!history.state?.key) history.replaceState(entry(history.state || {}), "");
  main.style.minHeight = top ? `${height}px` : "";
  window.scrollTo(0, top);
}

function route() {
  if (needsLogin()) { showLogin(); return; }
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const asked = new URLSearchParams(query);
  if (parts[0] === "find") anything.value = asked.get("words") || "";
  const shown = parts[0] === "find" ? [find, "Find jobs"] : parts[0] === "queues" && parts.length > 1
    ? [parts.length > 3 && parts[2] === "jobs" ? job : queue, parts[parts.length > 3 ? 3 : 1]]
    : [(PAGES.find(([name]) => name === parts[0]) || PAGES[0])[2], (PAGES.find(([name]) => name === parts[0]) || PAGES[0])[1]];
  page?.close?.();
  for (const [name, { link }] of links) {
    if (name === parts[0]) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  here();
  document.title = parts[0] ? `${shown[1]} – SluiceMQ` : "SluiceMQ";
  page = shown[0]({ queue: parts[1], id: parts[3], parts, asked, look: (view) => live.look(view) });
  fill(main, page.element);
  live.look(page.view || {});
  if (latest && page.update && !page.view) page.update(latest);
  if (moved) main.focus({ preventScroll: true });
  scroll();
  moved = true;
}
let moved = false;

/** The field in the head searches all queues; "/" leads to it. */
const anything = document.getElementById("find-any");
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = anything.value.trim();
  const address = `#/find${words ? `?${new URLSearchParams({ words })}` : ""}`;
  if (location.hash === address) route(); else location.hash = address;
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing || anything.form.hidden) return;
  event.preventDefault();
  anything.select();
});

/** Nothing but the form: nobody may see anything before a login. */
function showLogin() {
  page?.close?.();
  const login = loginPage();
  page = { element: login.element };
  latest = null;
  live.stop();
  document.title = "Log in – SluiceMQ";
  fill(main, login.element);
  login.focus();
}

/** Somebody else looks, or may do something else: `permitted` says whether what is shown depends on it. */
function changed(permitted) {
  rights();
  document.body.classList.toggle("outside", needsLogin());
  for (const [path, , , shown] of PAGES) links.get(path).item.hidden = !shown();
  anything.form.hidden = needsLogin() || !reads();
  if (!permitted) return;
  latest = null;
  live.stop(); // the page looks again, as somebody else
  route();
}

/** One colour: good, something waits for you, or jobs can't be handed out. */
function head(snapshot) {
  const lamp = document.getElementById("health");
  const [state, words] = health(snapshot);
  if (lamp.dataset.health !== state) lamp.dataset.health = state;
  say(document.getElementById("health-words"), words);
  if (snapshot) {
    document.body.classList.toggle("no-store", Boolean(snapshot.problems.store)); // what is loading waits for it
    const { counted } = links.get("dead");
    const first = !counted.textContent;
    say(counted, snapshot.totals.dead ? count(snapshot.totals.dead) : "");
    if (first && counted.textContent) here();
  }
}

function health(snapshot) {
  if (!snapshot) return ["bad", heard ? `no answer since ${new Date(heard).toLocaleTimeString()}` : "the broker does not answer"];
  const problem = Object.entries(snapshot.problems)[0];
  if (problem) return ["bad", `${problem[0]}: ${problem[1]}`];
  const dying = Object.keys(snapshot.dying);
  if (dying.length) return ["warn", `jobs die in ${dying.length === 1 ? dying[0] : `${dying.length} queues`}`];
  const { paused, oldest_ready_age: oldest } = snapshot.totals;
  if (paused) return ["warn", `${paused} ${paused === 1 ? "queue is" : "queues are"} paused`];
  if (oldest > 300) return ["warn", `a job has waited for ${span(oldest)}`];
  return ["good", "all is well"];
}

prepare();
onchange(changed);
window.addEventListener("hashchange", route);
refresh().then(() => { if (!page) route(); }); // where the broker does not answer the head says so
