// The graph of a run by task: boxes with counts, in layers from left to right.
import { h, s, show } from "./dom.js";
import { TASK_STATES, count, countsText, groupOf, total } from "./format.js";

const WIDTH = 168;
const HEIGHT = 52;
const GAP_X = 56;
const GAP_Y = 18;
const POINT = 10;  // the height of an edge that passes a layer
const GROUPS_MAX = 80;

/** Groups and edges, from the nodes of the plan and the tasks of the run. */
function groupsOf(nodes, groups) {
  const boxes = new Map([...groups.keys()].map((name) => [name, { name, before: new Set(), from: [] }]));
  for (const node of nodes) {
    const name = groupOf(node.name);
    if (!boxes.has(name)) continue;
    for (const need of [...node.needs, ...node.after]) {
      const other = groupOf(need);
      if (other === name || !boxes.has(other)) continue;
      boxes.get(name).before.add(other);
    }
  }
  return boxes;
}

/** Edges over several layers go through a point in each, which keeps them off the boxes. */
function addPoints(boxes, layers) {
  const edges = [];
  for (const box of [...boxes.values()]) {
    for (const name of box.before) {
      const path = [boxes.get(name)];
      for (let layer = path[0].layer + 1; layer < box.layer; layer++) {
        const point = { isPoint: true, layer, from: [path[path.length - 1]] };
        layers[layer].push(point);
        path.push(point);
      }
      box.from.push(path[path.length - 1]);
      edges.push([...path, box]);
    }
  }
  return edges;
}

/** Puts each box near the middle of those before it. */
function sortLayers(layers) {
  for (const layer of layers) layer.forEach((box, i) => (box.at = i));
  const middle = (box) => (box.from.length === 0 ? box.at : box.from.reduce((sum, each) => sum + each.at, 0) / box.from.length);
  for (const layer of layers.slice(1)) {
    layer.sort((a, b) => middle(a) - middle(b));
    layer.forEach((box, i) => (box.at = i));
  }
}

/** The layer of each box: one more than the last of those before it. */
function layersOf(boxes) {
  const layers = [];
  const visit = (box, path) => {
    if (box.layer !== undefined) return box.layer;
    if (path.has(box.name)) return 0;  // calls of one task may be on both sides of another
    path.add(box.name);
    box.layer = Math.max(-1, ...[...box.before].map((name) => visit(boxes.get(name), path))) + 1;
    path.delete(box.name);
    (layers[box.layer] ||= []).push(box);
    return box.layer;
  };
  for (const box of boxes.values()) visit(box, new Set());
  return Array.from(layers, (layer) => layer || []);
}

const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function drawBox(box, counts) {
  const parts = s("g");
  let x = box.x + 10;
  const all = total(counts);
  for (const state of [...TASK_STATES].reverse()) {
    if (!counts[state]) continue;
    const width = (WIDTH - 20) * counts[state] / all;
    parts.append(s("rect", { class: `fill ${state}`, x, y: box.y + HEIGHT - 12, width, height: 4 }));
    x += width;
  }
  const done = counts.failed > 0 ? `${count(counts.failed)} of ${count(all)} failed` : `${count(counts.succeeded || 0)}/${count(all)} succeeded`;
  return s("g", { class: "box", "data-group": box.name },
    s("title", {}, `${box.name}: ${countsText(counts)}`),
    s("rect", { class: "frame", x: box.x, y: box.y, width: WIDTH, height: HEIGHT, rx: 6 }),
    s("text", { class: "name", x: box.x + 10, y: box.y + 18 }, shortened(box.name, 22)),
    s("text", { class: "small", x: box.x + 10, y: box.y + 33 }, done), parts);
}

function edgePath(boxes) {
  const middle = (box) => box.y + (box.isPoint ? POINT : HEIGHT) / 2;
  let path = `M${boxes[0].x + WIDTH} ${middle(boxes[0])}`;
  for (let i = 1; i < boxes.length; i++) {
    const [before, box] = [boxes[i - 1], boxes[i]];
    const bend = Math.max(24, Math.abs(box.x - before.x - WIDTH) / 2);
    path += `C${before.x + WIDTH + bend} ${middle(before)} ${box.x - bend} ${middle(box)} ${box.x} ${middle(box)}`;
    if (box.isPoint) path += `H${box.x + WIDTH}`;
  }
  return path;
}

/** `choose(name)` is called for a box that is clicked. */
export function taskGraph(choose) {
  const element = h("div", { class: "scroll graph", role: "region", "aria-label": "Drawing of the graph", tabindex: "0" });
  element.addEventListener("click", (event) => {
    const box = event.target.closest("[data-group]");
    if (box) choose(box.dataset.group);
  });

  /** `nodes`: of the plan. `groups`: counts by the name of a task. */
  function draw(nodes, groups) {
    if (groups.size === 0) return show(element, h("p", { class: "quiet" }, "The run has no tasks."));
    if (groups.size > GROUPS_MAX) {
      return show(element, h("p", { class: "quiet" }, `The graph has ${count(groups.size)} tasks, and at most ${GROUPS_MAX} are drawn. `, h("code", {}, "flow graph RUN --format svg"), " draws all."));
    }
    const boxes = groupsOf(nodes, groups);
    const layers = layersOf(boxes);
    const edges = addPoints(boxes, layers);
    sortLayers(layers);
    const heightOf = (box) => (box.isPoint ? POINT : HEIGHT) + GAP_Y;
    const heights = layers.map((layer) => layer.reduce((sum, box) => sum + heightOf(box), -GAP_Y));
    const height = Math.max(...heights) + 8;
    const picture = s("svg", { role: "img", width: layers.length * (WIDTH + GAP_X) - GAP_X + 8, height,
      "aria-label": `The graph of ${count(groups.size)} tasks. The table of tasks has their counts as text.` });
    layers.forEach((layer, column) => {
      let y = (height - heights[column]) / 2;
      for (const box of layer) {
        Object.assign(box, { x: 4 + column * (WIDTH + GAP_X), y });
        y += heightOf(box);
      }
    });
    for (const path of edges) picture.append(s("path", { class: "edge", d: edgePath(path) }));
    for (const box of boxes.values()) picture.append(drawBox(box, groups.get(box.name)));
    show(element, picture);
  }

  return { element, draw };
}
