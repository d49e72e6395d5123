// Where in an answer's source corrections begin and end, and provisional text begins: marks that survive the parser.

/** @typedef {import("./paint.js").Paint} Paint */

/** @typedef {"" | "corrected" | "provisional" | "provisional unsure"} SectionName */

const CORRECTED = "\uE0F0"; // private characters: text that has them loses them
const PROVISIONAL = "\uE0F1";
const FIRM = "\uE0F2";
const UNSURE = "\uE0F3";
export const MARKS = /[\uE0F0-\uE0F3]/;
const ALL_MARKS = /[\uE0F0-\uE0F3]/g;
/** @type {Record<string, SectionName>} */
const SECTIONS = { [CORRECTED]: "corrected", [PROVISIONAL]: "provisional", [FIRM]: "", [UNSURE]: "provisional unsure" };
// Syntax that a mark in its middle would break: it is put after it.
const WORD_ENDS = /^[\p{L}\p{N}]\s/u;
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
 * @param {number[][]} corrected where in the committed text corrections begin and end, in order
 * @param {number} likely characters of the provisional text that are likely to stay
 * @returns {string} the Markdown source of it all, with marks
 */
export function sourceOf(committed, provisional, corrected, likely) {
  const text = (committed + provisional).replace(ALL_MARKS, "\uFFFD");
  const marks = corrected.flatMap(([from, to]) => [{ place: from, mark: CORRECTED }, { place: to, mark: FIRM }]);
  if (provisional) marks.push({ place: committed.length, mark: PROVISIONAL });
  if (likely < provisional.length) marks.push({ place: committed.length + likely, mark: UNSURE });
  let source = text;
  let last = text.length;
  for (const { place, mark } of marks.reverse()) {
    const isAtEnd = mark === FIRM && WORD_ENDS.test(text.slice(place - 1));
    last = Math.min(last, isAtEnd ? place : afterSyntax(text, place));
    source = source.slice(0, last) + mark + source.slice(last);
  }
  return source;
}

/** Which section text is in that is rendered now. */
export class Section {
  /**
   * @param {SectionName} name
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
    for (const character of source.match(ALL_MARKS) ?? []) this.name = SECTIONS[character];
  }

  /**
   * Appends text to an element, each part in a span of its section.
   * @param {Node} parent
   * @param {string} text
   */
  append(parent, text) {
    for (const part of text.split(/(?=[\uE0F0-\uE0F3])/)) {
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
    const name = this.name === "corrected" && !text.trim() ? "" : this.name; // the end's mark may follow a space
    if (!name && !stretch?.kind) {
      parent.appendChild(document.createTextNode(text));
      return;
    }
    const span = document.createElement("span");
    if (name) span.className = name;
    if (stretch?.kind) {
      span.dataset.paint = stretch.kind;
      span.title = stretch.title;
    }
    span.textContent = text;
    parent.appendChild(span);
  }
}
