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
/** @returns {import("../chat/files.js").TextFile[]} */
export const keptFiles = (/** @type {string} */ id) => JSON.parse(read(session(), `files.${id || "new"}`) || "[]");
export const keepFiles = (/** @type {string} */ id, /** @type {import("../chat/files.js").TextFile[]} */ files) =>
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
