// Metrics as small line plots.
import { get, runPath } from "./api.js";
import { changes, h, s, show } from "./dom.js";
import { count, plural } from "./format.js";

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 8;
const SERIES_MAX = 60;

/** A number, text in its place such as "nan", or null. */
export const short = (number) => (number === null ? "–" : typeof number === "string" ? number : Number(number.toPrecision(4)).toString());

/** Where the value lies from low, 0, to high, 1. Their difference may exceed the largest number. */
export function portion(value, low, high) {
  const range = high / 2 - low / 2;
  return range > 0 ? (value / 2 - low / 2) / range : 0.5;
}

function lineOf(points, low, high) {
  const first = points[0][0];
  const last = points[points.length - 1][0];
  const x = (step) => LEFT + portion(step, first, last) * (WIDTH - 2 * LEFT);
  const y = (value) => HEIGHT - LEFT - portion(value, low, high) * (HEIGHT - 2 * LEFT);
  let path = "";
  let isBroken = true;  // NaN breaks the line
  for (const [step, value] of points) {
    if (value === null) {
      isBroken = true;
      continue;
    }
    path += `${isBroken ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    isBroken = false;
  }
  const finite = points.filter(([, value]) => value !== null);
  const dots = finite.length === 1 ? s("circle", { class: "dot", cx: x(finite[0][0]), cy: y(finite[0][1]), r: 3 }) : null;
  return [s("path", { class: "line", d: path }), dots];
}

function figure(series) {
  const values = series.points.map(([, value]) => value).filter((value) => value !== null);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const steps = [series.points[0][0], series.points[series.points.length - 1][0]];
  const text = `last ${short(series.last)} · best ${short(series.best)} · min ${short(series.min)} · max ${short(series.max)}`;
  return h("figure", { class: "plot", "data-metric": series.metric, "data-task": series.task },
    h("figcaption", {}, h("strong", {}, series.metric), " ", h("span", { class: "quiet" }, series.tag ? `${series.task} ${series.tag}` : series.task)),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${series.metric} of ${series.task}: ${text}` },
      s("rect", { class: "ground", x: 0, y: 0, width: WIDTH, height: HEIGHT, rx: 4 }), values.length > 0 ? lineOf(series.points, low, high) : null),
    h("p", { class: "quiet number" }, text, h("br"), `${plural(series.total, "point")}, step ${count(steps[0])} to ${count(steps[1])}`));
}

/** The plots of a run, or of one task. Hidden while there are none. */
export function plots(run, task) {
  const grid = h("div", { class: "plots" });
  const element = h("section", { "aria-labelledby": "metrics-title", hidden: true }, h("h2", { id: "metrics-title" }, "Metrics"), grid);
  const isNew = changes();
  async function load() {
    const { series } = await get(runPath(run, "metrics"), { task });
    if (!isNew(series)) return;
    element.hidden = series.length === 0;
    show(grid, series.slice(0, SERIES_MAX).map(figure),
      series.length > SERIES_MAX ? h("p", { class: "quiet" }, `${count(SERIES_MAX)} of ${count(series.length)} series are drawn; a task's page draws its own.`) : null);
  }
  return { element, load };
}
