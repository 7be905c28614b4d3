// The newest attempt of each task as a bar over time, in lanes by worker.
import { h, s, show } from "./dom.js";
import { count, duration, isActive, localTime, plural, taskLabel } from "./format.js";

const WIDTH_MIN = 320;
const BAR = 12;
const LANE = 15;
const TITLE = 20;
const BARS_MAX = 4000;
const LANES_MAX = 400;

/** The attempts with a start, each with its end. */
function spansOf(tasks, isRunActive) {
  return tasks.filter((task) => task.started && !task.cached && task.worker).map((task) => ({
    task, worker: task.worker, begin: Date.parse(task.started),
    end: task.finished ? Date.parse(task.finished) : isRunActive && isActive(task.status) ? Date.now() : Date.parse(task.started),
  })).sort((a, b) => a.begin - b.begin);
}

/** Puts each span into the first lane of its worker that is free. */
function lanesOf(spans) {
  const workers = new Map();
  for (const span of spans) {
    if (!workers.has(span.worker)) workers.set(span.worker, []);
    const ends = workers.get(span.worker);
    let lane = ends.findIndex((end) => end <= span.begin);
    if (lane < 0) lane = ends.push(0) - 1;
    ends[lane] = Math.max(span.end, span.begin + 1);
    span.lane = lane;
  }
  return new Map([...workers].sort(([a], [b]) => (a < b ? -1 : 1)).map(([worker, ends]) => [worker, ends.length]));
}

function barText({ task, begin, end }) {
  const retried = task.attempts > 1 ? `, attempt ${task.attempts}` : "";
  return `${taskLabel(task)}: ${task.status}${retried}, ${duration(end - begin)} from ${localTime(begin)} on ${task.worker}`;
}

function drawBar(span, x, y, width) {
  const { task } = span;
  const bar = s("g", { class: `span ${task.status}`, "data-task": task.name },
    s("title", {}, barText(span)),
    s("rect", { x, y, width, height: BAR, rx: Math.min(2, width / 2) }));
  // Marks, so that color is not the only difference.
  if (task.status === "failed") bar.append(s("path", { class: "cross", d: `M${Math.max(x + 1, x + width - 8)} ${y + 3}l6 6m0 -6l-6 6` }));
  if (task.attempts > 1) bar.append(s("path", { class: "retry", d: `M${x} ${y - 1}v${BAR + 2}` }));
  return bar;
}

/** `open(name)` shows a task. */
export function timeline(open) {
  const note = h("p", { class: "quiet" });
  const frame = h("div", { class: "scroll", role: "region", "aria-label": "Attempts over time", tabindex: "0" });
  const element = h("div", { class: "timeline" }, frame, note);
  element.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-task]");
    if (bar) open(bar.dataset.task);
  });

  let drawn = null;
  let drawnWidth = 0;
  function draw(tasks, isRunActive) {
    drawn = [tasks, isRunActive];
    const spans = spansOf(tasks, isRunActive);
    if (spans.length === 0) {
      show(frame, h("p", { class: "quiet" }, "No attempt has started."));
      note.textContent = "";
      return;
    }
    const begin = spans[0].begin;
    const end = spans.reduce((last, span) => Math.max(last, span.end), begin + 1);
    const workers = lanesOf(spans);
    const tops = new Map();
    let height = TITLE;
    let lanes = 0;
    drawnWidth = frame.clientWidth;
    const width = Math.max(WIDTH_MIN, drawnWidth);
    const picture = s("svg", { class: "spans", role: "img", width });
    for (const [worker, number] of workers) {
      tops.set(worker, height + TITLE);
      picture.append(s("text", { class: "worker", x: 2, y: height + 14 }, worker));
      height += TITLE + Math.min(number, LANES_MAX) * LANE + 4;
      lanes += number;
    }
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const x = part * (width - 4) + 2;
      picture.append(s("path", { class: "grid", d: `M${x} ${TITLE - 2}V${height}` }),
        s("text", { class: "tick", x, y: 12, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, `+${duration(part * (end - begin))}`));
    }
    const wanted = spans.filter((span) => span.lane < LANES_MAX);
    // The longest and those that failed are never left out.
    const shown = wanted.length <= BARS_MAX ? wanted : [...wanted]
      .sort((a, b) => (b.task.status === "failed") - (a.task.status === "failed") || (b.end - b.begin) - (a.end - a.begin)).slice(0, BARS_MAX);
    const scale = (width - 4) / (end - begin);
    for (const span of shown) {
      picture.append(drawBar(span, 2 + (span.begin - begin) * scale, tops.get(span.worker) + span.lane * LANE, Math.max(1.5, (span.end - span.begin) * scale)));
    }
    picture.setAttribute("height", height);
    picture.setAttribute("aria-label", `${plural(spans.length, "attempt")} on ${plural(workers.size, "worker")} in ${duration(end - begin)}, the most at a time ${count(lanes)}. The list of tasks has the same as text.`);
    show(frame, picture);
    const marks = "A red cross marks a failure, a line at the left a retry: only the newest attempt of a task is shown.";
    note.textContent = shown.length < spans.length ? `${count(shown.length)} of ${plural(spans.length, "attempt")} are shown, the longest. ${marks}` : marks;
  }

  new ResizeObserver(() => {
    if (drawn !== null && frame.clientWidth !== drawnWidth) draw(...drawn);
  }).observe(frame);

  return { element, draw };
}
