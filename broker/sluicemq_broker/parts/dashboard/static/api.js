// The broker's API: questions, orders with the token, and the stream of what changes.

// Relative to the page, which may lie below a path of a proxy.
const BASE = "api/v1";
let token = sessionStorage.getItem("sluicemq-token") || "";

export class Refused extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

export const enc = encodeURIComponent;

export async function get(path, query = {}, signal = undefined) {
  const asked = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = asked.map(([name, value]) => `${name}=${enc(value)}`).join("&");
  return answer(await reach(`${BASE}${path}${words ? `?${words}` : ""}`, { signal }));
}

/** Give an order. Raises Refused; its status is 401 where the token is missing or wrong. */
export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json", "X-SluiceMQ-Action": "dashboard", Authorization: `Bearer ${token}` };
  return answer(await reach(BASE + path, { method: "POST", headers, body: JSON.stringify(body) }));
}

export const hasToken = () => token !== "";

export function useToken(text) {
  token = text;
  if (text) sessionStorage.setItem("sluicemq-token", text); else sessionStorage.removeItem("sluicemq-token");
}

export const payloadAddress = (queue, id) => `${BASE}/queues/${enc(queue)}/jobs/${enc(id)}/payload`;

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

/** Called with each snapshot, and with null when the broker can't be reached. Nothing while the page is hidden. */
export class Live {
  #source = null;
  #view = {};
  #told;

  constructor(told) {
    this.#told = told;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#end() : this.#begin()));
  }

  /** Look at these queues: {sort, contains, offset, limit, reverse, only}. */
  look(view) {
    if (this.#source && JSON.stringify(view) === JSON.stringify(this.#view)) return;
    this.#view = { ...view };
    this.#end();
    if (!document.hidden) this.#begin();
  }

  #begin() {
    if (this.#source) return;
    const words = Object.entries(this.#view).filter(([, value]) => value).map(([name, value]) => `${name}=${enc(value)}`);
    const source = this.#source = new EventSource(`${BASE}/live?${words.join("&")}`);
    source.onmessage = (event) => this.#told(JSON.parse(event.data));
    source.onerror = () => {
      this.#told(null);
      if (source.readyState === EventSource.CLOSED && source === this.#source) {
        this.#end();
        setTimeout(() => { if (!document.hidden) this.#begin(); }, 5000);
      }
    };
  }

  #end() {
    this.#source?.close();
    this.#source = null;
  }
}
