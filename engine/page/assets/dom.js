// Makes elements. Text from the state only ever becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** h("p", { class: "quiet" }, "text", otherElement) */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Shows only these children in the element. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Whether the value differs from that of the last call. A view that draws the same again would lose
 *  the text that is selected. */
export function changes() {
  let last = "";
  return (value) => {
    const text = JSON.stringify(value);
    const isNew = text !== last;
    last = text;
    return isNew;
  };
}

/** Announces `text` to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

let views = 0;
/** Invalidates the functions that shownView() returned. */
export const beginView = () => views++;
/** Returns a function that says whether the present view is still the one that is shown. */
export function shownView() {
  const mine = views;
  return () => mine === views;
}

/** Calls `run` at most once in the time, and once more after the last call. A failure is an event of
 *  the document, `refresh-failed`. Nothing happens once another view is shown. */
export function throttled(run, milliseconds) {
  let timer = null;
  let again = false;
  const isShown = shownView();
  const act = async () => {
    again = false;
    try {
      await run();
    } catch (error) {
      if (isShown()) document.dispatchEvent(new CustomEvent("refresh-failed", { detail: error }));
    } finally {
      timer = setTimeout(() => {
        timer = null;
        if (again && isShown()) start();
      }, typeof milliseconds === "function" ? milliseconds() : milliseconds);
    }
  };
  const start = () => {
    timer = 0;
    act();
  };
  return () => {
    if (timer === null) start();
    else again = true;
  };
}
