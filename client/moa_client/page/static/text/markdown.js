// Shows Markdown that grows: only blocks that have changed are built again, so that a selection elsewhere stays.

import MarkdownIt from "../vendor/markdown-it.js";
import { elementOf } from "./elements.js";
import { Section } from "./sections.js";

const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });

/** @typedef {{key: string, element: HTMLElement, after: "" | "corrected" | "provisional"}} Block */

export class MarkdownText {
  /** @param {HTMLElement} container */
  constructor(container) {
    this.container = container;
    /** @type {Block[]} */
    this.blocks = [];
    this.source = "";
    this.isFinal = false;
  }

  /**
   * @param {string} source with the marks of `sections.js`
   * @param {boolean} isFinal build everything: a block may have changed the meaning of one before it
   */
  show(source, isFinal = false) {
    if (source === this.source && (this.isFinal || !isFinal)) return;
    this.source = source;
    this.isFinal = isFinal;
    const lines = source.split("\n");
    const tokens = parser.parse(source, {});
    const section = new Section();
    const firstLevel = Number(tokens.find((/** @type {any} */ token) => token.type === "heading_open")?.tag.slice(1) ?? 1);
    const groups = topLevel(tokens);
    groups.forEach((group, index) => {
      const [from, to] = group[0].map ?? [0, lines.length];
      const key = `${section.name} ${firstLevel} ${group[0].type} ${lines.slice(from, to).join("\n")}`;
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
   * @param {"" | "corrected" | "provisional"} after
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
