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

// What the page remembers: options for all tabs, questions being typed and the key for this one. Without storage: nothing.

/**
 * @param {Storage | undefined} storage
 * @param {string} name
 * @returns {string}
 */
function read(storage, name) {
  try {
    return storage?.getItem(`moa.${name}`) ?? "";
  } catch {
    return "";
  }
}

/**
 * @param {Storage | undefined} storage
 * @param {string} name
 * @param {string} value empty: forget it
 */
function write(storage, name, value) {
  try {
    if (value) storage?.setItem(`moa.${name}`, value);
    else storage?.removeItem(`moa.${name}`);
  } catch {
    // It is full or not allowed: the page works without.
  }
}

const local = () => globalThis.localStorage;
const session = () => globalThis.sessionStorage;

export const remembered = (/** @type {string} */ name) => read(local(), name);
export const remember = (/** @type {string} */ name, /** @type {string} */ value) => write(local(), name, value);
export const typed = (/** @type {string} */ id) => read(session(), `question.${id || "new"}`);
export const keepTyped = (/** @type {string} */ id, /** @type {string} */ text) =>
  write(session(), `question.${id || "new"}`, text);
/** @returns {import("../chat/composer.js").TextFile[]} */
export const keptFiles = (/** @type {string} */ id) => JSON.parse(read(session(), `files.${id || "new"}`) || "[]");
export const keepFiles = (/** @type {string} */ id, /** @type {import("../chat/composer.js").TextFile[]} */ files) =>
  write(session(), `files.${id || "new"}`, files.length ? JSON.stringify(files) : "");
export const readKey = () => read(session(), "key");
export const keepKey = (/** @type {string} */ key) => write(session(), "key", key);

/** Takes the key from the address (#key=...), where it would be seen and kept in the history of the browser. */
export function takeKeyFromAddress() {
  const found = /^#key=(.+)$/.exec(location.hash);
  if (!found) return;
  keepKey(decodeURIComponent(found[1]));
  history.replaceState(history.state, "", location.pathname + location.search);
}

// Reads answers aloud where a screen reader listens: whole sentences, a few seconds' worth at a time, never single tokens.


const EVERY_MS = 2500;
const MOST_KEPT = 20;
const SENTENCE = /^[\s\S]*(?:[.!?:…。！？]["')\]]*\s+|\n+)/;
const MARKUP = /[*_`#>|~]+|\[([^\]]*)\]\([^)]*\)/g;

export class Announcer {
  constructor() {
    this.region = byId("announcer");
    this.waiting = ""; // committed text that was not read yet
    this.timer = 0;
  }

  /** @param {string} text committed text, as it comes */
  add(text) {
    this.waiting += text;
    if (!this.timer) this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  /** @param {string} words the final state of an answer, after all its text */
  end(words) {
    this.say(this.waiting);
    this.waiting = "";
    clearTimeout(this.timer);
    this.timer = 0;
    this.say(words);
  }

  /** Forgets what was not read: another conversation is shown. */
  clear() {
    this.waiting = "";
    this.region.replaceChildren();
  }

  read() {
    this.timer = 0;
    const sentences = SENTENCE.exec(this.waiting)?.[0] ?? "";
    this.waiting = this.waiting.slice(sentences.length);
    this.say(sentences);
    if (this.waiting) this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  /** @param {string} text */
  say(text) {
    const words = text.replace(MARKUP, "$1").trim();
    if (!words) return;
    const paragraph = document.createElement("p");
    paragraph.textContent = words;
    this.region.append(paragraph);
    while (this.region.childElementCount > MOST_KEPT) this.region.firstElementChild?.remove();
  }
}

// The colours: those of the system, light, or dark.


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

// Keys of the whole page.


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
