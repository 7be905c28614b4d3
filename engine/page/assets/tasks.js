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

export function taskStore(run) {
  let table = "";
  let since = "";
  let reasons = [];
  const store = { run: null, tasks: [], total: 0, user: null, load };

  /** Whether something has changed. */
  async function load() {
    const answer = await get(runPath(run, "tasks"), { table, since });
    const isSame = answer.table === table && answer.sequence === since;
    if (isSame) return false;
    if (answer.table !== table) {
      store.tasks = [];
      reasons = [];
    }
    ({ table, sequence: since } = answer);
    store.tasks.length = Math.min(store.tasks.length, answer.total);
    for (const [number, text] of answer.reasons) reasons[number] = text;
    for (const row of answer.rows) store.tasks[row[0]] = taskOf(row, reasons);
    if (answer.run !== null) store.run = answer.run;
    store.total = answer.total;
    store.user = answer.user;
    return true;
  }
  return store;
}
