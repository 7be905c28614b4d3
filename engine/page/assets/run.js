// One run: state and counts, the graph, its tasks, the timeline of attempts, metrics, result, log.
import { awaitedSignal, cancelAction, retryAction, rollbackAction, stopAction } from "./actions.js";
import { get, runPath } from "./api.js";
import { announce, changes, h, show, shownView, throttled } from "./dom.js";
import { TASK_STATES, asText, count, countsBar, countsText, duration, elapsedElement, fact, isActive, plural, stateElement, taskLabel, taskLink, timeElement } from "./format.js";
import { taskGraph } from "./graph.js";
import { costPanel } from "./cost.js";
import { logPanel } from "./logs.js";
import { plots } from "./plot.js";
import { taskStore } from "./tasks.js";
import { timeline } from "./timeline.js";
import { virtualTable } from "./virtual.js";

const JSON_MAX = 20000;
const READ_PAUSES = 30;  // between readings, in durations of one
const DRAW_PAUSES = 4;   // the same between drawings of all tasks
const GROUPS_MAX = 300;  // an imported workflow may have a name for each of its tasks

/** JSON with line breaks, cut if it is large. */
function jsonBlock(value) {
  const text = JSON.stringify(value, null, 2);
  return [h("pre", { class: "json", tabindex: "0" }, text.slice(0, JSON_MAX)),
    text.length > JSON_MAX ? h("p", { class: "quiet" }, `${count(JSON_MAX)} of ${count(text.length)} characters are shown; `, h("code", {}, "flow get"), " prints all.") : null];
}

const GROUP_COLUMNS = ["Task", "State", "Median", "Longest"];

function groupRow([name, group], choose) {
  const middle = group.durations[Math.floor(group.durations.length / 2)];
  return h("tr", { "data-group": name },
    h("td", { class: "main" }, h("button", { type: "button", class: "plain", onclick: () => choose(name) }, name)),
    h("td", { class: "counts" }, countsBar(group), h("span", { class: "quiet" }, countsText(group) + (group.retried ? ` · ${count(group.retried)} retried` : ""))),
    h("td", { class: "number wide" }, duration(middle)),
    h("td", { class: "number wide" }, duration(group.durations[group.durations.length - 1])));
}

const TASK_COLUMNS = [["Task", "main"], ["State", ""], ["Attempts", "number wide"], ["Duration", "number"], ["Worker", "wide"]];

function taskCells(run, task) {
  return [h("a", { href: taskLink(run.run, task.name) }, taskLabel(task)),
    h("span", { title: asText(task.waits_for) }, stateElement(task.status, task.cached ? h("span", { class: "quiet" }, " cached") : task.ignored ? h("span", { class: "quiet" }, " ignored") : null)),
    count(task.attempts), elapsedElement(task, isActive(run.status)), task.worker || "–"];
}

// `flow show` has all of them.
const ACTIONS_SHOWN = 5;

function actionItem({ action, by, name, at }) {
  return h("li", {}, name ? `${action} “${name}”` : action, ` by ${by} at `, timeElement(at));
}

