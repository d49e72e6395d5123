// The colours: those of the system, light, or dark.

import { byId, setIcon } from "./dom.js";
import { remember, remembered } from "./memory.js";

const SCHEMES = ["auto", "light", "dark"];
const WORDS = { auto: "as the system has them", light: "light", dark: "dark" };

/** @param {() => void} onChange */
export function setUpScheme(onChange) {
  const button = byId("scheme");
  const show = () => {
    const scheme = remembered("scheme") || "auto";
    if (scheme === "auto") delete document.documentElement.dataset.scheme;
    else document.documentElement.dataset.scheme = scheme;
    setIcon(button, scheme);
    button.title = `Colours: ${WORDS[/** @type {keyof WORDS} */ (scheme)]}`;
    button.setAttribute("aria-label", button.title);
    onChange();
  };
  button.addEventListener("click", () => {
    const next = SCHEMES[(SCHEMES.indexOf(remembered("scheme") || "auto") + 1) % SCHEMES.length];
    remember("scheme", next === "auto" ? "" : next);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  matchMedia("(forced-colors: active)").addEventListener("change", onChange);
  show();
}
