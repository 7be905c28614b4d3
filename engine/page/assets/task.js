// One task: state, why, attempts, error, metrics and log.
import { awaitedSignal, retryAction, signalAction } from "./actions.js";
import { get, runPath } from "./api.js";
import { changes, h, show, shownView, throttled } from "./dom.js";
import { asText, count, duration, elapsedElement, fact, groupOf, isActive, runLink, stateElement, taskLabel, taskLink, timeElement } from "./format.js";
import { logPanel } from "./logs.js";
import { partsView } from "./parts.js";
import { plots } from "./plot.js";
import { timeline } from "./timeline.js";


const ATTEMPTS_MAX = 50;
const NEIGHBOURS_MAX = 100;

const ATTEMPT_COLUMNS = [["Attempt", ""], ["State", ""], ["Cause", ""], ["Worker", ""], ["Started", "wide"], ["Duration", ""], ["In the queue", "wide"]];

const seconds = (number) => duration(number === null || number === undefined ? null : number * 1000);
const isoTime = (ms) => (ms ? new Date(ms).toISOString() : null);

/** The newest attempt, whose cause is known if it failed in a cluster. */
function newestCells(task, isRunActive, why) {
  const failed = (task.failed_attempts || []).find((each) => each.attempt === task.attempts);
  const explained = task.status === "failed" ? /^cause: (\w+)$/m.exec(asText(why)) : null;
  return [stateElement(task.status), failed ? asText(failed.cause) : explained ? explained[1] : "–", task.worker || (failed ? failed.worker : "–"), timeElement(task.started), elapsedElement(task, isRunActive), seconds(task.queue_s)];
}

/** One before it: `kept` is what the state has of it, if it has. */
function earlierCells(task, number, kept) {
  const failed = (task.failed_attempts || []).find((each) => each.attempt === number);
  if (kept) return [stateElement(kept.outcome), asText(kept.cause) || "–", kept.worker, timeElement(isoTime(kept.started)), duration(kept.finished - kept.started), seconds(kept.queue_s)];
  return [failed ? stateElement("failed") : h("span", { class: "quiet" }, "ended, and the task ran again"), failed ? asText(failed.cause) : "–", failed ? failed.worker : "–", "–", "–", "–"];
}

/** The last attempts. */
function attemptRows(task, earlier, isRunActive, why) {
  const byNumber = new Map(earlier.map((each) => [each.attempt, each]));
  const rows = [];
  for (let number = Math.max(1, task.attempts - ATTEMPTS_MAX + 1); number <= task.attempts; number++) {
    const isNewest = number === task.attempts && !(task.cached && byNumber.has(number));
    const cells = isNewest ? newestCells(task, isRunActive, why) : earlierCells(task, number, byNumber.get(number));
    rows.push(h("tr", { "data-attempt": number }, h("td", { class: "number left" }, count(number)),
      cells.map((cell, i) => h("td", { class: ATTEMPT_COLUMNS[i + 1][1] }, cell))));
  }
  return rows;
}

