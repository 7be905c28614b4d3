// A table of many rows: only those in view are elements.
import { h, show } from "./dom.js";

const ROW_HEIGHT = 34;  // pixels; as in page.css
const OVERSCAN_ROWS = 12;  // rows above and below the view

/** `columns`: [title, class]. `cells(item)` returns the children of a row's <td>s. */
export function virtualTable(label, columns, cells) {
  let items = [];
  const body = h("tbody");
  const table = h("table", { class: "virtual" },
    h("caption", { class: "unseen" }, label),
    h("thead", {}, h("tr", {}, columns.map(([title, style]) => h("th", { scope: "col", class: style }, title)))), body);
  const view = h("div", { class: "scroll list", role: "region", "aria-label": `List: ${label}`, tabindex: "0" }, table);

  const spacer = (rows) => {
    const cell = h("td", { colspan: columns.length, class: "spacer" });
    cell.style.height = `${rows * ROW_HEIGHT}px`;
    return h("tr", { "aria-hidden": "true" }, cell);
  };

  function render() {
    const height = view.clientHeight || 480;
    const first = Math.max(0, Math.floor(view.scrollTop / ROW_HEIGHT) - OVERSCAN_ROWS);
    const end = Math.min(items.length, Math.ceil((view.scrollTop + height) / ROW_HEIGHT) + OVERSCAN_ROWS);
    const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const rows = items.slice(first, end).map((item, i) => h("tr", { "aria-rowindex": first + i + 2 },
      cells(item).map((cell, column) => h("td", { class: columns[column][1] }, cell))));
    show(body, first > 0 ? spacer(first) : null, rows, end < items.length ? spacer(items.length - end) : null);
    if (focused) {
      const again = body.querySelector(`a[href="${CSS.escape(focused)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
  }

  let isWaiting = false;
  view.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      render();
    });
  }, { passive: true });

  return {
    element: view,
    set(next) {
      items = next;
      table.setAttribute("aria-rowcount", String(items.length + 1));
      render();
    },
  };
}
