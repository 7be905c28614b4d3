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

/** Follows the state, and one run in detail; returns the function that ends it. `on` has functions
 *  for `reload`, `runs` and `run`, and `link` for whether `flow ui` can be reached. */
export function follow(run, on) {
  const source = new EventSource(address("/api/events", { run }));
  for (const kind of ["reload", "runs", "run"]) {
    source.addEventListener(kind, (event) => on[kind] && on[kind](JSON.parse(event.data)));
  }
  source.onopen = () => on.link(true);
  source.onerror = () => on.link(false);
  return () => source.close();
}
