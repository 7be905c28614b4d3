// One metric of several runs in one plot, by step or by time, smoothed and on a log scale if wanted.
import { get, runPath } from "./api.js";
import { changes, h, s, show, shownView } from "./dom.js";
import { count, duration, isActive, plural, runLink } from "./format.js";
import { polled } from "./live.js";
import { portion, short } from "./plot.js";

const WIDTH = 900;
const HEIGHT = 360;
const LEFT = 70;
const BOTTOM = 30;
const RUNS_OFFERED = 50;
const RUNS_MAX = 8;
const SERIES_MAX = 40;
const POINTS_MAX = 1000;

/** The exponential mean of the values so far, without the bias of its begin, as TensorBoard has it. */
export function smoothed(points, weight) {
  let last = 0;
  let number = 0;
  return points.map(([step, value, at]) => {
    if (value === null || weight === 0) return [step, value, at];
    last = last * weight + (1 - weight) * value;
    number++;
    return [step, last / (1 - weight ** number), at];
  });
}

/** The series as lines: [x, value] of each point, x being its step or the time since the first one. */
function linesOf(series, isByTime, weight, isLog) {
  return series.map((each) => {
    const start = each.points[0][2];
    const points = smoothed(each.points, weight)
      .map(([step, value, at]) => [isByTime ? at - start : step, value]).filter(([, value]) => value !== null && (!isLog || value > 0));
    return { ...each, points };
  }).filter((each) => each.points.length > 0);
}

function plotOf(lines, metric, isByTime, isLog) {
  const xs = lines.flatMap((each) => each.points.map(([x]) => x));
  const ys = lines.flatMap((each) => each.points.map(([, y]) => (isLog ? Math.log10(y) : y)));
  const [minX, maxX, minY, maxY] = [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b)), ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
  const x = (value) => LEFT + portion(value, minX, maxX) * (WIDTH - LEFT - 10);
  const y = (value) => 10 + (1 - portion(isLog ? Math.log10(value) : value, minY, maxY)) * (HEIGHT - BOTTOM - 10);
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${metric}: ${plural(lines.length, "line")}. The list below has the last value of each.` });
  for (const part of [0, 0.5, 1]) {
    const at = minY * (1 - part) + maxY * part;
    const value = isLog ? 10 ** at : at;
    picture.append(s("path", { class: "grid", d: `M${LEFT} ${y(value)}H${WIDTH - 10}` }), s("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    const step = minX + part * (maxX - minX);
    picture.append(s("text", { class: "tick", x: x(step), y: HEIGHT - 8, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, isByTime ? duration(step) : count(Math.round(step))));
  }
  lines.forEach((each, i) => {
    const d = each.points.map(([step, value], at) => `${at === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    picture.append(s("path", { class: `line color${i % 8} dash${Math.floor(i / 8) % 3}`, d, "data-run": each.run, "data-task": each.task }));
    if (each.points.length === 1) picture.append(s("circle", { class: `dot color${i % 8}`, cx: x(each.points[0][0]), cy: y(each.points[0][1]), r: 3 }));
  });
  return picture;
}

/** The line, the run and the last value of each. `names`: of runs, by id. */
function legendOf(lines, names) {
  return lines.map((each, i) => h("li", { "data-run": each.run, "data-task": each.task },
    s("svg", { class: "key", viewBox: "0 0 24 8", "aria-hidden": "true" }, s("path", { class: `line color${i % 8} dash${Math.floor(i / 8) % 3}`, d: "M0 4H24" })),
    h("a", { href: runLink(each.run) }, names.get(each.run) || each.run), ` ${each.tag || each.task}: `, h("span", { class: "last" }, short(typeof each.last === "string" ? each.last : each.points[each.points.length - 1][1]))));
}

