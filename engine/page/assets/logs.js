// The log of a run or a task: the last lines, a search, and new lines as they come.
import { get, runPath } from "./api.js";
import { h, show } from "./dom.js";
import { count, localTime, plural } from "./format.js";

const FOLLOW_MS = 1000;
const TYPED_MS = 300;  // after the last key press of a search

/** The text with each place that the search found in <mark>. */
function marked(text, search) {
  if (search === "") return text;
  const parts = [];
  const lower = text.toLowerCase();
  const wanted = search.toLowerCase();
  let at = 0;
  if (lower.length !== text.length) return text;
  for (let found = lower.indexOf(wanted); found >= 0; found = lower.indexOf(wanted, at)) {
    parts.push(text.slice(at, found), h("mark", {}, text.slice(found, found + wanted.length)));
    at = found + wanted.length;
  }
  return [...parts, text.slice(at)];
}

/** `task`: "" for the whole run. `attempts`: how many the task had. `isLive()`: whether more lines
 *  may come. */
export function logPanel(run, task, attempts, isLive) {
  const search = h("input", { type: "search", id: "log-search", autocomplete: "off" });
  const attempt = h("select", { id: "log-attempt" });
  const follow = h("input", { type: "checkbox", id: "log-follow" });
  const note = h("p", { class: "quiet", id: "log-note", role: "status" });
  const lines = h("ol", { class: "lines", id: "log-lines" });
  const view = h("div", { class: "scroll log-view", role: "region", "aria-label": "Lines of the log", tabindex: "0" }, lines);
  const element = h("section", { "aria-labelledby": "log-title" }, h("h2", { id: "log-title" }, "Log"),
    h("div", { class: "tools" }, h("label", { for: "log-search" }, "Search"), search,
      attempts > 1 ? [h("label", { for: "log-attempt" }, "Attempt"), attempt] : null,
      h("span", { class: "check" }, follow, h("label", { for: "log-follow" }, "Follow"))),
    note, view);

  const setAttempts = (number) => {
    const before = attempt.value;
    show(attempt, h("option", { value: "" }, "all"), Array.from({ length: number }, (_, i) => h("option", { value: i + 1 }, String(i + 1))));
    attempt.value = before;
  };
  setAttempts(attempts);

  let shownKey = "";
  let timer = null;
  let isGone = false;
  let asked = null;  // the request that has no answer yet
  let readMs = 0;

  function line(each) {
    const label = task === "" ? `${each.task}${each.attempt > 1 ? `@${each.attempt}` : ""}` : each.attempt > 1 ? `@${each.attempt}` : "";
    return h("li", { class: each.stream },
      h("time", { datetime: each.at }, localTime(each.at).slice(11)),
      label ? h("span", { class: "source" }, label) : null,
      each.stream === "stderr" ? h("span", { class: "stream" }, "stderr") : null,
      h("span", { class: "text" }, marked(each.text, search.value.trim())));
  }

  async function load({ q, which, controller }) {
    const before = performance.now();
    const log = await get(runPath(run, "logs"), { task: which, q }, controller.signal);
    if (controller.signal.aborted) return;
    readMs = performance.now() - before;
    const last = log.lines[log.lines.length - 1];
    const key = JSON.stringify([q, which, log.total, log.matching, last ? last.at : ""]);
    if (key === shownKey) return;
    shownKey = key;
    const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 8;
    show(lines, log.lines.map(line));
    const found = q === "" ? plural(log.total, "line") : `${count(log.matching)} of ${plural(log.total, "line")} have “${q}”`;
    note.textContent = log.total === 0 ? "There are no lines." : log.lines.length < log.matching ? `${found}; the last ${count(log.lines.length)} are shown` : found;
    if (follow.checked && isAtEnd) view.scrollTop = view.scrollHeight;
  }

  /** Loads what is asked for, and again if `isAgain` was set meanwhile. */
  async function loadAll(mine) {
    do {
      mine.isAgain = false;
      try {
        await load(mine);
      } catch (error) {
        if (!mine.controller.signal.aborted) note.textContent = `The log cannot be read: ${error.message}`;
      }
    } while (mine.isAgain && !mine.controller.signal.aborted);
    if (asked === mine) asked = null;
    if (!mine.controller.signal.aborted && follow.checked && isLive()) timer = setTimeout(cycle, Math.max(FOLLOW_MS, 4 * readMs));
  }

  /** Again while the log is followed and may grow. One request at a time: reading a large log costs
   *  the server much, so a request for something else ends the former one. */
  function cycle() {
    clearTimeout(timer);
    timer = null;
    if (isGone) return undefined;
    const q = search.value.trim();
    const which = task === "" ? "" : attempt.value === "" ? task : `${task}@${attempt.value}`;
    if (asked !== null && asked.q === q && asked.which === which) {
      asked.isAgain = true;
      return asked.done;
    }
    if (asked !== null) asked.controller.abort();
    const mine = { q, which, controller: new AbortController(), isAgain: false };
    asked = mine;
    mine.done = loadAll(mine);
    return mine.done;
  }

  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(cycle, TYPED_MS);
  });
  attempt.addEventListener("change", cycle);
  follow.addEventListener("change", cycle);

  return {
    element,
    /** Shows the log, and follows it if it may grow. */
    load() {
      follow.checked = isLive();
      return cycle();
    },
    /** After a change of the run or the task: the last lines come with its end. */
    refresh: () => (follow.checked ? cycle() : undefined),
    setAttempts,
    /** Shows the lines of this attempt. */
    choose(number) {
      attempt.value = String(number);
      element.scrollIntoView({ block: "start" });
      return cycle();
    },
    end() {
      isGone = true;
      clearTimeout(timer);
      clearTimeout(typed);
      if (asked !== null) asked.controller.abort();
    },
  };
}
