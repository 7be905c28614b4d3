// The tasks of a run as the page has them. The server sends only the rows that have changed.
import { get, runPath } from "./api.js";
import { groupOf } from "./format.js";

const FIELDS = ["name", "tag", "status", "attempts", "flags", "started", "finished", "worker", "queue_s", "waits_for", "error", "failures"];

/** `reasons`: of tasks that wait for the same, by number. The text of a number changes with the run. */
function taskOf(row, reasons) {
  const task = {};
  FIELDS.forEach((field, i) => (task[field] = row[i + 1]));
  const number = task.waits_for;
  if (typeof number === "number") Object.defineProperty(task, "waits_for", { enumerable: true, get: () => reasons[number] });
  task.cached = (task.flags & 1) !== 0;
  task.ignored = (task.flags & 2) !== 0;
  task.started = task.started || null;  // ms since the epoch, as in `finished`
  task.finished = task.finished || null;
  task.group = groupOf(task.name);
  task.failures = (task.failures || []).map(([attempt, cause, worker]) => ({ attempt, cause, worker }));
  return task;
}

const LISTED = ["failed", "waiting"];

const earlierAttempts = (task) => Math.max(0, task.attempts - (task.cached ? 0 : 1));

/** How long the newest attempt took, or null. */
const durationOf = (task) => (task.started && task.finished && task.attempts > 0 && !task.cached ? task.finished - task.started : null);

/** Both are sorted. */
function merged(all, fresh) {
  const both = [];
  let next = 0;
  for (const each of fresh) {
    while (next < all.length && all[next] <= each) both.push(all[next++]);
    both.push(each);
  }
  while (next < all.length) both.push(all[next++]);
  return both;
}

/** Counts by status and name, updated incrementally: the cost of an update does not depend on the
 *  number of tasks. */
export function taskCounts() {
  const groups = new Map();  // by the name of a task
  const places = new Map(LISTED.map((status) => [status, new Set()]));
  const counts = { earlier: 0, set, byName, placesOf };
  let order = new Map();
  let orderedFor = null;

  /** `hasDuration`: that of the task is counted, too. */
  function add(task, by, hasDuration) {
    counts.earlier += by * earlierAttempts(task);
    if (!groups.has(task.group)) groups.set(task.group, { tasks: 0, cached: 0, ignored: 0, retried: 0, durations: [], fresh: [], isWhole: true });
    const group = groups.get(task.group);
    group.tasks += by;
    group[task.status] = (group[task.status] || 0) + by;
    if (task.cached) group.cached += by;
    if (task.ignored) group.ignored += by;
    if (task.attempts > 1) group.retried += by;
    if (!hasDuration || durationOf(task) === null) return;
    if (by > 0) group.fresh.push(durationOf(task));
    else group.isWhole = false;  // rare: a task that had ended runs again
  }

  /** The task at `place` is now `after`, and was `before`; undefined: there is, or was, none. */
  function set(place, before, after) {
    const isSame = before && after && before.group === after.group && durationOf(before) === durationOf(after);
    if (before) add(before, -1, !isSame);
    if (after) add(after, 1, !isSame);
    for (const [status, all] of places) {
      if (after && after.status === status) all.add(place);
      else all.delete(place);
    }
  }

  /** Of `tasks`, whose counts these are: the counts by name, in the order of the plan. */
  function byName(tasks, nodes) {
    for (const [name, group] of groups) if (group.tasks === 0) groups.delete(name);
    const broken = new Set([...groups.values()].filter((group) => !group.isWhole));
    for (const group of broken) Object.assign(group, { durations: [], fresh: [], isWhole: true });
    if (broken.size > 0) {
      for (const task of tasks) {
        const group = groups.get(task.group);
        if (broken.has(group) && durationOf(task) !== null) group.fresh.push(durationOf(task));
      }
    }
    for (const group of groups.values()) {
      if (group.fresh.length === 0) continue;
      group.durations = merged(group.durations, group.fresh.sort((a, b) => a - b));
      group.fresh = [];
    }
    if (orderedFor !== nodes) {
      orderedFor = nodes;
      order = new Map(nodes.map((node, i) => [node.name, i]));
    }
    const firstNode = (name) => order.get(name) ?? Infinity;
    return new Map([...groups].sort(([a], [b]) => (firstNode(a) === firstNode(b) ? 0 : firstNode(a) - firstNode(b))));
  }

  /** The places of the tasks that are "failed" or "waiting", the first one first. */
  function placesOf(status) {
    return [...places.get(status)].sort((a, b) => a - b);
  }
  return counts;
}

export function taskStore(run) {
  let table = "";
  let since = "";
  let reasons = [];
  const store = { run: null, tasks: [], counts: taskCounts(), total: 0, user: null, load };

  function setTask(place, task) {
    store.counts.set(place, store.tasks[place], task);
    store.tasks[place] = task;
  }

  /** Whether something has changed. */
  async function load() {
    const answer = await get(runPath(run, "tasks"), { table, since });
    const isSame = answer.table === table && answer.sequence === since;
    if (isSame) return false;
    if (answer.table !== table) {
      store.tasks = [];
      store.counts = taskCounts();
      reasons = [];
    }
    ({ table, sequence: since } = answer);
    for (let place = answer.total; place < store.tasks.length; place++) store.counts.set(place, store.tasks[place], undefined);
    store.tasks.length = Math.min(store.tasks.length, answer.total);
    for (const [number, text] of answer.reasons) reasons[number] = text;
    for (const row of answer.rows) setTask(row[0], taskOf(row, reasons));
    if (answer.run !== null) store.run = answer.run;
    store.total = answer.total;
    store.user = answer.user;
    return true;
  }
  return store;
}
