// Numbers, times and bytes as people read them.

const whole = new Intl.NumberFormat("en-GB");

/** A number with all its digits: 1,234,567. */
export const number = (value) => whole.format(value);

/** A count: whole up to 99,999, then 123k, 1.23M. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 100000) return whole.format(Math.round(value));
  const [size, unit] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return (value / size).toPrecision(3) + unit;
}

/** A rate: 0, 0.25, 7.1, 1,234. */
export function rate(value) {
  if (!value) return "0";
  return value < 1 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : count(value);
}

/** Seconds: 0.3 ms, 12 ms, 1.4 s, 5 min, 3 h, 2 d. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.00005) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const UNITS = {
  count: [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]],
  span: [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"], [1e-3, " ms"], [1e-6, " µs"]],
};
const decimal = (least, most) => Array.from({ length: most - least }, (_, at) => [1, 2, 5].map((each) => each * 10 ** (least + at))).flat();
const ofTime = [...decimal(-6, 0), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...decimal(0, 4).map((days) => 86400 * days)];

/** The steps that an axis may have, for each form of its labels: jobs are whole, times go by minutes and hours. */
export const steps = new Map([[count, decimal(0, 15)], [rate, decimal(-6, 15)], [span, ofTime]]);

/** The labels of an axis from 0 on: one unit and as many digits for all, as many as its step needs to tell them apart. */
export function labels(form, values, step) {
  const most = Math.max(...values.map(Math.abs));
  const fits = form === span ? ([size]) => step >= size * 0.999 : ([size]) => most >= Math.max(size, 1e5 * (size > 1));
  const units = form === span ? UNITS.span : UNITS.count;
  const [size, unit] = units.find(fits) || units.at(-1);
  let digits = 0;
  while (digits < 6 && Math.abs(step / size - Number((step / size).toFixed(digits))) > 1e-9) digits++;
  const written = new Intl.NumberFormat("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return values.map((each) => written.format(each / size) + unit);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1024) return `${value} B`;
  return value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1048576).toFixed(1)} MiB`;
}

const two = (value) => String(value).padStart(2, "0");

/** Unix seconds as the local date and time. */
export function time(at) {
  if (typeof at !== "number") return "–";
  const day = new Date(at * 1000);
  if (Number.isNaN(day.getTime())) return String(at);
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}`;
}

/** The same as how long ago it was, or how long until then; the whole time as a title. */
export function ago(at, now) {
  if (typeof at !== "number") return { text: "–" };
  const seconds = now - at;
  return { text: seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`, title: time(at) };
}