export function runView(main, route, session) {
  const id = route.run;
  let run = null;
  let nodes = [];
  let earlier = [];  // attempts before the newest one of each task
  let readMs = 0;
  const isShown = shownView();

  const title = h("h1", { tabindex: "-1" }, id);
  const status = h("div", { class: "fact" });
  const [fixed, moving, serviceFacts, countFacts] = Array.from({ length: 4 }, () => h("div", { class: "contents" }));
  const facts = h("div", { class: "facts", id: "facts" }, status, fixed, moving, serviceFacts, countFacts);
  const failure = h("div", { class: "failures", id: "failures" });
  const waiting = h("div", { class: "waits", id: "waits" });
  const store = taskStore(id);
  const cancel = cancelAction(id, session);
  const stop = stopAction(id, session);
  const retry = retryAction(id, "", session);
  let rollback = null;  // once the run's name is known
  const actions = h("div", { class: "tools" }, retry.element, stop.element, cancel.element);
  const graph = taskGraph((name) => choose(name));
  const groupBody = h("tbody", { id: "groups" });
  const groupNote = h("p", { class: "quiet", id: "groups-note", hidden: true });
  const areNewNames = changes();
  const areNewFixed = changes();
  const areNewServices = changes();
  const search = h("input", { type: "search", id: "task-search", placeholder: "name, worker or error", autocomplete: "off" });
  const state = h("select", { id: "task-state" }, h("option", { value: "" }, "all"), TASK_STATES.map((each) => h("option", { value: each }, each)));
  const group = h("select", { id: "task-group" }, h("option", { value: "" }, "all"));
  const listed = h("p", { class: "quiet", id: "task-summary", role: "status" });
  const list = virtualTable("Tasks", TASK_COLUMNS, (task) => taskCells(run, task));
  const time = timeline((name) => (location.hash = taskLink(id, name)));
  const earlierNote = h("p", { class: "quiet", id: "earlier-note", hidden: true });
  const metrics = plots(id, "");
  const result = h("div", { id: "result" });
  const params = h("div", { id: "params" });
  const cost = costPanel(id);
  const log = logPanel(id, "", 0, () => run !== null && isActive(run.status));
  const logHolder = h("details", { class: "panel", id: "log-panel" }, h("summary", {}, "Log of the whole run"), log.element);

  show(main,
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/" }, "Runs")),
    h("div", { class: "heading" }, title, actions), facts, waiting, failure,
    h("section", { "aria-labelledby": "graph-title" }, h("h2", { id: "graph-title" }, "Graph"), graph.element),
    h("section", { "aria-labelledby": "groups-title" }, h("h2", { id: "groups-title" }, "By task"),
      h("div", { class: "scroll", role: "region", "aria-label": "Counts by task", tabindex: "0" }, h("table", { class: "groups" },
        h("caption", { class: "unseen" }, "Counts by task"),
        h("thead", {}, h("tr", {}, GROUP_COLUMNS.map((name, i) => h("th", { scope: "col", class: i > 1 ? "number wide" : "" }, name)))), groupBody)), groupNote),
    h("section", { "aria-labelledby": "time-title" }, h("h2", { id: "time-title" }, "Timeline"), time.element, earlierNote),
    h("section", { "aria-labelledby": "tasks-title" }, h("h2", { id: "tasks-title" }, "Tasks"),
      h("div", { class: "tools" }, h("label", { for: "task-search" }, "Search"), search, h("label", { for: "task-state" }, "State"), state, h("label", { for: "task-group" }, "Task"), group),
      listed, list.element),
    metrics.element,
    h("section", { "aria-labelledby": "result-title" }, h("h2", { id: "result-title" }, "Result"), result),
    params, cost.element, logHolder);
  logHolder.addEventListener("toggle", () => logHolder.open && log.load());

  /** Selects a group, and adds an option if the list does not have one for it. */
  function selectGroup(name) {
    group.value = name;
    if (group.value === name) return;
    group.append(h("option", { value: name }, name));
    group.value = name;
  }

  function choose(name) {
    selectGroup(name);
    filter();
    document.getElementById("tasks-title").scrollIntoView({ block: "start" });
    search.focus({ preventScroll: true });
  }

  function filter() {
    if (run === null) return;
    const text = search.value.trim().toLowerCase();
    const isAny = text === "" && state.value === "" && group.value === "";
    const wanted = isAny ? run.tasks : run.tasks.filter((task) => (state.value === "" || task.status === state.value) &&
      (group.value === "" || task.group === group.value) &&
      (text === "" || `${task.name} ${taskLabel(task)} ${task.worker || ""} ${asText(task.error)}`.toLowerCase().includes(text)));
    const left = store.total - run.tasks.length;
    listed.textContent = wanted.length === run.tasks.length ? plural(run.tasks.length, "task") : `${count(wanted.length)} of ${plural(run.tasks.length, "task")}`;
    if (left > 0) listed.textContent += `; ${count(left)} more are only counted above`;
    list.set(wanted);
  }
  search.addEventListener("input", filter);
  state.addEventListener("change", filter);
  group.addEventListener("change", filter);

  function drawFacts() {
    title.textContent = run.name || run.pipeline;
    document.title = `${run.name || run.pipeline} (${run.status}) – flow`;
    const services = (run.services || []).filter((each) => each.url);
    show(status, h("span", { class: "label" }, "Status"), stateElement(run.status));
    // Drawn once, so that a text can be selected while the run proceeds.
    if (areNewFixed([run.run, run.name, run.pipeline, run.started, store.user])) {
      show(fixed,
        fact("Run", h("span", { class: "id" }, run.run)),
        run.name ? fact("Pipeline", run.pipeline) : null,
        fact("Started", h("span", { class: "number" }, timeElement(run.started))),
        store.user ? fact("Started by", h("span", { id: "user" }, store.user)) : null);
    }
    show(moving,
      fact("Duration", elapsedElement(run)),
      run.rollover ? fact("Rollover", `${run.rollover.phase}, step ${run.rollover.step} of ${run.rollover.steps}, ${run.rollover.percent}%`) : null);
    if (areNewServices(services)) show(serviceFacts, services.map((each) => fact(`Service ${each.service}`, h("span", { class: "id" }, each.url))));
    show(countFacts,
      run.actions ? h("div", { class: "fact grow" }, h("span", { class: "label" }, "Asked for"), h("ul", { id: "actions" }, run.actions.slice(-ACTIONS_SHOWN).map(actionItem))) : null,
      h("div", { class: "fact grow" }, h("span", { class: "label" }, "Tasks"), countsBar(run.counts), h("span", { class: "counts-text", id: "counts" }, countsText(run.counts))));
  }

  function drawFailures() {
    const failed = store.counts.placesOf("failed").map((place) => run.tasks[place]);
    show(failure, failed.length === 0 ? null : [
      h("h2", {}, `${plural(failed.length, "task")} failed`),
      h("ul", {}, failed.slice(0, 5).map((task) => h("li", {}, h("a", { href: taskLink(id, task.name) }, taskLabel(task)), ": ", asText(task.error).split("\n")[0]))),
      failed.length > 5 ? h("p", { class: "quiet" }, `and ${count(failed.length - 5)} more: choose the state “failed” below`) : null]);
  }

  function drawWaiting() {
    const tasks = store.counts.placesOf("waiting").map((place) => run.tasks[place]).filter((task) => awaitedSignal(task) !== "");
    show(waiting, tasks.length === 0 ? null : [
      h("h2", {}, `${plural(tasks.length, "task")} ${tasks.length === 1 ? "waits" : "wait"} for a signal`),
      h("ul", {}, tasks.slice(0, 5).map((task) => h("li", {}, h("a", { href: taskLink(id, task.name) }, taskLabel(task)), `: “${awaitedSignal(task)}”`))),
      tasks.length > 5 ? h("p", { class: "quiet" }, `and ${count(tasks.length - 5)} more: choose the state “waiting” below`) : null]);
  }

  function updateActions() {
    cancel.update(run.status);
    stop.update(run.status);
    retry.update(["failed", "interrupted"].includes(run.status) || (run.status === "succeeded" && run.counts.ignored > 0));
    if (rollback === null && run.name) {
      rollback = rollbackAction(run.name, session);
      actions.prepend(rollback.element);
    }
    if (rollback !== null) rollback.update(run.status === "serving");
  }

  /** Returns a function that calls `draw`, and then not again for DRAW_PAUSES times the duration of
   *  that call. A call in between is made at the end of the pause. `isNeeded`: draw now. */
  function throttledByDuration(draw) {
    let timer = null;
    let at = 0;
    const now = () => {
      clearTimeout(timer);
      timer = null;
      if (!isShown()) return;
      const begin = performance.now();
      draw();
      const end = performance.now();
      at = end + DRAW_PAUSES * (end - begin);
    };
    return (isNeeded) => {
      const left = at - performance.now();
      if (isNeeded || left <= 0) now();
      else if (timer === null) timer = setTimeout(now, left);
    };
  }

  function draw() {
    drawFacts();
    updateActions();
    drawCounts();
    drawTasks(!isActive(run.status));
    show(result, run.result === null ? h("p", { class: "quiet" }, isActive(run.status) ? "The run has no result yet." : "The run has no result.") : jsonBlock(run.result));
    show(params, Object.keys(run.params).length === 0 ? null : h("section", { "aria-labelledby": "params-title" }, h("h2", { id: "params-title" }, "Parameters"), jsonBlock(run.params)));
  }

  function drawCounts() {
    drawWaiting();
    drawFailures();
    const groups = store.counts.byName(run.tasks, nodes);
    const names = [...groups.keys()].slice(0, GROUPS_MAX);
    groupNote.hidden = groups.size <= GROUPS_MAX;
    groupNote.textContent = `The first ${count(GROUPS_MAX)} of ${count(groups.size)} names are shown; the search below finds each task.`;
    if (areNewNames(names)) {
      const chosen = group.value;
      show(group, h("option", { value: "" }, "all"), names.map((name) => h("option", { value: name }, name)));
      selectGroup(groups.has(chosen) ? chosen : "");
    }
    graph.draw(nodes, groups);
    const focused = document.activeElement && groupBody.contains(document.activeElement) ? document.activeElement.textContent : null;
    show(groupBody, names.map((name) => [name, groups.get(name)]).map((each) => groupRow(each, choose)));
    if (focused !== null) [...groupBody.querySelectorAll("button")].find((each) => each.textContent === focused)?.focus({ preventScroll: true });
  }

  const drawTasks = throttledByDuration(() => {
    time.draw(run.tasks, nodes, isActive(run.status), earlier);
    filter();
  });

  /** Returns a function that calls `read`, and then not again for READ_PAUSES times the duration of
   *  that call; calls in between do nothing. For requests that take the server as long as reading
   *  all tasks. */
  function skippedByDuration(read) {
    let at = 0;
    return async (isNeeded) => {
      const begin = performance.now();
      if (!isNeeded && begin < at) return;
      await read();
      const end = performance.now();
      at = end + READ_PAUSES * (end - begin);
    };
  }
  const loadMetrics = skippedByDuration(metrics.load);
  const loadCost = skippedByDuration(cost.load);

  let earlierOf = 0;  // attempts of the run when the earlier ones were read
  const loadEarlier = skippedByDuration(async () => {
    const attempts = store.counts.earlier;
    if (attempts === earlierOf) return;
    const answer = await get(runPath(id, "attempts"));
    if (!isShown()) return;
    earlierOf = attempts;
    earlier = answer.attempts;
    earlierNote.hidden = answer.total <= earlier.length;
    earlierNote.textContent = `The newest ${count(earlier.length)} of ${count(answer.total)} earlier attempts are shown.`;
    time.draw(run.tasks, nodes, isActive(run.status), earlier);
  });

  async function load() {
    const before = performance.now();
    const was = run === null ? null : run.status;
    const total = store.total;
    const isNew = await store.load();
    // Dynamic tasks add nodes while the run is active.
    if (run === null || store.total !== total) nodes = (await get(runPath(id, "graph"))).nodes;
    if (!isShown()) return;
    if (isNew || run === null) {
      run = { ...store.run, tasks: store.tasks };
      draw();
    }
    readMs = performance.now() - before;
    const isNeeded = was !== run.status;
    await Promise.all([loadMetrics(isNeeded), loadEarlier(isNeeded), loadCost(isNeeded), logHolder.open ? log.refresh() : undefined]);
    if (was !== null && was !== run.status) announce(`The run is ${run.status}.`);
  }
  // Large runs are requested less often; the server also sends fewer events for them.
  const refresh = throttled(load, () => Math.max(500, readMs));

  // A `reload` may only mean that the writer has ended: the buttons change, the tasks do not.
  const updateWriter = () => run !== null && updateActions();
  const reload = () => {
    updateWriter();
    refresh();
  };

  return { ready: load(), reload, run: refresh, runs: updateWriter, end: () => log.end() };
}
