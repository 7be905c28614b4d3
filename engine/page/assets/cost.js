// What a run held and used, and what that costs: figures, bars and tables of `flow cost`.
import { get, runPath } from "./api.js";
import { changes, h, show } from "./dom.js";
import { count, numberFact, plural } from "./format.js";

const EXACT = 100;  // fewer hours have digits after the point
const JOULES_PER_KWH = 3.6e6;
export const GROUPS = ["task", "user", "queue", "gpu"];

export const hoursText = (hours) => (hours === null ? "–" : hours < EXACT ? Number(hours.toPrecision(4)).toString() : Math.round(hours).toString());

/** Two decimals; four significant digits below 1. */
export const amountText = (amount) => (amount === null ? "–" : amount !== 0 && amount < 1 ? Number(amount.toPrecision(4)).toString() : amount.toFixed(2));

export const moneyText = (amount, currency) => (amount === null ? "not known" : `${amountText(amount)} ${currency}`);

/** Parts of a whole as one bar: [class, size]; none of nothing. The text beside it says the same. */
export function partsBar(parts, whole) {
  if (!(whole > 0)) return null;
  const bar = h("span", { class: "cost-bar", "aria-hidden": "true" });
  for (const [style, size] of parts) {
    if (!(size > 0)) continue;
    const part = h("span", { class: `cost-part ${style}` });
    part.style.width = `${Math.min(100, 100 * size / whole)}%`;
    bar.append(part);
  }
  return bar;
}

/** What a row is compared by: its amount, or without prices its CPU- and GPU-hours. */
const weightOf = (row) => row.amount ?? row.cpu_hours.held + row.gpu_hours.held;

/** The amounts of CPUs, memory and GPUs, or without prices the hours of CPUs and GPUs. */
const sharesOf = (row) => (row.amount !== null ? [["cpus", row.cpu_hours.amount], ["memory", row.memory_gb_hours.amount], ["gpus", row.gpu_hours.amount]]
  : [["cpus", row.cpu_hours.held], ["gpus", row.gpu_hours.held]]);

/** Used of held, and a note. */
function useCell(style, { held, used }, note) {
  const isKnown = used !== null && used !== undefined;
  return h("td", { class: `number ${style}` }, partsBar([["spent", isKnown ? used : 0]], held),
    h("span", { class: "held" }, hoursText(held)), " / ", h("span", { class: "used" }, isKnown ? hoursText(used) : "–"), note);
}

const CAUSES = [["staging", "waited for data"], ["rank", "waited for ranks"], ["fragmentation", "free, unsuitable"], ["queue_empty", "free, none wanted"]];

/** GPU-hours by the cause for which they were idle: those that are known, and above 0. */
const idleFacts = (idle) => CAUSES.filter(([cause]) => idle[cause] > 0).map(([cause, text]) => numberFact(text, `idle-${cause.replace("_", "-")}`, hoursText(idle[cause])));

const COLUMNS = [["Tasks", "number wide"], ["Attempts", "number wide"], ["CPU-hours held / used", "number"], ["GB-hours held / peak", "number wide"], ["GPU-hours held / used", "number"]];

function costRow(row, name, most, hasPrices, isTotal) {
  return h("tr", { "data-name": isTotal ? null : name, class: isTotal ? "total" : "" },
    h("th", { scope: "row" }, name, partsBar(sharesOf(row), most)),
    h("td", { class: "number wide tasks" }, count(row.tasks)), h("td", { class: "number wide attempts" }, count(row.attempts)),
    useCell("cpus", row.cpu_hours), useCell("memory wide", row.memory_gb_hours),
    useCell("gpus", row.gpu_hours, row.gpu_hours.idle.staging > 0 ? h("div", { class: "quiet" }, `${hoursText(row.gpu_hours.idle.staging)} waited for data`) : null),
    hasPrices ? h("td", { class: "number amount" }, amountText(row.amount)) : null);
}

const OUTCOMES = [["failed", "Failed"], ["lost", "Lost with a worker or an engine"], ["stopped", "Stopped"], ["saved", "Saved by the cache"]];

