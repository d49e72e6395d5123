// The switch that has answers painted, by writer or by chance, and what each colour means.

import { byId } from "../core/dom.js";
import { remember, remembered } from "../core/memory.js";

/** @typedef {import("../text/paint.js").PaintMode} PaintMode */

/** @returns {PaintMode} */
export function paintMode() {
  const mode = remembered("paint");
  return mode === "writer" || mode === "chance" ? mode : "";
}

/** @returns {object} what a question asks for so that its answer can be painted */
export function wantedChances() {
  return paintMode() === "chance" ? { chances: { likeliest: 0 } } : {};
}

/** @param {() => void} onChange */
export function setUpColours(onChange) {
  const form = byId("colours");
  const show = () => {
    const mode = paintMode();
    form.elements.namedItem("paint").value = mode;
    for (const legend of form.querySelectorAll("[data-mode]")) legend.hidden = legend.dataset.mode !== mode;
  };
  form.addEventListener("change", () => {
    remember("paint", form.elements.namedItem("paint").value);
    show();
    onChange();
  });
  show();
}
