// One answer: committed text, which only grows, then provisional text, which may be withdrawn.

import { Call } from "./call.js";
import { AnswerSplit } from "../text/reasoning.js";

const CUT = ["max_tokens", "cancelled", "unfinished"];
const WORTH_KEEPING = 12; // tokens: as the daemon has it
const MARKED_MS = 1500; // long enough to be seen, short enough not to be in the way

export class Answer {
  /**
   * @param {number} number in its conversation, from 1
   * @param {string} question
   * @param {any} options how it is chosen
   * @param {import("../text/reasoning.js").Marks | null} marks of reasoning
   */
  constructor(number, question, options = null, marks = null) {
    this.number = number;
    this.question = question;
    this.options = options;
    this.split = new AnswerSplit(marks, options?.reasoning_effort ?? "");
    this.isCounted = true; // the tokens of its reasoning came one by one
    this.spoken = 0; // characters of its text
    this.committed = "";
    /** @type {import("../text/paint.js").Run[]} of the committed text */
    this.runs = [];
    this.provisional = "";
    this.likely = 0; // characters of it that are likely to stay
    this.withdrawn = 0; // provisional tokens that the server has replaced, if they are worth having back
    this.waiting = 0; // provisional tokens
    this.finish = "unfinished";
    this.isRunning = true;
    this.isUnsettled = false; // it ended without the server, which has not decided it yet
    /** @type {"" | "unlikely" | "unread"} why the device writes nothing more */
    this.heldBack = "";
    /** @type {{outcome: string, written: number, kept: number} | null} */
    this.settled = null;
    /** @type {{message: string, hint: string, kind: "failed" | "refused"} | null} */
    this.failure = null;
    /** @type {Call[]} of tools, with which it has ended */
    this.calls = [];
    this.isCalling = false; // they wait or run
    /** @type {string | null} why they have no answers: one sentence, or nothing */
    this.callsLeft = null;
    /** @type {any} what it cost */
    this.figures = null;
    /** @type {[number, number][]} the stretches of the committed text that are marked as corrected */
    this.corrected = [];
    this.markedUntil = 0;
    /** @type {Answer[]} in whose place it was asked for, oldest first */
    this.versions = [];
  }

  /**
   * An answer of an `opened` message.
   * @param {any} fields
   * @param {import("../text/reasoning.js").Marks | null} marks of reasoning
   */
  static of(fields, marks) {
    const answer = new Answer(fields.number, fields.question, fields.options, marks);
    answer.split.read(fields.committed, fields.tokens);
    answer.isCounted = fields.tokens === 0;
    answer.spoken = answer.split.text.length;
    answer.committed = fields.committed;
    answer.takeRuns(fields.runs ?? [], fields.committed);
    answer.provisional = fields.provisional;
    answer.likely = Array.from(fields.provisional).slice(0, fields.likely).join("").length;
    answer.withdrawn = fields.withdrawn;
    answer.waiting = fields.waiting.length;
    answer.finish = fields.finish;
    answer.isRunning = fields.running;
    answer.isUnsettled = fields.unsettled;
    answer.versions = fields.versions.map((/** @type {[string, string]} */ [question, text]) => {
      const version = new Answer(fields.number, question, fields.options, marks);
      version.decide(text);
      version.isCounted = false;
      Object.assign(version, { options: null, finish: "end_of_text", isRunning: false });
      return version;
    });
    return answer;
  }

  /**
   * Applies an event about it (docs/device.md).
   * @param {any} message
   * @param {number} now in milliseconds
   */
  apply(message, now) {
    switch (message.event) {
      case "continued":
        Object.assign(this, { options: message.options, finish: "unfinished", isRunning: true, settled: null, failure: null });
        Object.assign(this, { calls: [], callsLeft: null });
        break;
      case "committed":
        this.waiting -= message.confirmed;
        this.takeRuns(message.runs ?? [], message.text);
        this.likely = this.waiting ? Math.max(0, this.likely - message.text.length) : 0;
        this.update(message.text, this.waiting ? this.provisional.slice(message.text.length) : "", message.tokens.length);
        this.heldBack = "";
        break;
      case "provisional":
        this.waiting += message.tokens.length;
        this.write(message.added, message.likely);
        this.heldBack = "";
        break;
      case "corrected":
        this.waiting = this.likely = 0;
        if (message.dropped >= WORTH_KEEPING) this.withdrawn = message.dropped;
        this.update("", "");
        break;
      case "held_back":
        this.heldBack = message.unread ? "unread" : "unlikely";
        break;
      case "ended":
        if (message.verified) this.decide(message.text);
        else this.write(message.added, true);
        Object.assign(this, { finish: message.finish, figures: message.figures, isUnsettled: !message.verified });
        this.isCalling = message.calls > 0;
        this.end();
        break;
      case "call_wanted":
        this.isCalling = true;
        this.takeCall(new Call(message.call, message.tool, message.arguments, message.server)).waits = message.waits;
        break;
      case "call_decided":
        Object.assign(this.call(message.call) ?? {}, { waits: false, isDenied: message.permission === "denied" });
        break;
      case "call_answered":
        this.call(message.call)?.answer(message);
        break;
      case "calls_left":
        Object.assign(this, { isCalling: false, callsLeft: message.reason });
        this.calls = this.calls.filter((call) => call.isOver);
        break;
      case "settled":
        this.decide(message.text);
        Object.assign(this, { finish: message.finish, isUnsettled: false });
        this.settled = { outcome: message.outcome, written: message.written_standalone, kept: message.kept };
        this.end();
        break;
      case "refused":
        this.isUnsettled = false;
        this.failure = { message: message.message, hint: message.hint, kind: "refused" };
        break;
      case "failed":
        this.decide(message.text);
        this.failure = { message: message.message, hint: message.hint, kind: "failed" };
        this.end();
        break;
    }
    if (message.corrected) this.mark(message.corrected, now);
  }

