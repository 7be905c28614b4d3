// What is served: the requests of each version, its replicas, and the step of a canary.
import { rollbackAction } from "./actions.js";
import { get } from "./api.js";
import { changes, h, show } from "./dom.js";
import { count, numberFact, plural, runLink, stateElement } from "./format.js";
import { polled } from "./live.js";

const known = (value, text) => (value === null || value === undefined ? "–" : text(value));
const ms = (value) => known(value, (each) => `${each} ms`);

const REPLICA_COLUMNS = ["Replica", "State", "Process", "Worker", "GPUs"];

function replicaRow(replica) {
  return h("tr", {}, h("td", {}, replica.name), h("td", {}, replica.status), h("td", { class: "number left" }, known(replica.pid, String)), h("td", {}, replica.worker || "–"), h("td", { class: "id" }, replica.gpus.join(", ") || "–"));
}

function rolloverText(run) {
  const rollover = run && run.rollover;
  if (!rollover) return null;
  return `${rollover.phase}, step ${rollover.step} of ${rollover.steps}, ${rollover.percent}% of the traffic${rollover.previous ? `, after ${rollover.previous}` : ""}${rollover.reason ? `: ${rollover.reason}` : ""}`;
}

/** The quantiles as bars on one scale: a picture of how wide the latencies are. */
function latency(service) {
  const quantiles = [["p50", service.p50_ms], ["p99", service.p99_ms]].filter(([, value]) => value !== null);
  const most = Math.max(...quantiles.map(([, value]) => value), 1e-9);
  return h("div", { class: "latency" }, quantiles.map(([name, value]) => {
    const bar = h("span", { class: "latency-bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, 100 * value / most)}%`;
    return h("div", { class: "latency-row" }, h("span", { class: "label" }, name), h("span", { class: "latency-track" }, bar), h("span", { class: `number ${name}` }, ms(value)));
  }));
}

const upTo = (limit) => (limit === null ? "longer" : limit < 1e3 ? `${limit} ms` : `${limit / 1e3} s`);

/** Requests by their duration, as at /metrics: columns from the first limit with requests to the
 *  last one. `latency` as in `flow services --json`; null if the front does not answer. */
function histogram(latency, title) {
  const buckets = (latency ?? []).map((each) => [each.up_to_ms, each.requests]);
  const all = buckets.reduce((sum, [, requests]) => sum + requests, 0);
  if (all === 0) return h("p", { class: "quiet histogram-note" }, buckets.length === 0 ? "The durations of its requests are not known." : "No request has been answered yet.");
  const isFull = ([, requests]) => requests > 0;
  const first = Math.max(0, buckets.findIndex(isFull) - 1);
  const last = buckets.length - [...buckets].reverse().findIndex(isFull);
  const shown = buckets.slice(first, last + 1);
  const most = Math.max(...shown.map(([, requests]) => requests));
  const text = shown.filter(isFull).map(([limit, requests]) => `${count(requests)} ${limit === null ? "longer" : `up to ${upTo(limit)}`}`).join(", ");
  return h("figure", { class: "histogram" },
    h("figcaption", {}, "Durations of ", h("span", { class: "number all" }, plural(all, "answered request")), ", each up to the limit below its column"),
    h("div", { class: "scroll", role: "region", "aria-label": `Durations of requests of ${title}`, tabindex: "0" },
      h("div", { class: "columns", role: "img", "aria-label": `${plural(all, "request")}: ${text}` }, shown.map(([limit, requests]) => {
        const bar = h("span", { class: "column-bar" });
        bar.style.height = `${requests === 0 ? 0 : Math.max(2, 80 * requests / most)}%`;
        return h("div", { class: "column", "data-limit": limit === null ? "" : limit, "data-requests": requests },
          h("span", { class: "column-space" }, h("span", { class: "column-count" }, requests > 0 ? count(requests) : ""), bar), h("span", { class: "column-limit" }, upTo(limit)));
      }))));
}

function serviceElement(service, run) {
  const title = `${service.service} of ${service.name || service.version}`;
  const rollover = rolloverText(run);
  return h("section", { class: "service-item", "data-service": service.service, "data-version": service.version, "aria-label": `Service ${title}` },
    h("h3", {}, service.service, " ", stateElement(service.status), " ", h("a", { href: runLink(service.version), class: "id" }, service.version)),
    service.not_resumed ? h("p", { class: "bad" }, service.not_resumed) : null,
    h("div", { class: "facts" },
      numberFact("Requests per second", "rate", known(service.requests_per_second, String)),
      numberFact("Requests", "requests", known(service.requests, count)),
      numberFact("Errors", "errors", known(service.errors, count)),
      numberFact("Refused", "refused", known(service.refused, count)),
      numberFact("Running and queued", "load", known(service.running, (running) => `${count(running)} and ${count(service.queued)}`)),
      numberFact("Queue", "queue", ms(service.queue_ms)),
      numberFact("Share of the traffic", "percent", known(service.percent, (percent) => `${percent}%`)),
      numberFact("Replicas", "replicas", service.scaling ? `${service.replicas.length}, wanted ${service.scaling.wanted} of ${service.scaling.min} to ${service.scaling.max}` : String(service.replicas.length)),
      service.url ? numberFact("URL", "id", service.url) : null),
    h("h4", {}, "Duration of requests: median and 99th percentile of the last 10 s"), latency(service), histogram(service.latency, title),
    rollover ? h("p", { class: "rollover" }, `Rollover: ${rollover}`) : null,
    h("div", { class: "scroll", role: "region", "aria-label": `Replicas of ${title}`, tabindex: "0" }, h("table", {}, h("caption", { class: "unseen" }, `Replicas of ${title}`),
      h("thead", {}, h("tr", {}, REPLICA_COLUMNS.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, service.replicas.map(replicaRow)))));
}

export function servicesView(main, route, session) {
  document.title = "Services – flow";
  const summary = h("p", { class: "quiet", id: "summary", role: "status" });
  const list = h("div", { id: "services" });
  show(main, h("h1", { tabindex: "-1" }, "Services"), summary, list);
  const rollbacks = new Map();  // by name; kept, so that an open dialog stays
  const isNew = changes();
  return polled(async () => {
    const { services, runs } = await get("/api/services");
    if (!isNew([services, runs, session().writer]) || list.querySelector("dialog[open]")) return;
    const names = [...new Set(services.map((service) => service.name || service.version))];
    summary.textContent = services.length === 0 ? "Nothing is served." : `${count(services.length)} ${services.length === 1 ? "service" : "services"}`;
    show(list, names.map((name) => {
      const isName = services.some((service) => service.name === name && service.status === "serving");
      if (!rollbacks.has(name)) rollbacks.set(name, rollbackAction(name, session, `rollback-${rollbacks.size}`));
      rollbacks.get(name).update(isName);
      return h("section", { "aria-label": `Name ${name}` }, h("div", { class: "heading" }, h("h2", {}, name), rollbacks.get(name).element),
        services.filter((service) => (service.name || service.version) === name).map((service) => serviceElement(service, runs.find((run) => run.run === service.version))));
    }));
  });
}
