// Who looks at this page, and what he may do: by a login, or as anybody may.

import { get, post } from "./api.js";

const NOBODY = { name: "", permissions: {}, session: false, actions: null };
let me = NOBODY; // until the broker has said who we are
let outside = false; // nobody may look here without a login
const listeners = [];

export const who = () => me;
export const needsLogin = () => outside;

/** Called when somebody else looks, or may do something else. */
export const onchange = (listener) => listeners.push(listener);

/** Ask the broker who we are. */
export async function refresh() {
  try { become(await get("/me"), false); } catch (error) {
    if (error.status === 401) become(NOBODY, true); // else the head says that the broker does not answer
  }
}

/** Log in by {token} or {user, password}; raises Refused. */
export const logIn = async (shown) => become(await post("/login", shown), false);

export async function logOut() {
  try { await post("/logout"); } catch { /* it has ended already */ }
  await refresh();
}

/** Whether we may do this to a queue or stream; without a name: to all. */
export const may = (action, name = "") => (me.permissions[action] || []).some((pattern) => matches(pattern, name));

/** Whether we may do this to some queue or stream. */
export const maySome = (action) => Boolean(me.permissions[action]?.length);

/** A name matches a pattern in which * stands for any characters. */
export function matches(pattern, name) {
  const parts = pattern.split("*");
  if (parts.length === 1) return name === pattern;
  const first = parts.shift(), last = parts.pop();
  if (name.length < first.length + last.length || !name.startsWith(first) || !name.endsWith(last)) return false;
  let at = first.length;
  for (const part of parts) {
    at = name.indexOf(part, at);
    if (at < 0) return false;
    at += part.length;
  }
  return at <= name.length - last.length;
}

function become(found, isOutside) {
  const before = JSON.stringify([me, outside]), permitted = JSON.stringify([me.permissions, outside]);
  me = found;
  outside = isOutside;
  if (before === JSON.stringify([me, outside])) return;
  for (const listener of listeners) listener(permitted !== JSON.stringify([me.permissions, outside]));
}

/** The words of an empty list: there are none, or one may not see those that are there. */
export function noneSeen(action, things, none) {
  const patterns = me.permissions[action] || [];
  if (patterns.includes("*")) return none;
  if (patterns.length) return `no ${things} that you may see: you may ${action} those named ${patterns.join(", ")}`;
  return `you may not see ${things}: that takes the permission ${action}`;
}
