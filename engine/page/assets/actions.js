// What changes a run: each asks first, and needs a process that writes the state. Without one the
// page shows what to type.
import { post, runPath } from "./api.js";
import { announce, h, show } from "./dom.js";
import { asText, runLink, shellWord } from "./format.js";

/** A button that opens a dialog. `ask` has the dialog's title, text, the button's words, further
 *  fields, and `act`, which does it. */
function confirmationButton(id, ask) {
  const note = h("span", { class: "bad", role: "alert" });
  const dialog = h("dialog", { "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, ask.title), h("p", {}, ask.text),
    h("form", { method: "dialog", class: "tools" }, ask.fields,
      h("button", { type: "button", onclick: () => dialog.close("no") }, ask.no),
      h("button", { value: "yes", class: ask.isDanger ? "danger" : "main", id: `${id}-confirm` }, ask.yes)));
  dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "yes") return;
    note.textContent = "";
    try {
      const done = await ask.act();
      announce(ask.done);
      if (ask.then) ask.then(done);
    } catch (error) {
      note.textContent = error.message;
    }
  });
  const button = h("button", { type: "button", id, onclick: () => {
    dialog.returnValue = "";
    dialog.showModal();
  } }, ask.button);
  return [button, dialog, note];
}

/** Shows `make()` while a process writes the state, else the command; nothing if `command` is "", or
 *  in a report, which has no state. */
function actionSlot(session, make) {
  const element = h("span", { class: "actions" });
  let shown = "";
  return {
    element,
    update(what, wanted) {
      const command = session().state === "" ? "" : wanted;
      const next = command === "" ? "" : `${session().writer ? "button" : "command"} ${what}`;
      if (shown === next || element.querySelector("dialog[open]")) return;
      shown = next;
      if (command === "") show(element);
      else if (session().writer) show(element, make(what));
      else show(element, h("span", { class: "quiet" }, "No process writes this state. The command is ", h("code", {}, command)));
    },
  };
}

const command = (session, ...words) => `flow ${words.map(shellWord).join(" ")} --state ${shellWord(session().state)}`;

export function cancelAction(run, session) {
  const inner = actionSlot(session, () => confirmationButton("cancel", {
    button: "Cancel …", title: "Cancel this run?", no: "Keep it", yes: "Cancel the run", isDanger: true, done: "The run is cancelled.",
    text: "Its running tasks are stopped, and it cannot be resumed. Results that are committed stay in the cache.",
    act: () => post(runPath(run, "cancel")),
  }));
  const canEnd = (status) => !["succeeded", "failed", "cancelled"].includes(status);
  return { element: inner.element, update: (status) => inner.update("", canEnd(status) ? command(session, "cancel", run) : "") };
}

/** Only a process that writes the state has something to stop. */
export function stopAction(run, session) {
  const inner = actionSlot(session, () => confirmationButton("stop", {
    button: "Stop …", title: "Stop this run?", no: "Let it run", yes: "Stop the run", done: "The run is stopped.",
    text: "It ends as with Ctrl-C: services answer what they have accepted, running tasks may finish within the run's grace period. It can be resumed.",
    act: () => post(runPath(run, "stop")),
  }));
  const canStop = (status) => session().writer && ["running", "serving", "waiting", "pending"].includes(status);
  return { element: inner.element, update: (status) => inner.update("", canStop(status) ? command(session, "stop", run) : "") };
}

/** `task`: "" for the whole run. */
export function retryAction(run, task, session) {
  const what = task === "" ? "this run" : `“${task}”`;
  const inner = actionSlot(session, () => confirmationButton("retry", {
    button: task === "" ? "Retry …" : "Run again …", title: `Run ${what} again?`, no: "Not now", yes: task === "" ? "Retry the run" : "Run it again", done: "It runs again.",
    text: task === "" ? "Failed tasks get new attempts with the code that the run was started with. What succeeded is kept." : "The task gets a new attempt, also if it succeeded, and the tasks that need its result follow.",
    act: () => post(runPath(run, "retry"), { task }),
  }));
  return { element: inner.element, update: (canRetry) => inner.update("", canRetry ? command(session, "retry", run, ...(task === "" ? [] : [task])) : "") };
}

/** `name`: what is served. Afterwards the page shows the run that serves it then. */
export function rollbackAction(name, session, id = "rollback") {
  const inner = actionSlot(session, () => confirmationButton(id, {
    button: "Roll back …", title: `Roll “${name}” back?`, no: "Keep this version", yes: "Roll back", isDanger: true, done: "The previous version takes over.",
    text: `The previous version of this name gets all traffic at once. It runs as a new run, started by ${session().who}.`,
    act: () => post(runPath(name, "rollback")), then: ({ run }) => (location.hash = runLink(run)),
  }));
  return { element: inner.element, update: (canRollBack) => inner.update("", canRollBack ? command(session, "rollback", name) : "") };
}

/** The signal that the task waits for, or "". A name with bytes that are not text cannot be sent
 *  from here. */
export function awaitedSignal(task) {
  const before = "the signal `";
  const text = task.status === "waiting" ? asText(task.waits_for) : "";
  const begin = text.indexOf(before) + before.length;
  if (begin < before.length || text.includes("\uFFFD")) return "";
  // A name may contain backticks. The command at the end of the text repeats it.
  for (let end = text.indexOf("`", begin); end >= 0; end = text.indexOf("`", end + 1)) {
    const name = text.slice(begin, end);
    if (name !== "" && text.endsWith(` ${shellWord(name)}\` sends it`)) return name;
  }
  return "";
}

export function signalAction(run, session) {
  const inner = actionSlot(session, (name) => {
    const value = h("input", { id: "signal-value", type: "text", value: "true", required: true, autocomplete: "off", spellcheck: "false" });
    return confirmationButton("signal", {
      button: `Answer “${name}” …`, title: `Send the signal “${name}”?`, no: "Not now", yes: "Send", done: "The signal is sent.",
      text: "The task that waits for it continues with this value. A signal cannot be taken back.",
      fields: h("span", { class: "field" }, h("label", { for: "signal-value" }, "Value as JSON"), value),
      act: () => post(runPath(run, "signal"), { name }, value.value),
    });
  });
  return { element: inner.element, update: (name) => inner.update(name, name === "" ? "" : `flow signal ${shellWord(run)} ${shellWord(name)} JSON --state ${shellWord(session().state)}`) };
}
