// The writer's workers: slots, GPUs, labels, and which tasks hold them.
import { get } from "./api.js";
import { changes, h, show } from "./dom.js";
import { bytes, count, styledFact, taskLink } from "./format.js";
import { polled } from "./live.js";

const TASKS_MAX = 20;
const STATES = { up: "succeeded", draining: "waiting", away: "interrupted", left: "cancelled", lost: "failed" };

const number = (value) => Number(value.toFixed(2)).toString();

/** "RUN TASK" as a link. */
function taskLinks(tasks) {
  return h("ul", { class: "inline holds" }, tasks.slice(0, TASKS_MAX).map((each) => {
    const [run, ...name] = each.split(" ");
    const task = name.join(" ").replace(/ rank \d+$/, "");
    return h("li", {}, h("a", { href: taskLink(run, task) }, name.join(" ")));
  }), tasks.length > TASKS_MAX ? h("li", { class: "quiet" }, `and ${count(tasks.length - TASKS_MAX)} more`) : null);
}

// Measurements of the driver (NVML): each worker reports its own; for its own machine the page measures too.
const READINGS = [["Utilisation", "utilisation", (value) => `${value}%`], ["Memory in use", "memory_used", bytes], ["Temperature", "temperature", (value) => `${value} °C`], ["Power", "power", (value) => `${Math.round(value)} W`]];
const GPU_COLUMNS = ["GPU", "Held", "Memory held", ...READINGS.map(([title]) => title), "Fault", "Tasks"];

function gpuRow(gpu, reading) {
  const used = gpu.used === undefined ? "–" : `${Math.round(gpu.used * 100)}%`;
  const memory = gpu.memory_used === undefined ? bytes(gpu.memory) : `${bytes(gpu.memory_used)} of ${bytes(gpu.memory)}`;
  return h("tr", { "data-gpu": gpu.uuid || "" }, h("td", {}, gpu.name, h("div", { class: "id" }, gpu.uuid || ""),
      reading && reading.age_s > OLD_SECONDS ? h("div", { class: "quiet age" }, `measured ${reading.age_s} s ago`) : null), h("td", { class: "number left" }, used),
    h("td", { class: "number left" }, memory), READINGS.map(([, field, text]) => h("td", { class: `number left ${field}` }, reading && reading[field] !== null ? text(reading[field]) : "–")),
    h("td", {}, gpu.fault ? h("span", { class: "bad" }, gpu.fault) : "–"), h("td", {}, gpu.tasks && gpu.tasks.length > 0 ? taskLinks(gpu.tasks) : "–"));
}

const OLD_SECONDS = 15;  // a worker reports every few seconds

/** Only an age that is shown counts as a change of the view. */
function roundAge({ reading }) {
  if (reading) reading.age_s = reading.age_s > OLD_SECONDS ? Math.round(reading.age_s) : 0;
}

/** A measurement of the page itself is newer than the worker's report. */
function readingOf(gpu, readings) {
  if (readings[gpu.uuid] || !gpu.reading) return readings[gpu.uuid];
  const { utilisation, ...others } = gpu.reading;
  return { ...others, utilisation: utilisation === null ? null : Math.round(utilisation * 100) };
}

function workerElement(node, readings) {
  const name = node.node || "this process";
  const amounts = Object.entries(node.resources);
  const labels = Object.entries(node.labels);
  return h("section", { class: "worker-item", "data-worker": node.node || "", "aria-label": `Worker ${name}` },
    h("h2", {}, name, " ", h("span", { class: `state ${STATES[node.status] || node.status}` }, node.status)),
    node.note ? h("p", { class: "quiet" }, node.note) : null,
    h("div", { class: "facts" },
      styledFact("CPU slots in use", "number cpus", `${number(node.cpus_used)} of ${number(node.cpus)}`),
      styledFact("Memory", "number memory", node.memory > 0 ? bytes(node.memory) : "–"),
      amounts.map(([label, amount]) => styledFact(label, "number", `${number(node.resources_used[label] || 0)} of ${number(amount)}`)),
      labels.length > 0 ? styledFact("Labels", "labels", labels.map(([label, value]) => `${label}=${value}`).join(", ")) : null,
      node.address ? styledFact("Address", "id", node.address) : null,
      node.version ? styledFact("Version", "id", node.version) : null,
      styledFact("Tasks", "tasks", node.tasks.length > 0 ? taskLinks(node.tasks) : "none")),
    node.gpus.length > 0 ? h("div", { class: "scroll", role: "region", "aria-label": `GPUs of ${name}`, tabindex: "0" }, h("table", {}, h("caption", { class: "unseen" }, `GPUs of ${name}`),
      h("thead", {}, h("tr", {}, GPU_COLUMNS.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, node.gpus.map((gpu) => gpuRow(gpu, readingOf(gpu, readings)))))) : null);
}

export function workersView(main) {
  document.title = "Workers – flow";
  const summary = h("p", { class: "quiet", id: "summary", role: "status" });
  const list = h("div", { id: "workers" });
  show(main, h("h1", { tabindex: "-1" }, "Workers"), summary, list);
  const isNew = changes();
  return polled(async () => {
    const cluster = await get("/api/cluster");
    cluster.nodes.forEach(({ gpus }) => gpus.forEach(roundAge));
    if (!isNew(cluster)) return;
    const up = cluster.nodes.filter((node) => node.status === "up").length;
    summary.textContent = cluster.nodes.length === 0 ? "No process writes this state, so there is no worker. `flow head` and `flow run` are such processes."
      : `${count(up)} of ${count(cluster.nodes.length)} are up${cluster.address ? `; others join at ${cluster.address}` : ""}`;
    show(list, cluster.nodes.map((node) => workerElement(node, cluster.readings)));
  });
}
