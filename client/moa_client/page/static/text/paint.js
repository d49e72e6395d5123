import { before } from "./reasoning.js";

// Where in an answer's source corrections begin and end, and provisional text begins: marks that survive the parser.


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
   * @param {Stretch | null} stretch
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

// Which colour each stretch of an answer's committed text has: by who wrote it, or by how likely it was.


/** @typedef {"" | "writer" | "chance"} PaintMode */
/** @typedef {{length: number, writer: string, chance: number | null}} Run of committed text; in UTF-16 units */
/** @typedef {{end: number, kind: string, title: string}} Stretch up to a place of the committed text */

/** @type {Record<string, string>} */
export const WRITERS = {
  S: "the server’s draft",
  D: "this device’s draft",
  T: "a plain step of the server",
  A: "this device, not checked",
};
const LEAST = [0.9, 0.5, 0.1, 0]; // of the kinds p0 to p3

/**
 * @param {PaintMode} mode
 * @param {Run} run
 * @returns {{kind: string, title: string}} empty: it has no colour
 */
function look(mode, { writer, chance }) {
  const who = WRITERS[writer] ?? "";
  if (mode === "writer") return { kind: who && writer, title: who };
  if (chance === null) return { kind: "", title: "" };
  const kind = `p${LEAST.findIndex((least) => chance >= least)}`;
  return { kind, title: `p = ${chance.toFixed(chance < 0.01 ? 3 : 2)}${who && `, ${who}`}` };
}

/**
 * The runs of a part of the answer.
 * @param {Run[]} runs
 * @param {import("./reasoning.js").Part} part
 * @returns {Run[]}
 */
export function runsOf(runs, part) {
  if (!part.places) return runs;
  let [start, from] = [0, 0];
  return runs.map((run) => {
    start += run.length;
    const to = before(part, start);
    const length = to - from;
    from = to;
    return { ...run, length };
  });
}

/**
 * @param {PaintMode} mode
 * @param {Run[]} runs
 * @returns {Stretch[]} none: nothing is painted
 */
export function stretchesOf(mode, runs) {
  /** @type {Stretch[]} */
  const stretches = [];
  if (!mode) return stretches;
  let end = 0;
  for (const run of runs) {
    const { kind, title } = look(mode, run);
    const last = stretches[stretches.length - 1];
    end += run.length;
    if (last && last.kind === kind && last.title === title && mode === "writer") last.end = end;
    else stretches.push({ end, kind, title });
  }
  return stretches;
}

/** Follows the source while its rendered text is built, in the same order but without the syntax. */
export class Paint {
  /**
   * @param {string} source
   * @param {Stretch[]} stretches
   * @param {RegExp} marks characters of the source that are not of the answer's text
   */
  constructor(source, stretches, marks) {
    this.source = source;
    this.stretches = stretches;
    this.places = [...source.matchAll(new RegExp(marks, "g"))].map((match) => match.index ?? 0);
    this.at = 0; // in the source
    this.end = 0;
    this.index = 0; // of the stretch that was looked at
  }

  /**
   * @param {number} place in the source
   * @returns {number} the same place in the answer's text
   */
  offset(place) {
    return place - this.places.filter((mark) => mark < place).length;
  }

  /**
   * Begins a block.
   * @param {number} from in the source
   * @param {number} to
   */
  begin(from, to) {
    this.at = from;
    this.end = to;
    this.index = 0;
  }

  /** Names the colours of the block. */
  get key() {
    const [from, to] = [this.offset(this.at), this.offset(this.end)];
    const inside = this.stretches.filter(({ end }, index) => end > from && (this.stretches[index - 1]?.end ?? 0) < to);
    return inside.map(({ end, kind, title }) => `${end - from}${kind}${title}`).join();
  }

  /**
   * Passes source that is not shown.
   * @param {string} text
   */
  pass(text) {
    const place = text ? this.source.indexOf(text, this.at) : -1;
    if (place >= 0 && place < this.end) this.at = place + text.length;
  }

  /**
   * The colour of the next character that is shown.
   * @param {string} character
   * @returns {Stretch | null}
   */
  next(character) {
    const entity = this.source[this.at] === "&" && character !== "&" ? /^&#?\w+;/.exec(this.source.slice(this.at, this.at + 40)) : null;
    const place = entity ? this.at : this.source.indexOf(character, this.at);
    if (place >= 0 && place < this.end) this.at = place + (entity?.[0].length ?? 1);
    const offset = this.offset(place >= 0 ? place : this.at);
    while (this.stretches[this.index]?.end <= offset) this.index += 1;
    return this.stretches[this.index] ?? null;
  }

  /**
   * Cuts a text where its colour changes.
   * @param {string} text that is shown next
   * @returns {{text: string, stretch: Stretch | null}[]}
   */
  cut(text) {
    /** @type {{text: string, stretch: Stretch | null}[]} */
    const parts = [];
    for (const character of text) {
      const stretch = this.next(character);
      const last = parts[parts.length - 1];
      if (last && last.stretch === stretch) last.text += character;
      else parts.push({ text: character, stretch });
    }
    return parts;
  }
}
