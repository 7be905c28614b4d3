// The attempts of tasks as bars over time, in lanes by worker: time in the queue, failures, retries
// and the critical path are marked. It can be zoomed.
import { h, s, show } from "./dom.js";
import { count, duration, isActive, localTime, plural, taskLabel } from "./format.js";

const WIDTH_MIN = 320;
const BAR = 12;
const LANE = 15;
const TITLE = 20;
const BARS_MAX = 4000;
const LANES_MAX = 400;
const STEPS_SHOWN = 30;

/** The attempts with a start, each with its end: the newest one of each task, and those before it as
 *  far as they are known. */
function spansOf(tasks, earlier, isRunActive) {
  const spans = tasks.filter((task) => task.started && !task.cached && task.worker).map((task) => ({
    task, number: task.attempts, outcome: task.status, cause: "", isEarlier: false, worker: task.worker, begin: task.started, queue: (task.queue_s || 0) * 1000,
    end: task.finished || (isRunActive && isActive(task.status) ? Date.now() : task.started),
  }));
  const byName = new Map(earlier.length > 0 ? tasks.map((task) => [task.name, task]) : []);
  for (const { task: name, attempt, outcome, cause, worker, started, finished, queue_s: queue } of earlier) {
    const task = byName.get(name);
    if (!task || !started || (attempt === task.attempts && !task.cached)) continue;  // it is the newest one meanwhile
    spans.push({ task, number: attempt, outcome, cause: cause || "", isEarlier: true, worker, begin: started, queue: (queue || 0) * 1000, end: Math.max(started, finished || 0) });
  }
  return spans.sort((a, b) => a.begin - b.begin);
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

/** The tasks that the end of the run waited for, the first one first: before each task the one, of
 *  those whose results it needs, that ended last. Of a map it is any instance: the graph has no
 *  edges between instances. */
export function criticalPath(tasks, nodes) {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const nodeName = (name) => (byName.has(name) ? name : name.replace(/\[[^\]]*\]$/, ""));
  const byNode = new Map();
  let last = null;
  for (const task of tasks) {
    if (!task.finished || !task.started || task.cached || task.attempts === 0) continue;
    const name = nodeName(task.name);
    if (!byNode.has(name)) byNode.set(name, []);
    byNode.get(name).push(task);
    if (last === null || task.finished > last.finished) last = task;
  }
  const path = [];
  const seen = new Set();
  while (last !== null && !seen.has(last)) {
    path.unshift(last);
    seen.add(last);
    const node = byName.get(nodeName(last.name));
    let before = null;
    for (const need of node ? new Set([...node.needs, ...node.after]) : []) {
      for (const task of byNode.get(nodeName(need)) || []) {
        if (task.finished <= last.started && (before === null || task.finished > before.finished)) before = task;
      }
    }
    last = before;
  }
  return path;
}

function barText({ task, number, outcome, cause, isEarlier, worker, begin, end, queue }) {
  const numbered = number > 1 || isEarlier ? `, attempt ${number}` : "";
  const why = cause ? ` (${cause})` : "";
  const failed = isEarlier ? "" : task.failures.map((each) => `; attempt ${each.attempt} failed on ${each.worker}: ${each.cause}`).join("");
  const waited = queue >= 1 ? `, ${duration(queue)} in the queue before` : "";
  return `${taskLabel(task)}: ${outcome}${why}${numbered}, ${duration(end - begin)} from ${localTime(begin)} on ${worker}${waited}${failed}`;
}

function drawBar(span, x, y, width, queueWidth, isCritical) {
  const { task } = span;
  const bar = s("g", { class: `span ${span.outcome}${isCritical ? " critical" : ""}${span.isEarlier ? " earlier" : ""}`, "data-task": task.name, "data-attempt": span.number },
    s("title", {}, barText(span)));
  if (queueWidth >= 1) bar.append(s("path", { class: "queue", d: `M${x - queueWidth} ${y + BAR / 2}H${x}` }));
  bar.append(s("rect", { x, y, width, height: BAR, rx: Math.min(2, width / 2) }));
  // Marks, so that color is not the only difference.
  if (span.outcome === "failed") bar.append(s("path", { class: "cross", d: `M${Math.max(x + 1, x + width - 8)} ${y + 3}l6 6m0 -6l-6 6` }));
  if (span.number > 1) bar.append(s("path", { class: "retry", d: `M${x} ${y - 1}v${BAR + 2}` }));
  if (isCritical) bar.append(s("path", { class: "mark", d: `M${x} ${y + BAR + 1}h${width}` }));
  return bar;
}

/** The names of the workers, each above its lanes. Returns the top of each worker's lanes, the height of all, and their number. */
function drawLanes(picture, workers) {
  const tops = new Map();
  let height = TITLE;
  let lanes = 0;
  for (const [worker, number] of workers) {
    tops.set(worker, height + TITLE);
    picture.append(s("text", { class: "worker", x: 2, y: height + 14 }, worker));
    height += TITLE + Math.min(number, LANES_MAX) * LANE + 4;
    lanes += number;
  }
  return { tops, height, lanes };
}

/** The times in the view, which begins `since` ms after the first attempt and is `length` ms long. */
function drawTicks(picture, width, height, since, length) {
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const x = part * (width - 4) + 2;
    picture.append(s("path", { class: "grid", d: `M${x} ${TITLE - 2}V${height}` }),
      s("text", { class: "tick", x, y: 12, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, `+${duration(since + part * length)}`));
  }
}

