// What runs cost: of chosen ones side by side, or of all that were started in a time.
import { RequestError, get, runPath } from "./api.js";
import { GROUPS, amountText, costElements, hoursText, partsBar } from "./cost.js";
import { changes, h, show, shownView } from "./dom.js";
import { count, isActive, plural, runLink, stateElement } from "./format.js";
import { polled } from "./live.js";

const RUNS_OFFERED = 50;
const RUNS_MAX = 8;
const PAUSES = 10;  // between readings, in durations of one: it costs the server as much as reading the tasks
const PERIODS = [["", "chosen runs"], ["1d", "the last 24 hours"], ["7d", "the last 7 days"], ["30d", "the last 30 days"]];
const SECONDS = { "1d": 86400, "7d": 604800, "30d": 2592000 };

const labelOf = (run) => run.name || run.pipeline;

/** The totals of several runs, and their sum where all are in one currency. */
function totalsTable(answers) {
  const currencies = new Set(answers.map(({ cost }) => cost.currency));
  const currency = currencies.size === 1 ? [...currencies][0] : null;
  const amounts = answers.map(({ cost }) => cost.total.amount);
  const most = Math.max(...answers.map(({ cost }) => (currency === null ? cost.total.cpu_hours.held : cost.total.amount ?? 0)));
  const sum = (of) => answers.reduce((all, { cost }) => all + of(cost.total), 0);
  const cells = (attempts, cpus, gpus, amount) => [h("td", { class: "number attempts wide" }, count(attempts)), h("td", { class: "number cpus" }, hoursText(cpus)),
    h("td", { class: "number gpus" }, hoursText(gpus)), h("td", { class: "number amount" }, amount)];
  return h("section", { "aria-labelledby": "totals-title" }, h("h2", { id: "totals-title" }, "Runs"),
    h("div", { class: "scroll", role: "region", "aria-label": "Totals of the runs", tabindex: "0" }, h("table", { id: "totals" }, h("caption", { class: "unseen" }, "Totals of the runs"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Run"), [["Attempts", "number wide"], ["CPU-hours held", "number"], ["GPU-hours held", "number"], ["Cost", "number"]]
        .map(([text, style]) => h("th", { scope: "col", class: style }, text)))),
      h("tbody", {}, answers.map(({ run, cost }) => h("tr", { "data-run": run.run }, h("th", { scope: "row" }, h("a", { href: runLink(run.run) }, labelOf(run)), " ", stateElement(run.status),
        partsBar([["cpus", currency === null ? cost.total.cpu_hours.held : cost.total.amount]], most)),
        cells(cost.total.attempts, cost.total.cpu_hours.held, cost.total.gpu_hours.held, cost.currency === null ? "–" : `${amountText(cost.total.amount)} ${cost.currency}`))),
      h("tr", { class: "total" }, h("th", { scope: "row" }, "total"), cells(sum((total) => total.attempts), sum((total) => total.cpu_hours.held), sum((total) => total.gpu_hours.held),
        currency === null || amounts.includes(null) ? "–" : `${amountText(sum((total) => total.amount))} ${currency}`))))));
}

const runElement = (answer) => h("section", { class: "cost-item", "data-run": answer.run.run, "aria-label": `Cost of ${labelOf(answer.run)} ${answer.run.run}` },
  h("h2", {}, h("a", { href: runLink(answer.run.run) }, labelOf(answer.run)), " ", stateElement(answer.run.status), " ", h("span", { class: "id" }, answer.run.run)),
  costElements(answer, `${labelOf(answer.run)} ${answer.run.run}`));

