// What the views ask for, answered from the data in the file. Replaces the page's api.js.

const LINES_MAX = 2000;

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let report = null;

/** Unpacks the data of the report: {"made", "version", "user", "host", "system", "runs"}. */
export async function openReport() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  report = JSON.parse(await new Response(stream).text());
  return report;
}

export function runOf(id) {
  const run = report.runs.find((each) => each.row.run === id);
  if (!run) throw new RequestError(404, `This report has no run ${id}.`);
  return run;
}

/** An object has a field `__proto__`, too, which is no task. */
export const detailsOf = (run, task) => (Object.hasOwn(run.details, task) ? run.details[task] : null);

function taskAnswer(run, name) {
  const task = run.row.tasks.find((each) => each.name === name);
  if (!task) throw new RequestError(404, `The run ${run.row.run} has no task ${name}.`);
  const details = detailsOf(run, name);
  const why = details ? details.why : `This report explains ${Object.keys(run.details).length} of ${run.row.tasks.length} tasks. flow why RUN TASK explains the others.`;
  return { run: run.row.run, status: run.row.status, task, fraction: null, why };
}

const timeOf = (text) => (text ? Date.parse(text) : 0);

/** A row of `tasks.js`, which begins with its place. */
const rowOf = (task, place) => [place, task.name, task.tag, task.status, task.attempts, (task.cached ? 1 : 0) | (task.ignored ? 2 : 0),
  timeOf(task.started), timeOf(task.finished), task.worker, task.queue_s, task.waits_for || null, task.error,
  (task.failed_attempts || []).map(({ attempt, cause, worker }) => [attempt, cause, worker])];

function tasksAnswer({ row }) {
  const user = row.tasks.length > 0 ? row.tasks[0].user : null;
  return { table: 1, sequence: 1, run: { ...row, tasks: [] }, user, total: row.tasks.length, reasons: [], rows: row.tasks.map(rowOf) };
}

/** `asked`: "", "TASK" or "TASK@ATTEMPT". */
function logAnswer(logs, asked, search) {
  const at = /^(.*)@(\d+)$/s.exec(asked);
  const [task, attempt] = at ? [at[1], Number(at[2])] : [asked, 0];
  const wanted = logs.lines.filter((line) => (task === "" || line.task === task) && (attempt === 0 || line.attempt === attempt));
  const text = search.toLowerCase();
  const matching = search === "" ? wanted : wanted.filter((line) => line.text.toLowerCase().includes(text));
  const lines = matching.slice(-LINES_MAX);
  if (search !== "") return { total: wanted.length, matching: matching.length, lines };
  const counts = Object.hasOwn(logs.counts, task) ? logs.counts[task] : {};
  const total = task === "" ? logs.total : attempt !== 0 ? counts[attempt] || 0 : Object.values(counts).reduce((sum, each) => sum + each, 0);
  return { total, matching: total, lines };
}

function costAnswer(run) {
  if (run.cost === null) throw new RequestError(404, "This report has no costs: the prices in flow.toml could not be read.");
  return run.cost;
}

function attemptsAnswer({ total, attempts }, task) {
  if (task === "") return { total, attempts };
  const own = attempts.filter((each) => each.task === task);
  return { total: own.length, attempts: own };
}

export async function get(path, fields) {
  const [, , , id, part] = path.split("/").map(decodeURIComponent);
  const run = runOf(id);
  const { name, task, q } = fields || {};
  const details = task && detailsOf(run, task);
  switch (part) {
    case undefined: return run.row;
    case "graph": return run.graph;
    case "tasks": return tasksAnswer(run);
    case "task": return taskAnswer(run, name);
    case "values": return { arguments: details ? details.arguments : null, result: details ? details.result : null, parts: [] };
    case "logs": return logAnswer(run.logs, task || "", q || "");
    case "attempts": return attemptsAnswer(run.attempts, task || "");
    case "cost": return costAnswer(run);
    case "metrics": return { series: run.metrics.series.filter((each) => !task || each.task === task) };
    default: throw new RequestError(404, "A report has no such data.");
  }
}

export const runPath = (run, part) => `/api/runs/${encodeURIComponent(run)}${part ? `/${part}` : ""}`;

/** Nothing can be changed from a report. */
export async function post() {
  throw new RequestError(409, "A report cannot change a run.");
}
