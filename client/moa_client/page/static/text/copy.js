// Copies text, and says so on the button.

import { setIcon } from "../core/dom.js";

const SAID_MS = 1500;

/**
 * @param {string} text
 * @param {HTMLElement} button
 */
export async function copyText(text, button) {
  const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => copyBySelection(text));
  const icon = button.querySelector("use")?.getAttribute("href")?.slice("#i-".length);
  const [words, label] = [button.textContent, button.getAttribute("aria-label")];
  if (button.dataset.said) return;
  button.dataset.said = "yes";
  const said = isCopied ? "Copied" : "Not copied";
  if (icon) setIcon(button, isCopied ? "done" : "close");
  else button.textContent = said;
  button.setAttribute("aria-label", said);
  setTimeout(() => {
    delete button.dataset.said;
    if (icon) setIcon(button, icon);
    else button.textContent = words;
    if (label) button.setAttribute("aria-label", label);
  }, SAID_MS);
}

/**
 * For a page that was opened by a name that is not this device's: browsers have no clipboard there.
 * @param {string} text
 */
function copyBySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}
