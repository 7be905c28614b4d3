// A report: the views of the page over frozen data, and what only a report shows.
//   #/   #/runs/RUN   #/runs/RUN/task/TASK
import { RequestError, openReport, runOf } from "./api.js";
import { compareView } from "./compare.js";
import { beginView, h, show } from "./dom.js";
import { localTime, plural } from "./format.js";
import { runView } from "./run.js";
import { runSections, taskSections } from "./sections.js";
import { taskView } from "./task.js";

const main = document.getElementById("main");
const NO_WRITER = { writer: false, state: "" };
let report = null;
let view = null;

/** A hash that someone typed may have a `%` that encodes nothing. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function routeOf(hash) {
  const parts = hash.replace(/^#/, "").split("/").filter((part) => part !== "").map(decoded);
  const only = report.runs.length === 1 ? report.runs[0].row.run : "";
  if (parts[0] !== "runs" || parts.length < 2) return { run: only, task: "" };
  return { run: parts[1], task: parts[2] === "task" && parts.length === 4 ? parts[3] : "" };
}

async function showRun({ run, task }) {
  const data = runOf(run);
  view = (task ? taskView : runView)(main, { run, task, fields: new URLSearchParams() }, () => NO_WRITER);
  await view.ready;
  main.append(...(task ? taskSections(data, task) : runSections(report, data)));
}

function fail(error) {
  show(main, h("h1", { tabindex: "-1" }, error instanceof RequestError ? "Not found" : "This cannot be shown"),
    h("p", { class: "bad" }, error.message), h("p", {}, h("a", { href: "#/" }, "The report")));
}

async function open(isFirst) {
  if (view && view.end) view.end();
  view = null;
  beginView();
  const route = routeOf(location.hash);
  try {
    if (route.run === "") compareView(main, report);
    else await showRun(route);
  } catch (error) {
    fail(error);
  }
  if (!isFirst) {
    main.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  document.body.dataset.shown = location.hash || "#/";
}

async function begin() {
  try {
    report = await openReport();
    document.getElementById("state").textContent = `Report of ${plural(report.runs.length, "run")}`;
    show(document.getElementById("made"), "made ", h("time", { datetime: report.made }, localTime(report.made)), ` by flow ${report.version}`);
    await open(true);
  } catch (error) {
    fail(error);
  }
}

addEventListener("hashchange", () => open(false));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address names the view
  main.focus();
});
begin();