/** Arguments and result as text: they may be cut. */
function valueBlock(title, id, text) {
  return h("section", { "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), h("pre", { class: "json", id, tabindex: "0" }, text));
}

export function taskView(main, route, session) {
  const { run, task: name } = route;
  let task = null;
  let isRunActive = false;
  let runStatus = "";
  const isShown = shownView();
  const title = h("h1", { tabindex: "-1" }, name);
  const facts = h("div", { class: "facts", id: "facts" });
  const why = h("pre", { class: "why", id: "why" });
  const error = h("div", { id: "error" });
  const attempts = h("tbody", { id: "attempts" });
  let earlier = [];  // attempts before the newest one
  let earlierOf = 0;  // attempts of the task when they were read
  const time = timeline((_, attempt) => log.choose(attempt));
  const timeSection = h("section", { "aria-labelledby": "time-title", hidden: true }, h("h2", { id: "time-title" }, "Timeline of the attempts"), time.element);
  const neighbours = h("div", { id: "neighbours" });
  const values = h("div", { id: "values" });
  const signal = signalAction(run, session);
  const retry = retryAction(run, name, session);
  const updateActions = () => {
    signal.update(awaitedSignal(task));
    retry.update(["succeeded", "failed", "skipped", "cancelled"].includes(task.status) && runStatus !== "cancelled");
  };
  let valuesOf = "";  // what the shown values belong to
  const metrics = plots(run, name);
  const log = logPanel(run, name, 2, () => task !== null && isRunActive && isActive(task.status));
  show(main,
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/" }, "Runs"), " / ", h("a", { href: runLink(run) }, run)),
    h("div", { class: "heading" }, title, h("div", { class: "tools" }, retry.element, signal.element)), facts, error,
    h("section", { "aria-labelledby": "why-title" }, h("h2", { id: "why-title" }, "Why"), why),
    h("section", { "aria-labelledby": "attempts-title" }, h("h2", { id: "attempts-title" }, "Attempts"),
      h("div", { class: "scroll", role: "region", "aria-label": "Table of attempts", tabindex: "0" }, h("table", {},
        h("caption", { class: "unseen" }, "Attempts"),
        h("thead", {}, h("tr", {}, ATTEMPT_COLUMNS.map(([each, style]) => h("th", { scope: "col", class: style }, each)))), attempts))),
    timeSection, values, metrics.element, log.element, neighbours);

  function draw(answer) {
    title.textContent = taskLabel(task);
    document.title = `${taskLabel(task)} (${task.status}) – flow`;
    show(facts,
      fact("State", stateElement(task.status, task.cached ? " (cached)" : task.ignored ? " (ignored)" : null)),
      task.tag ? fact("Name", task.name) : null,
      fact("Attempts", h("span", { class: "number", id: "attempt-count" }, count(task.attempts))),
      fact("Started", h("span", { class: "number" }, timeElement(task.started))),
      fact("Duration", elapsedElement(task, isRunActive)),
      fact("Worker", task.worker || "–"),
      task.ranks > 1 ? fact("Ranks", h("span", { class: "number" }, count(task.ranks))) : null,
      task.gpus ? fact("GPUs", h("span", { class: "id" }, task.gpus.join(", "))) : null,
      answer.fraction !== null ? fact("Progress", h("progress", { value: answer.fraction, max: 1 }), ` ${Math.round(answer.fraction * 100)}%`) : null,
      task.url ? fact("URL", h("span", { class: "id" }, asText(task.url))) : null,
      task.key ? fact("Key", h("span", { class: "id", title: task.key }, task.key.slice(0, 12))) : null);
    show(error, task.error ? h("section", { "aria-labelledby": "error-title" }, h("h2", { id: "error-title" }, "Error"), h("pre", { class: "error", tabindex: "0" }, asText(task.error))) : null);
    why.textContent = asText(answer.why).replace(/\b([0-9a-f]{12})[0-9a-f]{52}\b/g, "$1").trim();
    show(attempts, task.attempts > 0 ? attemptRows(task, earlier, isRunActive, answer.why) : h("tr", {}, h("td", { colspan: ATTEMPT_COLUMNS.length, class: "quiet" }, task.cached ? "The result is from the cache: nothing ran." : "No attempt has started.")));
    drawTime();
    log.setAttempts(task.attempts);
    updateActions();
  }

  function drawTime() {
    timeSection.hidden = earlier.length === 0;
    if (earlier.length === 0) return;
    const ms = (text) => (text ? Date.parse(text) : null);
    time.draw([{ ...task, started: ms(task.started), finished: ms(task.finished), failures: [] }], null, isRunActive, earlier);
  }

  async function readEarlier() {
    if (task.attempts === earlierOf || task.attempts < (task.cached ? 1 : 2)) return;
    const number = task.attempts;
    earlier = (await get(runPath(run, "attempts"), { task: name })).attempts;
    earlierOf = number;
  }

  async function drawValues() {
    const now = `${task.status} ${task.key}`;
    if (now === valuesOf) return;
    const { arguments: given, result, parts } = await get(runPath(run, "values"), { task: name });
    valuesOf = now;
    show(values, given !== null ? valueBlock("Arguments", "arguments", given) : null, result !== null ? valueBlock("Result", "task-result", result) : null, partsView(run, name, parts, result));
  }

  async function drawNeighbours() {
    const { nodes } = await get(runPath(run, "graph"));
    const own = name.replace(/\[[^\]]*\]$/, "");
    const node = nodes.find((each) => each.name === name) || nodes.find((each) => each.name === own);
    if (!node) return;
    const links = (names) => h("ul", { class: "inline" }, names.slice(0, NEIGHBOURS_MAX).map((each) => h("li", {}, h("a", { href: taskLink(run, each) }, each))),
      names.length > NEIGHBOURS_MAX ? h("li", { class: "quiet" }, `and ${count(names.length - NEIGHBOURS_MAX)} more`) : null);
    const before = [...new Set([...node.needs, ...node.after])];
    const after = nodes.filter((each) => each.needs.includes(node.name) || each.after.includes(node.name)).map((each) => each.name);
    show(neighbours, h("section", { "aria-labelledby": "neighbours-title" }, h("h2", { id: "neighbours-title" }, "In the graph"),
      h("p", { class: "quiet" }, before.length > 0 ? "It needs:" : `${groupOf(name)} needs no other task.`), before.length > 0 ? links(before) : null,
      after.length > 0 ? [h("p", { class: "quiet" }, "These need it:"), links(after)] : null));
  }

  const isNew = changes();
  let readMs = 0;
  async function load() {
    const before = performance.now();
    const answer = await get(runPath(run, "task"), { name });
    const isFirst = task === null;
    task = answer.task;
    isRunActive = isActive(answer.status);
    runStatus = answer.status;
    if (!isShown()) return;
    await readEarlier();
    if (!isShown()) return;
    if (isNew([answer, earlier])) draw(answer);
    await (isFirst ? Promise.all([drawNeighbours(), log.load()]) : log.refresh());
    await Promise.all([metrics.load(), drawValues()]);
    readMs = performance.now() - before;
  }
  const refresh = throttled(load, () => Math.max(500, 4 * readMs));
  // A `reload` may only mean that the writer has ended: the buttons change, the tasks do not.
  const updateWriter = () => task !== null && updateActions();
  const reload = () => {
    updateWriter();
    refresh();
  };

  return { ready: load(), reload, run: refresh, runs: updateWriter, end: () => log.end() };
}
