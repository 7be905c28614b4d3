// The tasks that wait, and for what.
import { get } from "./api.js";
import { changes, h, show } from "./dom.js";
import { asText, count, plural, runLink, stateElement, taskLabel, taskLink } from "./format.js";
import { polled } from "./live.js";
import { virtualTable } from "./virtual.js";

const COLUMNS = [["Run", "wide"], ["Task", "main"], ["State", "wide"], ["Waits for", ""]];

export function waitingView(main) {
  document.title = "Waiting – flow";
  const summary = h("p", { class: "quiet", id: "summary", role: "status" });
  const list = virtualTable("Tasks that wait", COLUMNS, (task) => [
    h("a", { href: runLink(task.run) }, task.name), h("a", { href: taskLink(task.run, task.task) }, taskLabel({ name: task.task, tag: task.tag })),
    stateElement(task.status), h("span", { title: asText(task.waits_for) }, asText(task.waits_for))]);
  show(main, h("h1", { tabindex: "-1" }, "Waiting tasks"), summary, list.element);
  const isNew = changes();
  return polled(async () => {
    const waiting = await get("/api/waiting");
    if (!isNew(waiting)) return;
    list.element.hidden = waiting.total === 0;
    list.set(waiting.tasks);
    summary.textContent = waiting.total === 0 ? "Nothing waits." : plural(waiting.total, "task") + (waiting.tasks.length < waiting.total ? `, the first ${count(waiting.tasks.length)} are shown` : "");
  });
}
