// A view that asks for what it shows again and again, because no event says when it has changed.
import { throttled } from "./dom.js";

const PAUSE_MS = 2000;

/** `load()` shows what there is now. */
export function polled(load) {
  let timer = null;
  let isOver = false;
  const refresh = throttled(load, 500);
  const tick = () => {
    if (isOver) return;
    if (!document.hidden) refresh();
    timer = setTimeout(tick, PAUSE_MS);
  };
  timer = setTimeout(tick, PAUSE_MS);
  return { ready: load(), reload: refresh, runs: refresh, end: () => {
    isOver = true;
    clearTimeout(timer);
  } };
}
