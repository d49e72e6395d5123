import MarkdownIt from "../vendor/markdown-it.js";
import { codeBlock } from "./code.js";
import { MARKS, Paint, Section } from "./paint.js";

// Builds elements from the tokens of the Markdown parser. No HTML of a model is ever parsed: its text is only text.


/** @typedef {any} Token of markdown-it */

const TAGS = new Set(
  "p h1 h2 h3 h4 h5 h6 blockquote ul ol li em strong s table thead tbody tr th td".split(" "),
);
const SAFE_LINK = /^(?:https?:|mailto:)/i;

/**
 * @param {Token[]} tokens of one block
 * @param {Section} section where it begins; where it ends, afterwards
 * @param {number} firstLevel of the first heading of the whole text
 * @returns {HTMLElement}
 */
export function elementOf(tokens, section, firstLevel) {
  const root = document.createElement("div");
  build(root, tokens, section, firstLevel);
  return root;
}

/**
 * @param {HTMLElement} root
 * @param {Token[]} tokens
 * @param {Section} section
 * @param {number} firstLevel
 */
function build(root, tokens, section, firstLevel) {
  const open = [root];
  for (const token of tokens) {
    const parent = open[open.length - 1];
    if (token.hidden) continue; // a paragraph of a tight list
    if (token.type === "inline") build(parent, token.children, section, firstLevel);
    else if (token.nesting === 1) open.push(opened(parent, token, firstLevel));
    else if (token.nesting === -1) open.pop();
    else leaf(parent, token, section);
  }
}

/**
 * @param {HTMLElement} parent
 * @param {Token} token
 * @param {number} firstLevel
 */
function opened(parent, token, firstLevel) {
  const element = token.type === "link_open" ? link(token.attrGet("href")) : document.createElement(tag(token, firstLevel));
  if (token.type === "heading_open") element.dataset.level = token.tag.slice(1);
  if (token.tag === "ol" && token.attrGet("start")) /** @type {any} */ (element).start = Number(token.attrGet("start"));
  if (token.tag === "th" || token.tag === "td") {
    const side = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
    if (side) element.dataset.align = side;
  }
  let outer = element;
  if (token.tag === "table") {
    outer = document.createElement("div"); // scrolls by itself: the page never does so sideways
    outer.className = "wide";
    outer.tabIndex = 0;
    outer.setAttribute("role", "region");
    outer.setAttribute("aria-label", "Table");
    outer.append(element);
  }
  parent.append(outer);
  return element;
}

/**
 * @param {Token} token
 * @param {number} firstLevel
 */
function tag(token, firstLevel) {
  if (token.type === "heading_open") return `h${Math.min(6, Math.max(3, 3 + Number(token.tag.slice(1)) - firstLevel))}`;
  return TAGS.has(token.tag) ? token.tag : "span";
}

/**
 * @param {HTMLElement} parent
 * @param {Token} token
 * @param {Section} section
 */
function leaf(parent, token, section) {
  if (token.type === "code_inline") {
    const code = document.createElement("code");
    code.dir = "auto";
    section.append(code, token.content);
    parent.append(code);
  } else if (token.type === "fence" || token.type === "code_block") {
    section.pass(token.info ?? "");
    parent.append(codeBlock(token.content, token.info ?? "", section));
  } else if (token.type === "hr") parent.append(document.createElement("hr"));
  else if (token.type === "hardbreak" || token.type === "softbreak") parent.append(document.createElement("br"));
  else if (token.type === "image") {
    const shown = link(token.attrGet("src")); // nothing is fetched from elsewhere: it is named
    shown.append("image: ");
    section.append(shown, token.content || token.attrGet("src"));
    parent.append(shown);
  } else section.append(parent, token.content);
}

/**
 * @param {string | null} address
 * @returns {HTMLElement}
 */
function link(address) {
  const target = (address ?? "").replace(/%EE%83%B[0-3]/gi, ""); // the marks, as the parser encodes them
  if (!SAFE_LINK.test(target) || MARKS.test(target)) return document.createElement("span");
  const element = document.createElement("a");
  element.href = target;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  return element;
}

// Shows Markdown that grows: only blocks that have changed are built again, so that a selection elsewhere stays.


const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });

/** @typedef {{key: string, element: HTMLElement, after: import("./paint.js").SectionName}} Block */

export class MarkdownText {
  /** @param {HTMLElement} container */
  constructor(container) {
    this.container = container;
    /** @type {Block[]} */
    this.blocks = [];
    this.source = "";
    this.painted = "";
    this.isFinal = false;
  }

  /**
   * @param {string} source with the marks of `paint.js`
   * @param {boolean} isFinal build everything: a block may have changed the meaning of one before it
   * @param {import("./paint.js").Stretch[]} stretches what is painted of the committed text
   */
  show(source, isFinal = false, stretches = []) {
    const painted = stretches.map(({ end, kind }) => `${end}${kind}`).join();
    if (source === this.source && painted === this.painted && (this.isFinal || !isFinal)) return;
    Object.assign(this, { source, painted, isFinal });
    const lines = source.split("\n");
    const starts = [0];
    for (const line of lines) starts.push(starts[starts.length - 1] + line.length + 1);
    const tokens = parser.parse(source, {});
    const paint = stretches.length ? new Paint(source, stretches, MARKS) : null;
    const section = new Section("", paint);
    const firstLevel = Number(tokens.find((/** @type {any} */ token) => token.type === "heading_open")?.tag.slice(1) ?? 1);
    const groups = topLevel(tokens);
    groups.forEach((group, index) => {
      const [from, to] = group[0].map ?? [0, lines.length];
      paint?.begin(starts[from], starts[to]);
      const key = `${section.name} ${firstLevel} ${group[0].type} ${paint?.key ?? ""} ${lines.slice(from, to).join("\n")}`;
      const old = this.blocks[index];
      if (old?.key === key && !isFinal) section.name = old.after;
      else this.put(index, key, elementOf(group, section, firstLevel), section.name);
    });
    for (const block of this.blocks.splice(groups.length)) block.element.remove();
  }

  /**
   * @param {number} index
   * @param {string} key
   * @param {HTMLElement} element
   * @param {import("./paint.js").SectionName} after
   */
  put(index, key, element, after) {
    const old = this.blocks[index];
    if (old) old.element.replaceWith(element);
    else this.container.append(element);
    this.blocks[index] = { key, element, after };
  }
}

/**
 * The tokens of each block that is in no other.
 * @param {any[]} tokens
 * @returns {any[][]}
 */
function topLevel(tokens) {
  /** @type {any[][]} */
  const groups = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting !== -1) groups.push([]);
    groups[groups.length - 1].push(token);
  }
  return groups;
}
