// One question and its answer on the page.

import { CallCard } from "./call.js";
import { framed, sizeWords, unframed } from "./composer.js";
import { paintMode } from "./turns.js";
import { answerWords, costWords, counted, thoughtWords } from "./words.js";
import { fromTemplate, setText } from "../core/page.js";
import { copyText } from "../text/code.js";
import { MarkdownText } from "../text/markdown.js";
import { runsOf, sourceOf, stretchesOf } from "../text/paint.js";
import { before } from "../text/reasoning.js";

/** @typedef {import("./answer.js").Answer} Answer */

/**
 * @typedef {object} TurnActions
 * @property {(answer: Answer) => void} again answers again with another seed
 * @property {(answer: Answer, question: string) => void} change asks another question in its place
 * @property {(answer: Answer) => void} standalone has the device write, right or not
 * @property {() => void} keep has the device's text back where the server has replaced it
 * @property {() => void} goOn continues the newest answer
 * @property {(call: string, permission: string) => void} permit says whether a call of a tool may be run
 * @property {() => void} leave gives the focus back
 */

export class Turn {
  /** @param {TurnActions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Answer | null} */
    this.answer = null;
    this.version = 0; // how many before the newest one is shown
    /** @type {Answer | null} */
    this.newest = null; // of its versions
    /** @type {{isLast: boolean, later: number, linkState: string} | null} */
    this.place = null;
    this.element = fromTemplate("turn-template");
    const part = (/** @type {string} */ selector) => this.element.querySelector(selector);
    this.asked = ""; // what the question shows
    this.edit = part(".edit");
    this.field = part(".edit textarea");
    this.text = new MarkdownText(part(".answer"));
    this.reasoning = new MarkdownText(part(".reasoning"));
    this.parts = {
      asked: part(".asked"),
      askedText: part(".asked-text"),
      askedFiles: part(".asked-files"),
      hint: part(".edit-hint"),
      thinking: part(".thinking"),
      thought: part(".thinking summary"),
      calls: part(".calls"),
      writing: part(".writing"),
      standing: part(".standing"),
      words: part(".standing-words"),
      after: part(".after"),
      cost: part(".cost"),
      versions: part(".versions"),
      version: part(".version"),
    };
    this.buttons = Object.fromEntries(
      [...this.element.querySelectorAll("[data-do]")].map((button) => [button.dataset.do, button]),
    );
    /** @type {Map<string, CallCard>} */
    this.cards = new Map();
    this.wire();
  }

  wire() {
    const { buttons } = this;
    buttons.copy.addEventListener("click", () => this.answer && copyText(this.answer.shown.text.text.trim(), buttons.copy));
    buttons.again.addEventListener("click", () => this.answer && this.actions.again(this.answer));
    buttons.standalone.addEventListener("click", () => this.answer && this.actions.standalone(this.answer));
    buttons.keep.addEventListener("click", () => this.actions.keep());
    buttons.continue.addEventListener("click", () => this.actions.goOn());
    buttons.edit.addEventListener("click", () => this.startEdit());
    buttons.earlier.addEventListener("click", () => this.turnTo(this.version + 1));
    buttons.later.addEventListener("click", () => this.turnTo(this.version - 1));
    buttons.cancel.addEventListener("click", () => this.endEdit());
    this.parts.thinking.addEventListener("toggle", () => this.showVersion());
    this.edit.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.submitEdit();
    });
    this.field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.submitEdit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        this.endEdit();
      }
    });
  }

  /**
   * @param {Answer} answer
   * @param {{isLast: boolean, later: number, linkState: string}} place later: answers after it
   */
  show(answer, place) {
    if (answer !== this.newest) this.version = 0;
    this.newest = answer;
    this.place = place;
    this.showVersion();
  }

  /** Shows the version that the reader has chosen. */
  showVersion() {
    const { newest, place } = this;
    if (!newest || !place) return;
    const all = [...newest.versions, newest];
    const at = all.length - 1 - this.version;
    const answer = all[at];
    const isNewest = this.version === 0;
    this.answer = answer;
    this.parts.versions.hidden = all.length === 1;
    setText(this.parts.version, `${at + 1} / ${all.length}`);
    this.buttons.earlier.disabled = at === 0;
    this.buttons.later.disabled = isNewest;
    this.buttons.edit.hidden = !isNewest;
    this.showQuestion(answer.question);
    const isFinal = !answer.isRunning && !answer.isUnsettled;
    const { reasoning, text, isThinking } = answer.shown;
    this.showPart(this.text, text, isFinal);
    this.parts.thinking.hidden = !reasoning.text;
    setText(this.parts.thought, thoughtWords(answer, reasoning.text, isThinking));
    if (this.parts.thinking.open) this.showPart(this.reasoning, reasoning, isFinal);
    this.showCalls(answer);
    this.parts.asked.hidden = !answer.question; // the results of calls stand there instead
    const said = answerWords(answer, place.linkState);
    this.parts.standing.dataset.kind = said.kind;
    setText(this.parts.words, said.text);
    this.buttons.standalone.hidden = !isNewest || !said.offer || !(answer.isRunning || place.isLast);
    setText(this.buttons.standalone, said.offer ?? "");
    this.buttons.keep.hidden = !(isNewest && place.isLast && answer.withdrawn);
    this.buttons.continue.hidden = !(isNewest && place.isLast && answer.mayContinue);
    this.parts.writing.hidden = !(answer.isRunning && !text.text && !reasoning.text && !said.text);
    this.parts.after.hidden = answer.isRunning;
    setText(this.parts.cost, costWords(answer));
    this.buttons.copy.hidden = !text.text;
    this.buttons.again.hidden = !isNewest || !place.isLast || !answer.question;
    this.element.dataset.last = place.isLast;
    this.element.ariaBusy = String(answer.isRunning);
    setText(this.parts.hint, place.later ? `${counted(place.later, "answer")} after this one will go.` : "");
  }

  /**
   * @param {MarkdownText} shown
   * @param {import("../text/reasoning.js").Part} part of the answer
   * @param {boolean} isFinal
   */
  showPart(shown, part, isFinal) {
    if (!this.answer) return;
    const { committed, corrected, runs, likely } = this.answer;
    const end = before(part, committed.length);
    const marked = corrected.map(([from, to]) => [before(part, from), before(part, to)]).filter(([from, to]) => from < to);
    const sure = before(part, committed.length + likely) - end;
    const source = sourceOf(part.text.slice(0, end), part.text.slice(end), marked, sure);
    shown.show(source, isFinal, stretchesOf(paintMode(), runsOf(runs, part)));
  }

  /** @param {string} asked */
  showQuestion(asked) {
    if (asked === this.asked) return;
    this.asked = asked;
    const { question, files } = unframed(asked);
    setText(this.parts.askedText, question);
    this.parts.askedFiles.replaceChildren(...files.map(({ name, text }) => {
      const file = fromTemplate("asked-file-template");
      setText(file.querySelector("summary"), `${name}, ${sizeWords(text)}`);
      setText(file.querySelector("pre"), text);
      return file;
    }));
  }

  /** @param {Answer} answer */
  showCalls(answer) {
    const cards = answer.calls.map((call) => {
      const card = this.cards.get(call.id) ?? new CallCard((permission) => this.actions.permit(call.id, permission));
      this.cards.set(call.id, card);
      card.show(call);
      return card.element;
    });
    const { calls } = this.parts;
    calls.hidden = cards.length === 0;
    if (calls.childElementCount !== cards.length || cards.some((card, index) => calls.children[index] !== card)) calls.replaceChildren(...cards);
  }

  /** @param {number} version counted from the newest one */
  turnTo(version) {
    this.version = version;
    this.showVersion();
    const { earlier, later } = this.buttons;
    if (earlier.disabled) later.focus();
    if (later.disabled) earlier.focus();
  }

  startEdit() {
    this.field.value = unframed(this.answer?.question ?? "").question;
    this.edit.hidden = false;
    this.parts.asked.dataset.editing = "yes";
    this.field.rows = Math.min(12, this.field.value.split("\n").length + 1);
    this.field.focus();
    this.field.setSelectionRange(this.field.value.length, this.field.value.length);
  }

  endEdit() {
    this.edit.hidden = true;
    delete this.parts.asked.dataset.editing;
    this.buttons.edit.focus();
  }

  submitEdit() {
    if (!this.answer) return;
    const question = framed(this.field.value.trim(), unframed(this.answer.question).files);
    if (!question) return;
    this.endEdit();
    this.actions.change(this.answer, question);
    this.actions.leave();
  }
}
