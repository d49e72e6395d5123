// Finds and makes elements.

/**
 * The element with this id, which the page has.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`The page has no element ${id}.`);
  return element;
}

/**
 * A copy of a template's one element.
 * @param {string} id of the template
 * @returns {any}
 */
export function fromTemplate(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

/**
 * Shows a text, and touches the element only if it differs: what is selected stays selected, and nothing is read twice.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Shows another icon of the page's own.
 * @param {Element} holder has an `svg use` in it
 * @param {string} name without "i-"
 */
export function setIcon(holder, name) {
  holder.querySelector("use")?.setAttribute("href", `#i-${name}`);
}
