// Where in an answer's source correction and provisional text begin, as two marks that survive the Markdown parser.

/** @typedef {import("./paint.js").Paint} Paint */

export const CORRECTED = "\uE0F0"; // private characters: text that has them loses them
export const PROVISIONAL = "\uE0F1";
export const MARKS = /[\uE0F0\uE0F1]/;
const ALL_MARKS = /[\uE0F0\uE0F1]/g;
// Syntax that a mark in its middle would break: it is put after it.
const SYNTAX = /^(?:[ \t]*(?:[-*+]|\d{1,9}[.)]|#{1,6}|>)(?=\s)|[\s*_~`|\\:#>\[\]()!-])*/;

/**
 * @param {string} text
 * @param {number} place a mark is wanted there
 * @returns {number} where it breaks nothing
 */
function afterSyntax(text, place) {
  return place + (SYNTAX.exec(text.slice(place))?.[0].length ?? 0);
}

/**
 * @param {string} committed
 * @param {string} provisional
 * @param {number | null} corrected where in the committed text a correction begins; null: there is none to be shown
 * @returns {string} the Markdown source of it all, with marks
 */
export function sourceOf(committed, provisional, corrected) {
  const text = (committed + provisional).replace(ALL_MARKS, "\uFFFD");
  let [before, after] = [text, ""];
  if (provisional) {
    const place = afterSyntax(text, committed.length);
    [before, after] = [text.slice(0, place), PROVISIONAL + text.slice(place)];
  }
  if (corrected !== null) {
    const place = Math.min(afterSyntax(before, corrected), before.length);
    before = before.slice(0, place) + CORRECTED + before.slice(place);
  }
  return before + after;
}

/** Which section text is in that is rendered now. */
export class Section {
  /**
   * @param {"" | "corrected" | "provisional"} name
   * @param {Paint | null} paint null: text has no colours
   */
  constructor(name = "", paint = null) {
    this.name = name;
    this.paint = paint;
  }

  /**
   * The section after a stretch of source.
   * @param {string} source
   */
  pass(source) {
    this.paint?.pass(source);
    this.mark(source);
  }

  /** @param {string} source */
  mark(source) {
    if (source.includes(CORRECTED)) this.name = "corrected";
    if (source.includes(PROVISIONAL)) this.name = "provisional";
  }

  /**
   * Appends text to an element, each part in a span of its section.
   * @param {Node} parent
   * @param {string} text
   */
  append(parent, text) {
    for (const part of text.split(/(?=[\uE0F0\uE0F1])/)) {
      this.mark(part);
      const shown = part.replace(ALL_MARKS, "");
      if (!shown) continue;
      for (const piece of this.paint?.cut(shown) ?? [{ text: shown, stretch: null }]) this.put(parent, piece.text, piece.stretch);
    }
  }

  /**
   * @param {Node} parent
   * @param {string} text of one colour
   * @param {import("./paint.js").Stretch | null} stretch
   */
  put(parent, text, stretch) {
    if (!this.name && !stretch?.kind) {
      parent.appendChild(document.createTextNode(text));
      return;
    }
    const span = document.createElement("span");
    if (this.name) span.className = this.name;
    if (stretch?.kind) {
      span.dataset.paint = stretch.kind;
      span.title = stretch.title;
    }
    span.textContent = text;
    parent.appendChild(span);
  }
}