/** Beyond BARS_MAX, failures have priority, then the critical path, then the longest bars. */
function shownSpans(inView, isCritical) {
  if (inView.length <= BARS_MAX) return inView;
  const rank = (span) => (span.outcome === "failed" && !span.isEarlier ? 2 : isCritical(span) ? 1 : 0);
  return [...inView].sort((a, b) => rank(b) - rank(a) || (b.end - b.begin) - (a.end - a.begin)).slice(0, BARS_MAX);
}

/** `open(name, attempt)` shows a task. */
export function timeline(open) {
  const note = h("p", { class: "quiet" });
  const path = h("p", { class: "quiet", id: "critical" });
  const frame = h("div", { class: "scroll", role: "region", "aria-label": "Attempts over time", tabindex: "0" });
  const button = (id, text, act) => h("button", { type: "button", id, onclick: act }, text);
  const all = button("zoom-all", "Whole run", () => zoomTo(0, 1));
  const left = button("zoom-left", "Earlier", () => move(-0.5));
  const right = button("zoom-right", "Later", () => move(0.5));
  const tools = h("div", { class: "tools", role: "group", "aria-label": "Zoom" },
    button("zoom-in", "Zoom in", () => zoom(0.5)), button("zoom-out", "Zoom out", () => zoom(2)), left, right, all);
  const element = h("div", { class: "timeline" }, tools, frame, note, path);
  element.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-task]");
    if (bar) open(bar.dataset.task, Number(bar.dataset.attempt));
  });

  // The part of the run that is shown.
  let from = 0;
  let to = 1;
  let drawn = null;
  let drawnWidth = 0;
  function zoomTo(begin, end) {
    const width = Math.min(1, Math.max(1e-5, end - begin));
    from = Math.min(1 - width, Math.max(0, begin));
    to = from + width;
    if (drawn !== null) draw(...drawn);
  }
  /** Around the middle, or `at`, a part of the view. */
  const zoom = (factor, at = 0.5) => {
    const middle = from + at * (to - from);
    zoomTo(middle - at * (to - from) * factor, middle + (1 - at) * (to - from) * factor);
  };
  const move = (part) => zoomTo(from + part * (to - from), to + part * (to - from));
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;  // else the page scrolls
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
  }, { passive: false });
  frame.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5), "-": () => zoom(2), 0: () => zoomTo(0, 1), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25) }[event.key];
    if (!act || (event.key.startsWith("Arrow") && to - from === 1)) return;
    event.preventDefault();
    act();
  });

  function drawPath(critical, begin, end) {
    if (critical.length === 0) return show(path);
    const took = critical.reduce((sum, task) => sum + task.finished - task.started, 0);
    const names = critical.slice(0, STEPS_SHOWN).map(taskLabel).join(" → ");
    show(path, `Critical path (underlined): ${names}${critical.length > STEPS_SHOWN ? ` and ${count(critical.length - STEPS_SHOWN)} more` : ""}: ${duration(took)} of ${duration(end - begin)}.`);
    return undefined;
  }

  /** Without `nodes`, null, no critical path is marked. `earlier`: attempts before the newest one of a task, as the server lists them. */
  function draw(tasks, nodes, isRunActive, earlier = []) {
    drawn = [tasks, nodes, isRunActive, earlier];
    const spans = spansOf(tasks, earlier, isRunActive);
    tools.hidden = spans.length === 0;
    if (spans.length === 0) {
      show(frame, h("p", { class: "quiet" }, "No attempt has started."));
      note.textContent = "";
      show(path);
      return;
    }
    const first = spans.reduce((least, span) => Math.min(least, span.begin - span.queue), spans[0].begin);
    const last = spans.reduce((most, span) => Math.max(most, span.end), first + 1);
    const begin = first + from * (last - first);
    const end = first + to * (last - first);
    left.disabled = from <= 0;
    right.disabled = to >= 1;
    all.disabled = to - from === 1;
    const critical = nodes === null ? [] : criticalPath(tasks, nodes);
    const isCritical = new Set(critical);
    const workers = lanesOf(spans);
    drawnWidth = frame.clientWidth;
    const width = Math.max(WIDTH_MIN, drawnWidth);
    const picture = s("svg", { class: "spans", role: "img", width });
    const { tops, height, lanes } = drawLanes(picture, workers);
    drawTicks(picture, width, height, begin - first, end - begin);
    const marksCritical = (span) => !span.isEarlier && isCritical.has(span.task);
    const inView = spans.filter((span) => span.lane < LANES_MAX && span.end >= begin && span.begin <= end);
    const shown = shownSpans(inView, marksCritical);
    const scale = (width - 4) / (end - begin);
    for (const span of shown) {
      const x = Math.max(-2, (span.begin - begin) * scale);
      const right = Math.min(width, (span.end - begin) * scale);
      picture.append(drawBar(span, 2 + x, tops.get(span.worker) + span.lane * LANE, Math.max(1.5, right - x), Math.min(span.queue * scale, x), marksCritical(span)));
    }
    picture.setAttribute("height", height);
    picture.setAttribute("aria-label", `${plural(spans.length, "attempt")} on ${plural(workers.size, "worker")} in ${duration(last - first)}, the most at a time ${count(lanes)}. The list of tasks has the same as text.`);
    show(frame, picture);
    const marks = "A thin line before a bar is time in the queue, a cross marks a failure, a line at the left a retry; attempts before the newest one of a task are paler. Zoom with the buttons, + and −, or Ctrl and the wheel.";
    note.textContent = shown.length < inView.length ? `${count(shown.length)} of ${plural(inView.length, "attempt")} are shown, the longest. ${marks}` : marks;
    drawPath(critical, first, last);
  }

  new ResizeObserver(() => {
    if (drawn !== null && frame.clientWidth !== drawnWidth) draw(...drawn);
  }).observe(frame);

  return { element, draw };
}
