// One answer: committed text, which only grows, then provisional text, which may be withdrawn.

const CUT = ["max_tokens", "cancelled", "unfinished"];
const MARKED_MS = 1500; // long enough to be seen, short enough not to be in the way

/**
 * @param {string} a
 * @param {string} b
 */
function common(a, b) {
  let same = 0;
  while (same < a.length && a[same] === b[same]) same += 1;
  return same;
}

export class Answer {
  /**
   * @param {number} number in its conversation, from 1
   * @param {string} question
   */
  constructor(number, question) {
    this.number = number;
    this.question = question;
    this.committed = "";
    this.provisional = "";
    this.finish = "unfinished";
    this.isRunning = true;
    this.isUnsettled = false; // it ended without the server, which has not decided it yet
    /** @type {"" | "unlikely" | "unread"} why the device writes nothing more */
    this.heldBack = "";
    /** @type {{outcome: string, written: number, kept: number} | null} */
    this.settled = null;
    /** @type {{message: string, hint: string, kind: "failed" | "refused"} | null} */
    this.failure = null;
    /** @type {any} what it cost */
    this.figures = null;
    /** @type {any} how it is chosen */
    this.options = null;
    /** @type {number | null} where in the committed text a correction begins, while it is marked */
    this.corrected = null;
    this.markedUntil = 0;
    this.expected = ""; // what was shown after the committed text, even if it was withdrawn since
  }

  /**
   * An answer of an `opened` message.
   * @param {any} fields
   */
  static of(fields) {
    const answer = new Answer(fields.number, fields.question);
    answer.committed = fields.committed;
    answer.provisional = answer.expected = fields.provisional;
    answer.finish = fields.finish;
    answer.isRunning = fields.running;
    answer.isUnsettled = fields.unsettled;
    answer.options = fields.options;
    return answer;
  }

  /**
   * @param {string} committed begins with all that was committed before
   * @param {string} provisional replaces the provisional text
   * @param {number} now in milliseconds
   */
  update(committed, provisional, now) {
    const piece = committed.slice(this.committed.length);
    const whole = piece + provisional;
    const { expected } = this;
    const same = common(whole, expected);
    if (same < whole.length || same === expected.length) this.expected = provisional;
    else this.expected = expected.slice(piece.length); // withdrawn, or held back: what comes may be the same
    if (same < Math.min(expected.length, piece.length)) {
      this.corrected = this.committed.length + same;
      this.markedUntil = now + MARKED_MS;
    }
    this.committed = committed;
    this.provisional = provisional;
  }

  /**
   * Takes the mark of a correction away when it is time.
   * @param {number} now in milliseconds
   * @returns {boolean} whether it has gone
   */
  expire(now) {
    if (this.corrected === null || now < this.markedUntil) return false;
    this.corrected = null;
    return true;
  }

  /** Whether its end was none of its own: a limit, the user, or an error. */
  get mayContinue() {
    const isOver = !this.isRunning && !this.isUnsettled && this.failure?.kind !== "refused";
    return isOver && this.committed !== "" && CUT.includes(this.finish);
  }

  /** All its text. */
  get text() {
    return this.committed + this.provisional;
  }

  /** Words that the server has not checked. */
  get uncheckedWords() {
    return this.provisional.match(/\S+/g)?.length ?? 0;
  }
}
