// What only a report shows of a run and of a task: what tasks used, files, code, environment.
import { detailsOf } from "./api.js";
import { h } from "./dom.js";
import { asText, count, duration, plural, stateElement, taskLabel, taskLink } from "./format.js";
import { virtualTable } from "./virtual.js";

const FILES_SHOWN = 500;

const section = (id, title, ...content) => h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), content);
const fact = (label, ...content) => h("div", { class: "fact" }, h("span", { class: "label" }, label), content);
const id = (text) => h("span", { class: "id" }, text || "–");

/** "512 B", "1.5 GiB". */
export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let [size, unit] = [number, 0];
  for (; size >= 1024 && unit < 5; unit++) size /= 1024;
  return `${unit === 0 ? size : size.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

const seconds = (number) => duration(number === null || number === undefined ? null : number * 1000);

function plainTable(label, columns, rows) {
  return h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, h("table", {},
    h("caption", { class: "unseen" }, label),
    h("thead", {}, h("tr", {}, columns.map(([title, style]) => h("th", { scope: "col", class: style }, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => h("td", { class: columns[i][1] }, cell)))))));
}

const USAGE = [["Task", "main"], ["State", ""], ["Attempts", "number"], ["Duration", "number"], ["CPU time", "number"], ["Peak memory", "number"],
  ["Read", "number"], ["Written", "number"], ["GPU time", "number"], ["Waited", "number"], ["Error", ""]];

function usageCells(run, task) {
  return [h("a", { href: taskLink(run, task.name) }, taskLabel(task)), stateElement(task.status, task.cached ? " cached" : null), count(task.attempts),
    task.attempts === 0 ? "–" : seconds(task.duration_s), seconds(task.cpu_s), bytes(task.peak_memory), bytes(task.read_bytes), bytes(task.written_bytes), seconds(task.gpu_s),
    seconds(task.queue_s), asText(task.error).split("\n")[0]];
}

function usageSection(run) {
  const table = virtualTable("What tasks used", USAGE, (task) => usageCells(run.row.run, task));
  const element = section("usage", "What tasks used", table.element);
  requestAnimationFrame(() => table.set(run.row.tasks));
  return element;
}

const FILES = [["File", "main"], ["SHA-256", ""], ["Size", "number"], ["Made by", ""]];

const fileCells = (run, file) => [`${file.name}${file.folder ? "/" : ""}`, id(file.sha256), bytes(file.bytes),
  file.task === null ? "–" : h("a", { href: taskLink(run.row.run, file.task) }, file.task)];

/** `numbers`: indices of files; those of a large run are not all in the report. */
function fileTable(label, run, numbers) {
  const files = numbers.map((each) => run.files.list[each]).filter((file) => file);
  const rows = files.slice(0, FILES_SHOWN).map((file) => fileCells(run, file));
  return [plainTable(label, FILES, rows), rows.length < numbers.length ? h("p", { class: "quiet" }, `${count(rows.length)} of ${plural(numbers.length, "file")} are shown.`) : null];
}

function filesSection(run) {
  const { inputs, results, total } = run.files;
  return section("files", "Files",
    h("p", { class: "quiet" }, total === 0 ? "The run has no files." : `${plural(total, "file")} in all: a task's page has those that it read and made.`),
    inputs.length > 0 ? [h("h3", {}, "Inputs of the run"), h("div", { id: "inputs" }, fileTable("Inputs of the run", run, inputs))] : null,
    results.length > 0 ? [h("h3", {}, "Files of the result"), h("div", { id: "results" }, fileTable("Files of the result", run, results))] : null);
}

/** Of `code.revision`, which is null if the script was in no repository. */
function revisionText({ id, dirty }) {
  const state = dirty === true ? " with changes that are not committed" : dirty === false ? "" : " (whether its files were changed is not known)";
  return h("span", {}, h("span", { class: "id" }, id), state);
}

function codeSection(run) {
  const { code } = run;
  return section("code", "Code",
    h("div", { class: "facts" }, fact("Bundle (SHA-256)", id(code.bundle)), fact("Plan (SHA-256)", id(code.plan)), fact("Script", id(code.main)),
      code.revision ? fact("Git revision", revisionText(code.revision)) : null),
    code.files.length > 0 ? plainTable("Files of the code", [["File", "main"], ["SHA-256", ""], ["Size", "number"]],
      code.files.map((file) => [file.name, id(file.sha256), bytes(file.bytes)])) : h("p", { class: "quiet" }, "The state no longer has the code."));
}

function environmentSection(report, run) {
  const { environment } = run;
  return section("environment", "Environment",
    h("div", { class: "facts" }, fact("Script", id(environment.script)), fact("Folder", id(environment.directory)), fact("User", id(environment.user))),
    environment.workers.length > 0 ? plainTable("Workers", [["Worker", "main"], ["Tasks", "number"], ["GPUs", ""]],
      environment.workers.map((each) => [each.name, count(each.tasks), id(each.gpus.join(", "))])) : h("p", { class: "quiet" }, "No task ran."),
    h("p", { class: "quiet", id: "made-on" }, `This report was made by ${report.user} with flow ${report.version} on ${report.host} (${report.system}${report.driver ? `, NVIDIA driver ${report.driver} at the time of the report` : ""}). The worker “local” is the machine of the process that executed the run.`));
}

export const runSections = (report, run) => [usageSection(run), filesSection(run), codeSection(run), environmentSection(report, run)];

export function taskSections(run, name) {
  const task = run.row.tasks.find((each) => each.name === name);
  const details = detailsOf(run, name);
  return [
    section("usage", "What its newest attempt used", h("div", { class: "facts" },
      fact("CPU time", seconds(task.cpu_s)), fact("Peak memory", bytes(task.peak_memory)), fact("Read", bytes(task.read_bytes)),
      fact("Written", bytes(task.written_bytes)), fact("GPU time", seconds(task.gpu_s)),
      task.gpu_used_s > 0 ? fact("of which used", seconds(task.gpu_used_s)) : null, task.gpu_energy_j > 0 ? fact("Energy of GPUs", `${Math.round(task.gpu_energy_j)} J`) : null, fact("Waited for a slot", seconds(task.queue_s)),
      fact("Prepared", seconds(task.stage_s)), fact("Recorded", seconds(task.commit_s)), fact("Key", id(task.key)))),
    details && details.inputs.length > 0 ? section("inputs", "Files that it read", fileTable("Files that it read", run, details.inputs)) : null,
    details && details.outputs.length > 0 ? section("outputs", "Files that it made", fileTable("Files that it made", run, details.outputs)) : null,
  ].filter((each) => each !== null);
}