/** Attempts whose work was in vain, and what the cache saved; null if there are none. */
function outcomeTable(total, currency, label) {
  const parts = OUTCOMES.filter(([name]) => total[name].attempts > 0);
  if (parts.length === 0) return null;
  const columns = ["Attempts", "CPU-hours", "GB-hours", "GPU-hours", currency].filter((each) => each !== null);
  return h("div", { class: "scroll", role: "region", "aria-label": `Failed, lost and stopped attempts, and cache savings of ${label}`, tabindex: "0" }, h("table", { class: "losses" },
    h("caption", { class: "unseen" }, `Failed, lost and stopped attempts, and cache savings of ${label}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Outcome"), columns.map((each) => h("th", { scope: "col", class: "number" }, each)))),
    h("tbody", {}, parts.map(([name, text]) => h("tr", { "data-part": name }, h("th", { scope: "row" }, text), h("td", { class: "number attempts" }, count(total[name].attempts)),
      h("td", { class: "number cpus" }, hoursText(total[name].cpu_hours)), h("td", { class: "number memory" }, hoursText(total[name].memory_gb_hours)),
      h("td", { class: "number gpus" }, hoursText(total[name].gpu_hours)), currency !== null ? h("td", { class: "number amount" }, amountText(total[name].amount)) : null)))));
}

function budgetFact(budget) {
  const { limit, used, currency } = budget;
  return h("div", { class: "fact budget" }, h("span", { class: "label" }, "Budget"), partsBar([[used > limit ? "over" : "spent", used]], limit),
    h("span", { class: "number" }, `${amountText(used)} of ${moneyText(limit, currency)}`, budget.is_spent ? ", spent" : ""));
}

export const noPrices = () => h("p", { class: "quiet no-prices" }, "No prices are configured, so only hours are shown: add ", h("code", {}, "[prices]"), " to ", h("code", {}, "flow.toml"),
  ", with ", h("code", {}, "currency"), " and ", h("code", {}, "cpu_hour"), ".");

/** The elements for a cost report (`flow cost --json`), with the run's budget if it is of one run.
 *  `label` names the run or period. */
export function costElements({ cost, rows: rowCount, run }, label) {
  const { total, currency, by, rows } = cost;
  const budget = run ? run.budget : undefined;
  const hasPrices = currency !== null;
  const idle = total.cpu_hours.used === null ? null : Math.max(0, total.cpu_hours.held - total.cpu_hours.used);
  const most = rows.reduce((sum, row) => Math.max(sum, weightOf(row)), 0);
  const columns = hasPrices ? [...COLUMNS, [currency, "number"]] : COLUMNS;
  const title = `Cost of ${label} by ${by === "gpu" ? "GPU" : by}`;
  return [
    hasPrices ? null : noPrices(),
    h("div", { class: "facts" },
      hasPrices ? numberFact("Cost", "cost", moneyText(total.amount, currency)) : null,
      budget ? budgetFact(budget) : null,
      numberFact("CPU-hours held", "cpus-held", hoursText(total.cpu_hours.held)), numberFact("used", "cpus-used", hoursText(total.cpu_hours.used)), numberFact("idle", "cpus-idle", hoursText(idle)),
      numberFact("GB-hours of memory held", "memory-held", hoursText(total.memory_gb_hours.held)),
      numberFact("GPU-hours held", "gpus-held", hoursText(total.gpu_hours.held)),
      total.gpu_hours.used !== null ? [numberFact("used", "gpus-used", hoursText(total.gpu_hours.used)), numberFact("idle", "gpus-idle", hoursText(total.gpu_hours.idle.total))] : null,
      total.gpu_hours.used !== null && total.gpu_hours.unmeasured > 0 ? numberFact("not measured", "gpus-unmeasured", hoursText(total.gpu_hours.unmeasured)) : null,
      idleFacts(total.gpu_hours.idle),
      total.energy_j !== null ? numberFact("kWh of GPUs", "energy", hoursText(total.energy_j / JOULES_PER_KWH)) : null,
      total.egress_gb > 0 ? numberFact("GB between machines", "egress", hoursText(total.egress_gb)) : null,
      numberFact("Attempts", "attempts", count(total.attempts)),
      total.cached > 0 ? numberFact("From the cache", "cached", plural(total.cached, "task")) : null),
    h("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" }, h("table", { class: "costs" }, h("caption", { class: "unseen" }, title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, by === "gpu" ? "GPUs" : by[0].toUpperCase() + by.slice(1)), columns.map(([text, style]) => h("th", { scope: "col", class: style }, text)))),
      h("tbody", {}, rows.map((row) => costRow(row, row.name ?? "–", most, hasPrices, false)), rows.length > 1 ? costRow(total, "total", 0, hasPrices, true) : null))),
    rows.length < rowCount ? h("p", { class: "quiet" }, `${count(rows.length)} of ${count(rowCount)} rows are shown, the most expensive.`) : null,
    outcomeTable(total, currency, label)];
}

/** The cost of a run by task, read when it is opened. */
export function costPanel(run) {
  const body = h("div", { id: "cost" });
  const element = h("details", { class: "panel", id: "cost-panel" }, h("summary", {}, "Cost"), body);
  const isNew = changes();
  async function load() {
    if (!element.open) return;
    try {
      const answer = await get(runPath(run, "cost"), { by: "task" });
      if (isNew(answer)) show(body, costElements(answer, "this run"));
    } catch (error) {
      show(body, h("p", { class: "bad" }, error.message));
    }
  }
  element.addEventListener("toggle", load);
  return { element, load };
}