export function costView(main, route) {
  document.title = "Cost – flow";
  const isShown = shownView();
  const chosen = new Set(route.fields.getAll("run").slice(0, RUNS_MAX));
  const option = (value, text) => h("option", { value }, text);
  const period = h("select", { id: "cost-period" }, PERIODS.map(([value, text]) => option(value, text)));
  const by = h("select", { id: "cost-by" }, GROUPS.map((each) => option(each, each === "gpu" ? "GPU" : each)));
  period.value = SECONDS[route.fields.get("since")] ? route.fields.get("since") : "";
  by.value = GROUPS.includes(route.fields.get("by")) ? route.fields.get("by") : "task";
  const runs = h("fieldset", { class: "choices", id: "cost-runs" });
  const note = h("p", { class: "quiet", id: "summary", role: "status" });
  const list = h("div", { id: "costs" });
  show(main, h("h1", { tabindex: "-1" }, "Cost"),
    h("div", { class: "tools" }, h("label", { for: "cost-period" }, "Of"), period, h("label", { for: "cost-by" }, "By"), by), runs, note, list);

  const kept = new Map();  // answers by run, grouping and end, of runs that have ended
  let ends = new Map();  // status and end of the listed runs: one that was resumed has another one
  const isNew = changes();
  const areNewRuns = changes();
  let nextAt = 0;
  let requestNumber = 0;  // only the newest response is drawn
  let wasEmptied = false;

  const box = (run, i) => h("span", { class: "check" },
    h("input", { type: "checkbox", id: `run-${i}`, "data-run": run.run, checked: chosen.has(run.run), disabled: chosen.size >= RUNS_MAX && !chosen.has(run.run), onchange: (event) => choose(run.run, event.target.checked) }),
    h("label", { for: `run-${i}` }, `${labelOf(run)} `, h("span", { class: "id" }, run.run)));

  function drawRuns(listed) {
    runs.hidden = period.value !== "";
    if (!areNewRuns(listed.map((run) => [run.run, run.name]))) return;
    show(runs, h("legend", {}, `Runs, at most ${RUNS_MAX}`), listed.map(box), listed.length === 0 ? h("p", { class: "quiet" }, "There is no run yet.") : null);
  }

  const endOf = (run) => `${run.status} ${run.finished}`;

  async function costOf(run) {
    const key = `${run} ${by.value} ${ends.get(run)}`;
    if (kept.has(key)) return kept.get(key);
    const answer = await get(runPath(run, "cost"), { by: by.value });
    if (!isActive(answer.run.status) && endOf(answer.run) === ends.get(run)) kept.set(key, answer);
    return answer;
  }

  async function drawPeriod(isNewest) {
    const answer = await get("/api/cost", { since_s: SECONDS[period.value], by: by.value });
    if (!isNewest() || !isNew([period.value, answer])) return;
    const { cost } = answer;
    const text = PERIODS.find(([value]) => value === period.value)[1];
    note.textContent = cost.runs.length === 0 ? `No run was started in ${text}.` : `${plural(cost.runs.length, "run")}, started in ${text}`;
    show(list, cost.runs.length === 0 ? null : h("section", { class: "cost-item", "aria-label": `Cost of ${text}` }, costElements(answer, text)));
  }

  async function drawChosen(isNewest) {
    const answers = await Promise.all([...chosen].map(costOf));
    if (!isNewest() || !isNew(answers)) return;
    note.textContent = answers.length === 0 ? "Choose runs." : plural(answers.length, "run");
    show(list, answers.length > 1 ? totalsTable(answers) : null, answers.map(runElement));
  }

  async function load(isAsked) {
    const begin = performance.now();
    if (!isAsked && begin < nextAt) return;
    const mine = ++requestNumber;
    const isNewest = () => mine === requestNumber && isShown();
    try {
      const listed = (await get("/api/runs", { limit: RUNS_OFFERED })).runs;
      if (!isNewest()) return;
      ends = new Map(listed.map((run) => [run.run, endOf(run)]));
      // As `flow cost`, which is about the newest run.
      if (chosen.size === 0 && period.value === "" && listed.length > 0 && !wasEmptied) chosen.add(listed[0].run);
      drawRuns(listed);
      await (period.value === "" ? drawChosen(isNewest) : drawPeriod(isNewest));
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;  // flow ui cannot be reached
      if (!isNewest()) return;
      isNew(null);
      note.textContent = "";
      show(list, h("p", { class: "bad" }, error.message));
    }
    nextAt = performance.now() + PAUSES * (performance.now() - begin);
  }

  function keepAddress() {
    const fields = new URLSearchParams(period.value === "" ? [...chosen].map((run) => ["run", run]) : [["since", period.value]]);
    fields.set("by", by.value);
    history.replaceState(null, "", `#/cost?${fields}`);
  }

  function choose(run, isChosen) {
    if (isChosen) chosen.add(run);
    else chosen.delete(run);
    wasEmptied = chosen.size === 0;
    for (const each of runs.querySelectorAll("input")) each.disabled = chosen.size >= RUNS_MAX && !each.checked;
    keepAddress();
    return load(true);
  }
  for (const element of [period, by]) {
    element.addEventListener("change", () => {
      keepAddress();
      load(true);
    });
  }
  return polled(() => load(false));
}
