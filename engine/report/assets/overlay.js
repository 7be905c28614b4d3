// A metric of several runs in one plot, a line per run.
import { h, s } from "./dom.js";
import { count, groupOf } from "./format.js";

const WIDTH = 320;
const HEIGHT = 140;
const EDGE = 8;
const FIGURES_MAX = 30;
export const LINES_MAX = 6;  // as many as report.css has colors and dashes for

const short = (number) => Number(number.toPrecision(4)).toString();
const isNumber = ([, value]) => value !== null;

/** NaN, which is null here, breaks the line. */
function pathOf(points, x, y) {
  let path = "";
  let isBroken = true;
  for (const [step, value] of points) {
    if (value !== null) path += `${isBroken ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    isBroken = value === null;
  }
  return path;
}

const scale = (low, high, from, to) => (number) => (high === low ? (from + to) / 2 : from + (number - low) / (high - low) * (to - from));

/** `lines`: [{ run, points }], `run` the number of the run. */
function figure(name, lines, labels) {
  const points = lines.flatMap((line) => line.points.filter(isNumber));
  const range = (at) => points.reduce(([low, high], point) => [Math.min(low, point[at]), Math.max(high, point[at])], [Infinity, -Infinity]);
  const [steps, values] = [range(0), range(1)];
  const x = scale(...steps, EDGE, WIDTH - EDGE);
  const y = scale(...values, HEIGHT - EDGE, EDGE);
  const text = `steps ${count(steps[0])} to ${count(steps[1])}, values ${short(values[0])} to ${short(values[1])}`;
  return h("figure", { class: "plot overlay", "data-metric": name },
    h("figcaption", {}, h("strong", {}, name)),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name} of ${lines.map((line) => labels[line.run]).join(", ")}: ${text}` },
      s("rect", { class: "ground", x: 0, y: 0, width: WIDTH, height: HEIGHT, rx: 4 }),
      lines.map((line) => s("path", { class: `line run${line.run}`, d: pathOf(line.points, x, y) }, s("title", {}, labels[line.run])))),
    h("p", { class: "quiet number" }, text));
}

/** The metrics that two of the runs or more have; null if there are none. */
export function overlays(runs, labels) {
  const metrics = new Map();
  runs.slice(0, LINES_MAX).forEach(({ metrics: { series } }, run) => {
    for (const { task, tag, metric, points } of series) {
      const name = `${metric} of ${tag ? `${groupOf(task)}[${tag}]` : task}`;
      if (!metrics.has(name)) metrics.set(name, []);
      if (points.filter(isNumber).length > 1) metrics.get(name).push({ run, points });
    }
  });
  const shared = [...metrics].filter(([, lines]) => lines.length > 1);
  if (shared.length === 0) return null;
  const legend = labels.slice(0, LINES_MAX).map((label, run) => h("li", {},
    s("svg", { class: "plot key", width: 28, height: 10, "aria-hidden": "true" }, s("path", { class: `line run${run}`, d: "M1 5H27" })), ` ${label}`));
  return h("section", { "aria-labelledby": "overlays-title" }, h("h2", { id: "overlays-title" }, "Metrics over steps"),
    h("ul", { class: "inline", id: "legend" }, legend),
    runs.length > LINES_MAX ? h("p", { class: "quiet" }, `The first ${LINES_MAX} of ${count(runs.length)} runs are drawn.`) : null,
    h("div", { class: "plots" }, shared.slice(0, FIGURES_MAX).map(([name, lines]) => figure(name, lines, labels))),
    shared.length > FIGURES_MAX ? h("p", { class: "quiet" }, `${count(FIGURES_MAX)} of ${count(shared.length)} metrics are drawn.`) : null);
}
