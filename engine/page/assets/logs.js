// The log of a run or a task: the last lines, a search, and new lines as they come.
import { get, runPath } from "./api.js";
import { h, show } from "./dom.js";
import { count, localTime } from "./format.js";

const FOLLOW_MS = 1000;

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
  let newest = 0;  // an answer that is older than another one is dropped

  function line(each) {
    const label = task === "" ? `${each.task}${each.attempt > 1 ? `@${each.attempt}` : ""}` : each.attempt > 1 ? `@${each.attempt}` : "";
    return h("li", { class: each.stream },
      h("time", { datetime: each.at }, localTime(each.at).slice(11)),
      label ? h("span", { class: "source" }, label) : null,
      each.stream === "stderr" ? h("span", { class: "stream" }, "stderr") : null,
      h("span", { class: "text" }, marked(each.text, search.value.trim())));
  }

  async function load() {
    const q = search.value.trim();
    const which = task === "" ? "" : attempt.value === "" ? task : `${task}@${attempt.value}`;
    const mine = ++newest;
    const log = await get(runPath(run, "logs"), { task: which, q });
    if (isGone || mine !== newest) return;
    const last = log.lines[log.lines.length - 1];
    const key = JSON.stringify([q, which, log.total, log.matching, last ? last.at : ""]);
    if (key === shownKey) return;
    shownKey = key;
    const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 8;
    show(lines, log.lines.map(line));
    const found = q === "" ? `${count(log.total)} lines` : `${count(log.matching)} of ${count(log.total)} lines have “${q}”`;
    note.textContent = log.total === 0 ? "There are no lines." : log.lines.length < log.matching ? `${found}; the last ${count(log.lines.length)} are shown` : found;
    if (follow.checked && isAtEnd) view.scrollTop = view.scrollHeight;
  }

  /** Again while the log is followed and may grow. */
  async function cycle() {
    clearTimeout(timer);
    timer = null;
    try {
      await load();
    } catch (error) {
      note.textContent = `The log cannot be read: ${error.message}`;
    }
    if (!isGone && follow.checked && isLive()) timer = setTimeout(cycle, FOLLOW_MS);
  }

  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(cycle, 200);
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
    end() {
      isGone = true;
      clearTimeout(timer);
    },
  };
}
