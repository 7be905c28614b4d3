// Numbers, times and states as people read them.
import { h } from "./dom.js";

export const TASK_STATES = ["failed", "running", "waiting", "ready", "pending", "skipped", "cancelled", "succeeded"];
export const RUN_STATES = ["running", "serving", "waiting", "pending", "interrupted", "failed", "cancelled", "succeeded"];
const ACTIVE = new Set(["pending", "running", "serving", "waiting"]);

export const isActive = (status) => ACTIVE.has(status);

const grouped = new Intl.NumberFormat("en-US");
export const count = (number) => grouped.format(number);
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A word of a command as a POSIX shell reads it. */
export const shellWord = (text) => (/^[\w@%+,./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A text of the state; any other JSON value as it is written. */
export const asText = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value));

const two = (number) => String(number).padStart(2, "0");

/** "2026-11-21 05:17:00", local time. */
export function localTime(text) {
  const at = new Date(text);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
         `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export const timeElement = (text) => (text ? h("time", { datetime: text }, localTime(text)) : "–");

/** "450 ms", "1.2 s", "2m 03s", "1h 05m", "3d 4h". */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${two(Math.floor(seconds % 60))}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h ${two(minutes % 60)}m`;
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** Milliseconds since the epoch, of these or of a time as text. */
const timeOf = (time) => new Date(time).getTime();

/** Of a run or a task; up to now if it has not ended and `isLive`. Null if it has not begun. */
function elapsed(row, isLive) {
  if (!row.started || row.attempts === 0) return null;  // a skipped task has times, too
  const end = row.finished ? timeOf(row.finished) : isLive ? Date.now() : NaN;
  return Math.max(0, end - timeOf(row.started));
}

/** Text that ticks while the run or task is active. In an interrupted run a task keeps its state, and
 *  nothing runs: `isRunActive`. */
export function elapsedElement(row, isRunActive = true) {
  const isLive = isRunActive && isActive(row.status);
  const ticks = isLive && !row.finished && row.started && row.attempts !== 0;
  return h("span", { class: "number", "data-since": ticks ? new Date(row.started).toISOString() : null }, duration(elapsed(row, isLive)));
}

setInterval(() => {
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = duration(Math.max(0, Date.now() - Date.parse(element.dataset.since)));
  }
}, 1000);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
/** "1.5 GiB" */
export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit++;
  }
  return `${unit === 0 ? number : Number(number.toPrecision(3))} ${UNITS[unit]}`;
}

/** A label and its value. */
export const fact = (label, ...content) => h("div", { class: "fact" }, h("span", { class: "label" }, label), content);
/** The same with a value of the class `style`. */
export const styledFact = (label, style, ...content) => fact(label, h("span", { class: style }, content));
export const numberFact = (label, style, ...content) => styledFact(label, `number ${style}`, content);

/** A state with its color and its word. */
export const stateElement = (status, more) => h("span", { class: `state ${status}` }, status, more);

export function total(counts) {
  return TASK_STATES.reduce((sum, state) => sum + (counts[state] || 0), 0);
}

/** "1,990 succeeded · 10 failed · 20 cached" */
export function countsText(counts) {
  const parts = TASK_STATES.filter((state) => counts[state] > 0).map((state) => `${count(counts[state])} ${state}`);
  if (counts.cached > 0) parts.push(`${count(counts.cached)} cached`);
  if (counts.ignored > 0) parts.push(`${count(counts.ignored)} ignored`);
  return parts.join(" · ") || "no tasks";
}

/** The counts as a bar. The text beside it says the same. */
export function countsBar(counts) {
  const all = total(counts);
  const bar = h("span", { class: "bar", "aria-hidden": "true" });
  for (const state of [...TASK_STATES].reverse()) {
    if (!counts[state]) continue;
    const part = h("span", { class: `part ${state}` });
    part.style.flexGrow = String(counts[state]);
    bar.append(part);
  }
  if (all === 0) bar.classList.add("empty");
  return bar;
}

/** "train#2" and "align[3]" belong to "train" and "align". */
export const groupOf = (name) => asText(name).replace(/\[[^\]]*\]/g, "").replace(/#\d+/g, "");

export const taskLabel = (task) => (task.tag ? `${groupOf(task.name)}[${task.tag}]` : task.name);

export const runLink = (run) => `#/runs/${encodeURIComponent(run)}`;
export const taskLink = (run, task) => `${runLink(run)}/task/${encodeURIComponent(task)}`;
