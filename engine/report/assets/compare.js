// Several runs side by side: parameters, metrics, durations.
import { h, show } from "./dom.js";
import { count, countsText, duration, elapsedElement, groupOf, runLink, stateElement, timeElement } from "./format.js";
import { overlays } from "./overlay.js";

const ROWS_MAX = 500;

const labelOf = (run) => run.row.name || run.row.pipeline;
const short = (number) => (number === null || number === undefined ? "–" : Number(number.toPrecision(6)).toString());

/** A row per name, with a cell per run. A row whose cells differ is marked. */
function table(id, title, first, runs, rows) {
  const shown = rows.slice(0, ROWS_MAX);
  return h("section", { "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title),
    rows.length === 0 ? h("p", { class: "quiet" }, "There are none.") : h("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" },
      h("table", { id, class: "compared" }, h("caption", { class: "unseen" }, title),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), runs.map((run) => h("th", { scope: "col", class: "number" }, h("a", { href: runLink(run.row.run) }, labelOf(run)))))),
        h("tbody", {}, shown.map(([name, cells]) => h("tr", { class: new Set(cells).size > 1 ? "differs" : "", "data-name": name },
          h("th", { scope: "row" }, name), cells.map((cell) => h("td", { class: "number" }, cell))))))),
    shown.length < rows.length ? h("p", { class: "quiet" }, `${count(shown.length)} of ${count(rows.length)} rows are shown.`) : null);
}

/** Maps of each run by name, as rows; those that differ are first. */
function rowsOf(maps) {
  const names = new Set(maps.flatMap((map) => [...map.keys()]));
  const rows = [...names].map((name) => [name, maps.map((map) => (map.has(name) ? map.get(name) : "–"))]);
  const differs = ([, cells]) => new Set(cells).size > 1;
  return [...rows.filter(differs), ...rows.filter((row) => !differs(row))];
}

const parametersOf = (run) => new Map(Object.entries(run.row.params).map(([name, value]) => [name, JSON.stringify(value)]));

function metricsOf(run) {
  const values = new Map();
  for (const { task, tag, metric, best, points } of run.metrics.series) {
    const name = `${metric} of ${tag ? `${groupOf(task)}[${tag}]` : task}`;
    values.set(`${name}, last`, short(points[points.length - 1][1]));
    values.set(`${name}, best`, short(best));
  }
  return values;
}

/** Median and sum of the tasks that ran, by the name of the task. */
function durationsOf(run) {
  const groups = new Map();
  for (const task of run.row.tasks) {
    if (task.duration_s === null || task.attempts === 0 || task.cached) continue;
    const name = groupOf(task.name);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(task.duration_s * 1000);
  }
  const texts = new Map();
  for (const [name, all] of groups) {
    all.sort((a, b) => a - b);
    texts.set(name, all.length === 1 ? duration(all[0]) : `${count(all.length)} × ${duration(all[Math.floor(all.length / 2)])}`);
  }
  return texts;
}

export function compareView(main, { runs }) {
  document.title = "Report – flow";
  show(main,
    h("h1", { tabindex: "-1" }, "Runs"),
    h("div", { class: "scroll", role: "region", "aria-label": "List of runs", tabindex: "0" }, h("table", { id: "runs" },
      h("caption", { class: "unseen" }, "Runs"),
      h("thead", {}, h("tr", {}, ["Run", "Status", "Tasks", "Retries", "Started", "Duration"].map((title, i) => h("th", { scope: "col", class: i > 2 ? "number" : "" }, title)))),
      h("tbody", {}, runs.map((run) => h("tr", { "data-run": run.row.run },
        h("td", { class: "main" }, h("a", { href: runLink(run.row.run) }, labelOf(run)), h("div", { class: "id" }, run.row.run)),
        h("td", {}, stateElement(run.row.status)), h("td", {}, countsText(run.row.counts)),
        h("td", { class: "number" }, count(run.row.tasks.reduce((sum, task) => sum + Math.max(0, task.attempts - 1), 0))),
        h("td", { class: "number" }, timeElement(run.row.started)), h("td", { class: "number" }, elapsedElement(run.row))))))),
    table("parameters", "Parameters", "Parameter", runs, rowsOf(runs.map(parametersOf))),
    table("metrics", "Metrics", "Metric", runs, rowsOf(runs.map(metricsOf))),
    overlays(runs, runs.map(labelOf)),
    table("durations", "Durations", "Task", runs, rowsOf(runs.map(durationsOf))),
    table("bundles", "Code", "Bundle", runs, rowsOf(runs.map((run) => new Map([["SHA-256", run.code.bundle.slice(0, 12)]])))));
}
