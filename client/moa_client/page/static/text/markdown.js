// Shows Markdown that grows: only blocks that have changed are built again, so that a selection elsewhere stays.

import MarkdownIt from "../vendor/markdown-it.js";
import { elementOf } from "./elements.js";
import { Paint } from "./paint.js";
import { MARKS, Section } from "./sections.js";

const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });

/** @typedef {{key: string, element: HTMLElement, after: import("./sections.js").SectionName}} Block */

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
   * @param {string} source with the marks of `sections.js`
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
   * @param {import("./sections.js").SectionName} after
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
