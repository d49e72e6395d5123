import { setIcon } from "../core/page.js";
import { Section } from "./paint.js";

// Copies text, and says so on the button.


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

// Colours the code of an answer by the tokens of its language. Text that nobody has checked keeps its own look.

/** @typedef {{begin: number, end: number, kind: string}} CodeToken in characters of the code */

const MOST_CHARACTERS = 20_000; // more would be felt while it comes
/** @type {Record<string, string>} */
const KINDS = {
  keyword: "keyword", literal: "keyword", name: "keyword", "selector-tag": "keyword",
  string: "string", regexp: "string", char: "string", link: "string", symbol: "string", addition: "string",
  number: "number", bullet: "number",
  comment: "comment", quote: "comment", doctag: "comment",
  title: "title", section: "title", type: "title", built_in: "title", class: "title",
  attr: "attribute", attribute: "attribute", property: "attribute", variable: "attribute", meta: "attribute",
  "template-variable": "attribute", "selector-class": "attribute", "selector-id": "attribute",
  deletion: "deletion",
};

/** @type {any} the highlighter, once an answer has had code */
let highlighter = null;

/**
 * @param {HTMLElement} code
 * @param {string} language as the answer names it
 */
export async function colourCode(code, language) {
  if (!language) return;
  highlighter ??= (await import("../vendor/highlight.js")).default;
  const text = code.textContent ?? "";
  if (text.length > MOST_CHARACTERS || !highlighter.getLanguage(language)) return;
  const tree = highlighter.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode;
  /** @type {CodeToken[]} */
  const tokens = [];
  collect(tree, 0, "", tokens);
  put(code, tokens);
}

/**
 * @param {any} node a text, or a part of the code with parts of its own
 * @param {number} at where it begins
 * @param {string} kind of what it is in
 * @param {CodeToken[]} tokens takes those of it, in order
 * @returns {number} where it ends
 */
function collect(node, at, kind, tokens) {
  if (typeof node === "string") {
    if (kind) tokens.push({ begin: at, end: at + node.length, kind });
    return at + node.length;
  }
  const [scope] = (node.scope ?? "").split(".");
  const inner = scope === "subst" ? "" : KINDS[scope] ?? kind;
  return node.children.reduce((/** @type {number} */ end, /** @type {any} */ child) => collect(child, end, inner, tokens), at);
}

/**
 * @param {HTMLElement} code
 * @param {CodeToken[]} tokens in order
 */
function put(code, tokens) {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) texts.push(/** @type {Text} */ (walker.currentNode));
  let [at, next] = [0, 0];
  for (const text of texts) {
    const end = at + text.data.length;
    while (tokens[next]?.end <= at) next += 1;
    if (!text.parentElement?.closest(".provisional")) text.replaceWith(...pieces(text.data, at, tokens, next));
    at = end;
  }
}

/**
 * @param {string} text
 * @param {number} at where it begins in the code
 * @param {CodeToken[]} tokens
 * @param {number} first of those that may be in it
 * @returns {Node[]}
 */
function pieces(text, at, tokens, first) {
  /** @type {Node[]} */
  const nodes = [];
  let done = 0;
  for (let index = first; index < tokens.length && tokens[index].begin < at + text.length; index += 1) {
    const begin = Math.max(tokens[index].begin - at, 0);
    const end = Math.min(tokens[index].end - at, text.length);
    if (begin > done) nodes.push(document.createTextNode(text.slice(done, begin)));
    const span = document.createElement("span");
    span.dataset.code = tokens[index].kind;
    span.textContent = text.slice(begin, end);
    nodes.push(span);
    done = end;
  }
  if (done < text.length) nodes.push(document.createTextNode(text.slice(done)));
  return nodes;
}

// A block of code with its language and a button that copies it.


/**
 * @param {string} content with marks
 * @param {string} info what stands after the fence
 * @param {Section} section
 * @returns {HTMLElement}
 */
export function codeBlock(content, info, section) {
  const language = /[\w+#.-]+/.exec(info)?.[0] ?? "";
  const block = document.createElement("div");
  block.className = "code";
  block.dir = "ltr";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || "code";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button small";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the code");
  head.append(name, button);
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // it scrolls
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const code = document.createElement("code");
  section.append(code, content.replace(/\n$/, ""));
  colourCode(code, language);
  pre.append(code);
  block.append(head, pre);
  button.addEventListener("click", () => copyText(code.textContent ?? "", button));
  return block;
}
