// Chooses the view of the address, and keeps it up to date.
//   #/?q=TEXT&status=STATUS   #/runs/RUN   #/runs/RUN/task/TASK   #/waiting   #/workers
//   #/services   #/metrics?run=RUN&run=RUN   #/cost?run=RUN&by=WHAT   #/cost?since=TIME
import { RequestError, follow, getSession } from "./api.js";
import { costView } from "./costs.js";
import { beginView, h, show } from "./dom.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { metricsView } from "./metrics.js";
import { servicesView } from "./services.js";
import { taskView } from "./task.js";
import { waitingView } from "./waiting.js";
import { workersView } from "./workers.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const VIEWS = { waiting: waitingView, workers: workersView, services: servicesView, metrics: metricsView, cost: costView };
let session = { writer: false };
let view = null;
let stop = () => {};

/** A hash that someone typed may have a `%` that encodes nothing. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function routeOf(hash) {
  const [path, query] = hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter((part) => part !== "").map(decoded);
  const fields = new URLSearchParams(query || "");
  if (parts.length === 1 && VIEWS[parts[0]]) return { make: VIEWS[parts[0]], view: parts[0], run: "", fields };
  if (parts[0] !== "runs" || parts.length < 2) return { make: runsView, view: "runs", run: "", fields };
  if (parts[2] === "task" && parts.length === 4) return { make: taskView, run: parts[1], task: parts[3], fields };
  return { make: runView, run: parts[1], fields };
}

function fail(error) {
  const title = error instanceof RequestError && error.status === 404 ? "Not found" : "This cannot be shown";
  document.title = `${title} – flow`;
  show(main, h("h1", { tabindex: "-1" }, title), h("p", { class: "bad" }, error.message), h("p", {}, h("a", { href: "#/" }, "All runs")));
}

function setLink(isUp, reason) {
  link.className = `link-state ${isUp ? "up" : "down"}`;
  link.textContent = !isUp ? `not connected: ${reason || "is flow ui still running?"}` : session.writer ? "live" : "live; no process writes this state";
}

async function open(isFirst) {
  stop();
  if (view && view.end) view.end();
  beginView();
  const route = routeOf(location.hash);
  for (const each of document.querySelectorAll("[data-view]")) {
    if (each.dataset.view === (route.view || "runs")) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const mine = route.make(main, route, () => session);
  view = mine;
  const guarded = (kind) => (data) => {
    if (data.writer !== undefined && kind !== "run") session.writer = data.writer;
    setLink(true, "");
    if (view === mine && mine[kind]) mine[kind](data);
  };
  stop = follow(route.run, { reload: guarded("reload"), runs: guarded("runs"), run: guarded("run"), link: setLink });
  try {
    await mine.ready;
  } catch (error) {
    if (view === mine) fail(error);
  }
  // A reader of the screen starts at the title of the new view.
  if (!isFirst && view === mine) main.querySelector("h1")?.focus({ preventScroll: true });
  if (!isFirst) scrollTo(0, 0);
}

async function begin() {
  try {
    session = await getSession();
    document.getElementById("state").textContent = session.state;
    await open(true);
  } catch (error) {
    fail(error);
  }
}

document.addEventListener("refresh-failed", ({ detail }) => {
  if (detail instanceof RequestError && detail.status === 404) fail(detail);
  else if (detail instanceof RequestError) link.textContent = `not up to date: ${detail.message}`;
});
addEventListener("hashchange", () => open(false));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address names the view
  main.focus();
});
begin();
