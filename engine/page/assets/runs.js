// The list of runs, with a filter and a search.
import { get } from "./api.js";
import { changes, h, show, throttled } from "./dom.js";
import { RUN_STATES, count, countsBar, countsText, elapsedElement, plural, runLink, stateElement, timeElement } from "./format.js";

function row(run) {
  return h("tr", { "data-run": run.run },
    h("td", { class: "main" },
      h("a", { href: runLink(run.run) }, run.name || run.pipeline),
      run.name ? h("span", { class: "quiet" }, ` ${run.pipeline}`) : null,
      h("div", { class: "id" }, run.run)),
    h("td", {}, stateElement(run.status)),
    h("td", { class: "counts" }, countsBar(run.counts), h("span", { class: "quiet" }, countsText(run.counts))),
    h("td", { class: "number wide" }, timeElement(run.started)),
    h("td", { class: "number wide" }, elapsedElement(run)));
}

const COLUMNS = [["Run", ""], ["Status", ""], ["Tasks", ""], ["Started", "number wide"], ["Duration", "number wide"]];

export function runsView(main, route) {
  document.title = "Runs – flow";
  const search = h("input", { type: "search", id: "search", value: route.fields.get("q") || "", placeholder: "id, name, pipeline or parameter", autocomplete: "off" });
  const status = h("select", { id: "status" }, h("option", { value: "" }, "all"), RUN_STATES.map((state) => h("option", { value: state }, state)));
  status.value = route.fields.get("status") || "";
  const summary = h("p", { class: "quiet", id: "summary", role: "status" });
  const body = h("tbody", { id: "runs" });
  const table = h("table", { class: "runs" },
    h("caption", { class: "unseen" }, "Runs, the newest first"),
    h("thead", {}, h("tr", {}, COLUMNS.map(([name, style]) => h("th", { scope: "col", class: style }, name)))), body);
  const empty = h("div", { class: "empty-state", hidden: true });
  show(main,
    h("h1", { tabindex: "-1" }, "Runs"),
    h("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "search" }, "Search"), search, h("label", { for: "status" }, "Status"), status),
    summary, h("div", { class: "scroll", role: "region", "aria-label": "List of runs", tabindex: "0" }, table), empty);

  const isFiltered = () => search.value.trim() !== "" || status.value !== "";

  const isNew = changes();
  async function load() {
    const listed = await get("/api/runs", { q: search.value.trim(), status: status.value });
    if (!isNew([listed, isFiltered()])) return;
    show(body, listed.runs.map(row));
    const shown = listed.runs.length;
    summary.textContent = isFiltered() ? `${count(listed.matching)} of ${plural(listed.total, "run")}` : plural(listed.total, "run");
    if (shown < listed.matching) summary.textContent += `, the newest ${count(shown)} are shown`;
    table.hidden = shown === 0;
    empty.hidden = shown > 0;
    show(empty, isFiltered() ? h("p", {}, "No run matches the filter.") : [h("p", {}, "There is no run yet."), h("p", { class: "quiet" }, "Start one with ", h("code", {}, "flow run FILE"), ".")]);
  }
  const refresh = throttled(load, 300);

  const onFilter = () => {
    const fields = new URLSearchParams();
    if (search.value.trim()) fields.set("q", search.value.trim());
    if (status.value) fields.set("status", status.value);
    history.replaceState(null, "", fields.size > 0 ? `#/?${fields}` : "#/");
    refresh();
  };
  search.addEventListener("input", onFilter);
  status.addEventListener("change", onFilter);

  return {
    ready: load(),
    reload: refresh,
    // Rows that are shown change in place; another run may enter or leave the filter.
    runs({ changed, removed }) {
      const shown = new Map([...body.rows].map((each) => [each.dataset.run, each]));
      const isSimple = removed.length === 0 && !isFiltered() && changed.every((run) => shown.has(run.run));
      if (!isSimple) return refresh();
      for (const run of changed) {
        const before = shown.get(run.run);
        const hasFocus = before.contains(document.activeElement);
        const after = row(run);
        before.replaceWith(after);
        if (hasFocus) after.querySelector("a").focus();
      }
      isNew(changed);  // the next list is drawn
    },
  };
}
