// What a page shows: filter, order, tab and page stand in its address, so that a link, a reload and Back lead there.

let steps = 0;

/** The state of a new entry in the browser's history; app.js keeps by its key where the entry was scrolled to. */
export const entry = (more = {}) => ({ ...more, key: `${Date.now()} ${++steps}` });

/** Put these values into the address, without those that are nothing. `step`: Back leads to what was shown before. */
export function note(path, values, { step = false, state = {} } = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value) words.set(name, value);
  const address = `#/${path}${words.size ? `?${words}` : ""}`;
  if (step && address !== location.hash) history.pushState(entry(state), "", address);
  else history.replaceState({ ...history.state, ...state }, "", address);
}
