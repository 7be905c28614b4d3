// What is in the result of a task: tables, tensors, pictures and texts.
import { h } from "./dom.js";
import { asText, bytes, count } from "./format.js";

const ROWS_MAX = 50;
const COLUMNS_MAX = 20;

const short = (number) => (number === null ? "–" : Number(number.toPrecision(5)).toString());

/** A list of objects as a table; null if the value is not such a list. */
function tableOf(text) {
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    return null;  // cut, or no JSON
  }
  const isRecord = (each) => each !== null && typeof each === "object" && !Array.isArray(each) && !Object.keys(each).some((key) => key.startsWith("$"));
  if (!Array.isArray(value) || value.length === 0 || !value.every(isRecord)) return null;
  const columns = [...new Set(value.slice(0, ROWS_MAX).flatMap(Object.keys))].slice(0, COLUMNS_MAX);
  if (columns.length === 0) return null;
  const rows = value.slice(0, ROWS_MAX).map((row) => h("tr", {}, columns.map((column) => h("td", { class: typeof row[column] === "number" ? "number" : "" }, asText(row[column])))));
  return h("div", {}, h("div", { class: "scroll", role: "region", "aria-label": "Result as a table", tabindex: "0" }, h("table", { id: "result-table" },
    h("caption", { class: "unseen" }, "Result as a table"), h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))), h("tbody", {}, rows))),
    value.length > ROWS_MAX ? h("p", { class: "quiet" }, `${count(ROWS_MAX)} of ${count(value.length)} rows are shown.`) : null);
}

function partElement(run, task, part) {
  const label = part.path || "the result";
  if (part.dtype) {
    const known = part.min !== null ? `min ${short(part.min)} · mean ${short(part.mean)} · max ${short(part.max)}` : "no statistics: it is empty, too large, or not in the state";
    return h("li", { class: "part-item", "data-path": part.path }, h("strong", {}, label), ` ${part.dtype} ${part.shape.length > 0 ? part.shape.map(count).join(" × ") : "scalar"}, ${bytes(part.bytes)}`,
      h("div", { class: "quiet number left" }, `${known}${part.not_finite > 0 ? ` · ${count(part.not_finite)} not finite` : ""}`));
  }
  const address = `/api/runs/${encodeURIComponent(run)}/picture?${new URLSearchParams({ task, digest: part.digest })}`;
  const isPicture = part.media === "image/png" || part.media === "image/jpeg";
  return h("li", { class: "part-item", "data-path": part.path }, h("strong", {}, label), ` ${part.name}, ${bytes(part.bytes)}`,
    isPicture ? h("div", {}, h("img", { src: address, alt: `The picture ${part.name}`, class: "picture" })) : null,
    part.media === "text/plain" ? h("pre", { class: "json", tabindex: "0" }, part.text) : null);
}

export function partsView(run, task, parts, result) {
  const table = result === null ? null : tableOf(result);
  if (table === null && parts.length === 0) return null;
  return h("section", { "aria-labelledby": "parts-title" }, h("h2", { id: "parts-title" }, "In the result"), table,
    parts.length > 0 ? h("ul", { class: "parts", id: "parts" }, parts.map((part) => partElement(run, task, part))) : null);
}
