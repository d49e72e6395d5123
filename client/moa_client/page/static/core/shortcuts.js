// Keys of the whole page.

import { byId } from "./dom.js";

/**
 * @param {object} actions
 * @param {() => void} actions.search makes the search visible
 * @param {() => boolean} actions.close whether something was open
 * @param {() => boolean} actions.stop whether something was running
 */
export function setUpKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches("input:not([type=radio]):not([type=range]), textarea");
    const isSearch = (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !isTyping);
    if (isSearch) {
      event.preventDefault();
      actions.search();
      byId("search").focus();
      byId("search").select();
    } else if (event.key === "Escape") escape(target, actions);
  });
}

/**
 * @param {HTMLElement} target
 * @param {{close: () => boolean, stop: () => boolean}} actions
 */
function escape(target, actions) {
  if (target.id === "search") {
    const search = /** @type {HTMLInputElement} */ (target);
    search.value = "";
    search.dispatchEvent(new Event("input"));
    if (!actions.close()) byId("question").focus();
    return;
  }
  if (!actions.close()) actions.stop();
}
