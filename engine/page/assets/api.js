// Requests to `flow ui`, and the stream of what has changed.

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function read(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    body = null;
  }
  if (!response.ok) {
    const expired = response.status === 401 ? "This page's link has expired: open the one that `flow ui` printed." : null;
    throw new RequestError(response.status, expired || (body && body.error) || `status ${response.status}`);
  }
  return body;
}

const address = (path, fields) => {
  const query = new URLSearchParams(Object.entries(fields || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return query.size > 0 ? `${path}?${query}` : path;
};

export const get = async (path, fields, signal) => read(await fetch(address(path, fields), { signal, cache: "no-store" }));

export const runPath = (run, part) => `/api/runs/${encodeURIComponent(run)}${part ? `/${part}` : ""}`;

let session = null;
/** The state, the version, whether a process writes the state, and the token of actions. */
export async function getSession() {
  session = await get("/api/session");
  return session;
}

export async function post(path, fields, body) {
  if (session === null) await getSession();
  return read(await fetch(address(path, fields), { method: "POST", headers: { "X-Flow-Token": session.token }, body }));
}

const RETRY_MS = 2000;

/** Why there is no stream: a browser does not give the answer of an EventSource. Returns if there
 *  could be one. */
async function checkEvents(path) {
  const controller = new AbortController();
  const response = await fetch(path, { signal: controller.signal, cache: "no-store" });
  if (!response.ok) await read(response);
  controller.abort();
}

/** Follows the state, and one run in detail; returns the function that ends it. `on` has functions
 *  for `reload`, `runs` and `run`, and `link` for whether `flow ui` can be reached, and if not, why
 *  ("": unknown). A tab that is hidden has no stream: a browser has six connections to a server for
 *  all tabs. The first event of a stream is `reload`, so the tab is up to date when it is shown. */
export function follow(run, on) {
  const path = address("/api/events", { run });
  let source = null;
  let timer = null;
  let isEnded = false;
  const isWanted = () => !isEnded && !document.hidden;

  function close() {
    clearTimeout(timer);
    timer = null;
    if (source !== null) source.close();
    source = null;
  }

  function open() {
    close();
    if (!isWanted()) return;
    const mine = new EventSource(path);
    source = mine;
    for (const kind of ["reload", "runs", "run"]) {
      mine.addEventListener(kind, (event) => on[kind] && on[kind](JSON.parse(event.data)));
    }
    mine.onopen = () => on.link(true, "");
    mine.onerror = () => {
      if (source !== mine) return;
      on.link(false, "");
      if (mine.readyState === EventSource.CLOSED) retry();
    };
  }

  /** A browser tries again after a lost connection, and gives up after an answer such as 503. */
  function retry() {
    close();
    timer = setTimeout(async () => {
      try {
        await checkEvents(path);
        session = null;  // a `flow ui` that was started again has another token
        open();
      } catch (error) {
        if (!isWanted() || source !== null) return;
        on.link(false, error instanceof RequestError ? error.message : "");
        retry();
      }
    }, RETRY_MS);
  }

  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    isEnded = true;
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