  /**
   * Takes in who wrote a text that is about to be appended to the committed text.
   * @param {[number, string, number?][]} runs their characters, writers' letters and chances
   * @param {string} text
   */
  takeRuns(runs, text) {
    const characters = Array.from(text); // counted as the daemon counts them
    let from = 0;
    for (const [count, writer, chance = null] of runs) {
      const { length } = characters.slice(from, from + count).join("");
      from += count;
      const last = this.runs[this.runs.length - 1];
      if (last && last.writer === writer && last.chance === null && chance === null) last.length += length;
      else this.runs.push({ length, writer, chance });
    }
  }

  /**
   * Nothing of its text is provisional any more.
   * @param {string} text the rest of the committed text
   */
  decide(text) {
    this.waiting = this.likely = 0;
    this.update(text, "");
  }

  /** @param {string} id */
  call(id) {
    return this.calls.find((call) => call.id === id);
  }

  /**
   * Takes in a call, in place of what was known of it.
   * @param {Call} call
   */
  takeCall(call) {
    const index = this.calls.findIndex(({ id }) => id === call.id);
    if (index < 0) this.calls.push(call);
    else this.calls[index] = call;
    return call;
  }

  /**
   * The next answer begins.
   * @param {any[]} results of calls, with which it does
   */
  takeResults(results) {
    this.isCalling = false;
    for (const fields of results) {
      const known = this.call(fields.id);
      if (known) known.answer(fields);
      else this.takeCall(Call.of(fields));
    }
  }

  end() {
    this.isRunning = false;
    this.heldBack = "";
  }

  /**
   * @param {string} piece is appended to the committed text
   * @param {string} provisional replaces the provisional text
   * @param {number} tokens of the piece
   */
  update(piece, provisional, tokens = 0) {
    this.split.read(piece, tokens);
    this.committed += piece;
    this.provisional = provisional;
  }

  /**
   * @param {string} added to the provisional text
   * @param {boolean} isLikely to stay; what follows less likely text is no likelier
   */
  write(added, isLikely) {
    if (isLikely && this.likely === this.provisional.length) this.likely += added.length;
    this.update("", this.provisional + added);
  }

  /**
   * Marks what replaces text that was shown.
   * @param {[number, number][]} stretches in characters as the daemon counts them
   * @param {number} now in milliseconds
   */
  mark(stretches, now) {
    const characters = Array.from(this.committed);
    const place = (/** @type {number} */ count) => characters.slice(0, count).join("").length;
    this.corrected = stretches.map(([begin, end]) => [place(begin), place(end)]);
    this.markedUntil = now + MARKED_MS;
  }

  /**
   * Takes the mark of a correction away when it is time.
   * @param {number} now in milliseconds
   * @returns {boolean} whether it has gone
   */
  expire(now) {
    if (this.corrected.length === 0 || now < this.markedUntil) return false;
    this.corrected = [];
    return true;
  }

  /** Committed text, without reasoning, that was not read aloud yet. */
  takeSpoken() {
    const { text } = this.split;
    const piece = text.slice(this.spoken);
    this.spoken = text.length;
    return piece;
  }

  /** Its reasoning and its text. */
  get shown() {
    return this.split.shown(this.provisional, !this.isRunning);
  }

  /** What remains of it, and of those before it, where another answer is asked for in its place. */
  get asVersions() {
    if (!this.text) return this.versions;
    this.isRunning = false;
    return [...this.versions, this];
  }

  /** Whether its end was none of its own: a limit, the user, or an error. */
  get mayContinue() {
    const isOver = !this.isRunning && !this.isUnsettled && this.failure?.kind !== "refused";
    return isOver && this.committed !== "" && (CUT.includes(this.finish) || this.callsLeft !== null);
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