export function metricsView(main, route) {
  document.title = "Metrics – flow";
  const isShown = shownView();
  const chosen = new Set(route.fields.getAll("run").slice(0, RUNS_MAX));
  const metric = h("select", { id: "metric" });
  const axis = h("select", { id: "axis" }, h("option", { value: "step" }, "step"), h("option", { value: "time" }, "time since the first point"));
  const smooth = h("input", { id: "smooth", type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
  const smoothText = h("span", { class: "number", id: "smooth-value" }, "0");
  const log = h("input", { id: "log-scale", type: "checkbox" });
  const runs = h("fieldset", { class: "choices", id: "metric-runs" });
  const note = h("p", { class: "quiet", id: "summary", role: "status" });
  const frame = h("div", { class: "overlay", id: "overlay" });
  const legend = h("ul", { class: "legend", id: "legend" });
  show(main, h("h1", { tabindex: "-1" }, "Metrics"), runs,
    h("div", { class: "tools" }, h("label", { for: "metric" }, "Metric"), metric, h("label", { for: "axis" }, "By"), axis,
      h("label", { for: "smooth" }, "Smoothing"), smooth, smoothText, h("span", { class: "check" }, log, h("label", { for: "log-scale" }, "Log scale"))),
    note, frame, legend);

  const series = new Map();  // by run
  const readAt = new Map();  // by run: its end when its series were read, "" while it was active
  const names = new Map();
  const areNewRuns = changes();
  const areNewLines = changes();

  function draw() {
    if (!isShown() || !areNewLines([[...chosen], [...chosen].map((run) => series.get(run)), metric.value, axis.value, smooth.value, log.checked, [...names]])) return;
    const known = [...chosen].flatMap((run) => series.get(run) || []);
    const metrics = [...new Set(known.map((each) => each.metric))].sort();
    const before = metric.value || route.fields.get("metric");
    if (JSON.stringify([...metric.options].map((option) => option.value)) !== JSON.stringify(metrics)) {
      show(metric, metrics.map((name) => h("option", { value: name }, name)));
      if (metrics.includes(before)) metric.value = before;
    }
    smoothText.textContent = smooth.value;
    const shown = known.filter((each) => each.metric === metric.value).slice(0, SERIES_MAX);
    const isLog = log.checked;
    const lines = linesOf(shown, axis.value === "time", Number(smooth.value), isLog);
    note.textContent = chosen.size === 0 ? "Choose runs that reported metrics." : known.length === 0 ? "These runs reported no metrics." : `${plural(lines.length, "line")}${isLog ? ", of values above 0" : ""}`;
    if (lines.length === 0) {
      show(frame);
      show(legend);
      return;
    }
    show(frame, plotOf(lines, metric.value, axis.value === "time", isLog));
    show(legend, legendOf(lines, names));
  }

  function keepAddress() {
    const fields = new URLSearchParams([...chosen].map((run) => ["run", run]));
    if (metric.value) fields.set("metric", metric.value);
    history.replaceState(null, "", fields.size > 0 ? `#/metrics?${fields}` : "#/metrics");
  }

  /** `end`: what endOf() has of the run; series of an active run are read again. */
  async function read(run, end) {
    if (series.has(run) && readAt.get(run) === end && end !== "") return;
    const answer = await get(runPath(run, "metrics"), { limit: POINTS_MAX });
    series.set(run, answer.series.map((each) => ({ ...each, run })));
    readAt.set(run, end);
  }

  const endOf = (run) => (run === undefined ? "not listed" : isActive(run.status) ? "" : `${run.status} ${run.finished}`);
  let ends = new Map();  // of the listed runs
  const readChosen = () => Promise.all([...chosen].map((run) => read(run, ends.get(run) ?? endOf(undefined))));

  async function choose(run, isChosen) {
    if (isChosen) chosen.add(run);
    else chosen.delete(run);
    for (const box of runs.querySelectorAll("input")) box.disabled = chosen.size >= RUNS_MAX && !box.checked;
    await readChosen();
    draw();
    keepAddress();
  }
  for (const [element, kind] of [[metric, "change"], [axis, "change"], [smooth, "input"], [log, "change"]]) {
    element.addEventListener(kind, () => {
      draw();
      keepAddress();
    });
  }

  async function load() {
    const listed = await get("/api/runs", { limit: RUNS_OFFERED });
    if (!isShown()) return;
    for (const run of listed.runs) names.set(run.run, run.name || run.pipeline);
    ends = new Map(listed.runs.map((run) => [run.run, endOf(run)]));
    if (areNewRuns([...names])) drawRuns(listed.runs);
    await readChosen();
    draw();
  }

  function drawRuns(listed) {
    show(runs, h("legend", {}, `Runs, at most ${RUNS_MAX}`), listed.map((run, i) => h("span", { class: "check" },
      h("input", { type: "checkbox", id: `run-${i}`, "data-run": run.run, checked: chosen.has(run.run), disabled: chosen.size >= RUNS_MAX && !chosen.has(run.run), onchange: (event) => choose(run.run, event.target.checked) }),
      h("label", { for: `run-${i}` }, `${run.name || run.pipeline} `, h("span", { class: "id" }, run.run)))),
      listed.length === 0 ? h("p", { class: "quiet" }, "There is no run yet.") : null);
  }
  return polled(load);
}
