// Divides an answer into its reasoning and its text, as both come: by the rules of tools/answer_reader.py. It shows nothing.

/** @typedef {{openings: string[], closings: string[], repeated: boolean, others: string[], opened: string[]}} Marks of a model */
/** @typedef {{text: string, places: number[] | null}} Part places: of its characters in the answer; null: the same */

const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/; // as Python has it

/**
 * @param {Part} part
 * @param {number} place in the answer
 * @returns {number} how many characters of the part are before it
 */
export function before({ text, places }, place) {
  if (!places) return Math.min(place, text.length);
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Reads marks out of a text. What comes out depends on the text alone, not on its pieces. */
class Reader {
  /**
   * @param {Marks} marks
   * @param {boolean} isOpen the answer begins with reasoning, which the prompt has opened
   */
  constructor(marks, isOpen) {
    this.marks = marks;
    this.isThinking = isOpen;
    this.dropsSpace = isOpen; // what comes next follows a mark
    this.hasAnswer = false;
    this.held = ""; // may begin a mark
    /** @type {[string, number][]} with their places, held until something follows them */
    this.spaces = [];
    this.at = 0; // where `held` begins in the answer
    this.reasoning = { text: "", places: /** @type {number[]} */ ([]) };
    this.text = { text: "", places: /** @type {number[]} */ ([]) };
  }

  /** The same with nothing read out yet. */
  ahead() {
    const other = Object.assign(new Reader(this.marks, false), this);
    other.spaces = [...this.spaces];
    other.reasoning = { text: "", places: [] };
    other.text = { text: "", places: [] };
    return other;
  }

  get expected() {
    const { openings, closings, repeated, others } = this.marks;
    if (this.isThinking) return closings;
    return repeated || !this.hasAnswer ? [...openings, ...others] : others;
  }

  /** @param {string} text */
  push(text) {
    for (let index = 0; index < text.length; index += 1) {
      this.held += text[index];
      while (this.held && this.take());
    }
  }

  /** @returns {boolean} whether something has become certain */
  take() {
    const { held, expected } = this;
    const isMark = expected.includes(held);
    if (!isMark && expected.some((mark) => mark.startsWith(held))) return false;
    if (isMark) {
      const isOther = !this.isThinking && this.marks.others.includes(held);
      this.spaces = [];
      this.dropsSpace = true;
      if (!isOther) {
        this.isThinking = !this.isThinking;
        this.hasAnswer ||= !this.isThinking;
      }
    } else this.write(held[0]);
    const length = isMark ? held.length : 1;
    this.held = held.slice(length);
    this.at += length;
    return true;
  }

  /** @param {string} character at the place `at` */
  write(character) {
    this.spaces.push([character, this.at]);
    if (SPACE.test(character)) return;
    this.put(this.dropsSpace ? this.spaces.slice(-1) : this.spaces);
    this.spaces = [];
    this.dropsSpace = false;
    this.hasAnswer ||= !this.isThinking;
  }

  /** The text ends here. */
  finish() {
    for (; this.held; this.held = this.held.slice(1), this.at += 1) this.write(this.held[0]);
    if (!this.isThinking && !this.dropsSpace) this.put(this.spaces);
    this.spaces = [];
  }

  /** @param {[string, number][]} characters */
  put(characters) {
    const part = this.isThinking ? this.reasoning : this.text;
    for (const [character, place] of characters) {
      part.text += character;
      part.places.push(place);
    }
  }
}

export class AnswerSplit {
  /**
   * @param {Marks | null} marks null: the model marks no reasoning
   * @param {string} effort that was asked of the answer; empty: none
   */
  constructor(marks, effort) {
    this.reader = marks && new Reader(marks, marks.opened.includes(effort));
    this.committed = "";
    this.tokens = 0; // of the reasoning, with those that mark it, and those that were read together with its end
  }

  /**
   * @param {string} piece of committed text
   * @param {number} tokens
   */
  read(piece, tokens) {
    this.committed += piece;
    if (!this.reader) return;
    const wasThinking = this.reader.isThinking;
    const length = this.reader.reasoning.text.length;
    this.reader.push(piece);
    const { isThinking, reasoning } = this.reader;
    if (wasThinking || isThinking || reasoning.text.length > length) this.tokens += tokens;
  }

  /** The committed text that is no reasoning. */
  get text() {
    return this.reader ? this.reader.text.text : this.committed;
  }

  /**
   * @param {string} provisional text after the committed text
   * @param {boolean} isWhole nothing is expected after it
   * @returns {{reasoning: Part, text: Part, isThinking: boolean}}
   */
  shown(provisional, isWhole) {
    const { reader } = this;
    if (!reader) return { reasoning: { text: "", places: null }, text: { text: this.committed + provisional, places: null }, isThinking: false };
    const ahead = reader.ahead();
    ahead.push(provisional);
    if (isWhole || provisional) ahead.finish();
    return { reasoning: joined(reader.reasoning, ahead.reasoning), text: joined(reader.text, ahead.text), isThinking: ahead.isThinking };
  }
}

/**
 * @param {{text: string, places: number[]}} first
 * @param {{text: string, places: number[]}} second
 * @returns {Part}
 */
function joined(first, second) {
  return { text: first.text + second.text, places: [...first.places, ...second.places] };
}
