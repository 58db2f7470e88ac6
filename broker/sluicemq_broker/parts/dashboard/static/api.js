// The broker's API: questions, orders, and the stream of what changes. The browser adds the cookie of a login.

// Relative to the page, which may lie below a path of a proxy.
const BASE = "api/v1";
// After so many milliseconds without a hand at it the page asks by itself, which does not keep a login alive.
const IDLE = 60000;
let acted = Date.now();
for (const kind of ["pointerdown", "keydown", "wheel"]) addEventListener(kind, () => { acted = Date.now(); }, { capture: true, passive: true });
const by = () => (Date.now() - acted > IDLE ? { "X-SluiceMQ-Idle": "1" } : {});

export class Refused extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

export const enc = encodeURIComponent;

export async function get(path, query = {}, signal = undefined) {
  const asked = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = asked.map(([name, value]) => `${name}=${enc(value)}`).join("&");
  return answer(await reach(`${BASE}${path}${words ? `?${words}` : ""}`, { signal, headers: by() }));
}

/** Give an order. Raises Refused; its status is 401 where a login is missing or has ended. */
export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json", "X-SluiceMQ-Action": "dashboard", ...by() };
  return answer(await reach(BASE + path, { method: "POST", headers, body: JSON.stringify(body) }));
}

export const payloadAddress = (queue, id) => `${BASE}/queues/${enc(queue)}/jobs/${enc(id)}/payload`;

export const exportAddress = (queue, choice) => `${BASE}/queues/${enc(queue)}/dead-letters/export?${new URLSearchParams(choice)}`;

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "UNREACHABLE", "the broker does not answer");
  }
}

async function answer(response) {
  let value = null;
  try { value = await response.json(); } catch { /* an empty answer */ }
  if (!response.ok) throw new Refused(response.status, value?.code || "", value?.message || response.statusText);
  return value;
}

/**
 * Called with each snapshot, and with null when the broker can't be reached. Nothing while the page is hidden.
 * `ended()` is called when the stream was refused, or has begun again: perhaps the login has ended, or may do less.
 */
export class Live {
  #source = null;
  #view = {};
  #told;
  #ended;
  #lost = false;
  #stopped = false;

  constructor(told, ended) {
    this.#told = told;
    this.#ended = ended;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#end() : this.#begin()));
  }

  /** Look at these queues: {sort, contains, offset, limit, reverse, only}. */
  look(view) {
    if (this.#source && JSON.stringify(view) === JSON.stringify(this.#view)) return;
    this.#view = { ...view };
    this.#stopped = false;
    this.#end();
    if (!document.hidden) this.#begin();
  }

  /** Until somebody looks again. */
  stop() {
    this.#stopped = true;
    this.#end();
  }

  #begin() {
    if (this.#source || this.#stopped) return;
    const words = Object.entries(this.#view).filter(([, value]) => value).map(([name, value]) => `${name}=${enc(value)}`);
    const source = this.#source = new EventSource(`${BASE}/live?${words.join("&")}`);
    source.onmessage = (event) => this.#told(JSON.parse(event.data));
    source.onopen = () => {
      if (this.#lost) this.#ended();
      this.#lost = false;
    };
    source.onerror = () => {
      this.#told(null);
      this.#lost = true;
      if (source.readyState === EventSource.CLOSED && source === this.#source) {
        this.#end();
        this.#ended(); // it was refused
        setTimeout(() => { if (!document.hidden) this.#begin(); }, 5000);
      }
    };
  }

  #end() {
    this.#source?.close();
    this.#source = null;
  }
}
