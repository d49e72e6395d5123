// Shows a conversation: its turns in order, remarks between them, and questions that wait for their turn.

import { byId } from "../core/dom.js";
import { unframed } from "./files.js";
import { Turn } from "./turn.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const EVERY_MS = 40; // faster than anybody reads

export class Turns {
  /**
   * @param {import("./turn.js").TurnActions} actions
   * @param {import("./scrolling.js").Scrolling} scrolling
   */
  constructor(actions, scrolling) {
    this.actions = actions;
    this.scrolling = scrolling;
    this.list = byId("turns");
    this.empty = byId("empty");
    /** @type {Turn[]} */
    this.turns = [];
    /** @type {Set<number>} numbers of answers to be shown again */
    this.stale = new Set();
    this.isAllStale = true;
    this.frame = 0;
    this.drawnAt = -Infinity;
    /** @type {Conversation | null} */
    this.conversation = null;
    this.marks = 0;
  }

  /** @param {Conversation} conversation shown from now on */
  begin(conversation) {
    this.conversation = conversation;
    this.turns = [];
    this.list.replaceChildren();
    this.refresh("all");
  }

  /** @param {number[] | "all"} answers numbers of those that have changed */
  refresh(answers) {
    if (answers === "all") this.isAllStale = true;
    else answers.forEach((number) => this.stale.add(number));
    if (this.frame) return;
    const waitMs = this.drawnAt + EVERY_MS - performance.now();
    if (waitMs <= 0) this.frame = requestAnimationFrame(() => this.draw());
    else this.frame = setTimeout(() => requestAnimationFrame(() => this.draw()), waitMs);
  }

  draw() {
    this.frame = 0;
    this.drawnAt = performance.now();
    const { conversation } = this;
    if (!conversation) return;
    const { answers } = conversation;
    if (this.isAllStale) this.arrange(conversation);
    answers.forEach((answer, index) => {
      if (!this.isAllStale && !this.stale.has(answer.number)) return;
      const isLast = index === answers.length - 1;
      const linkState = conversation.status?.state ?? "";
      this.turns[index]?.show(answer, { isLast, later: answers.length - index - 1, linkState });
    });
    this.isAllStale = false;
    this.stale.clear();
    this.expireMarks(conversation);
    this.scrolling.follow();
  }

  /**
   * Puts turns, remarks and waiting questions in order.
   * @param {Conversation} conversation
   */
  arrange(conversation) {
    const { answers, remarks, waiting } = conversation;
    this.turns.length = Math.min(this.turns.length, answers.length);
    while (this.turns.length < answers.length) this.turns.push(new Turn(this.actions));
    /** @type {Element[]} */
    const items = [];
    const remarksAfter = (/** @type {number} */ count) =>
      remarks.filter((remark) => remark.after === count).map((remark) => line("remark", remark.text));
    items.push(...remarksAfter(0));
    this.turns.forEach((turn, index) => items.push(turn.element, ...remarksAfter(index + 1)));
    items.push(...waiting.map(({ question }) => line("waiting-question", waitingWords(question))));
    const wanted = new Set(items);
    [...this.list.children].forEach((item) => wanted.has(item) || item.remove());
    items.forEach((item, index) => {
      if (this.list.children[index] !== item) this.list.insertBefore(item, this.list.children[index] ?? null);
    });
    this.empty.hidden = items.length > 0;
    this.list.hidden = items.length === 0;
  }

  /** @param {Conversation} conversation */
  expireMarks(conversation) {
    clearTimeout(this.marks);
    const due = conversation.answers.filter((answer) => answer.corrected.length > 0).map((answer) => answer.markedUntil);
    if (due.length === 0) return;
    this.marks = setTimeout(() => {
      const now = performance.now();
      this.refresh(conversation.answers.filter((answer) => answer.expire(now)).map((answer) => answer.number));
    }, Math.max(0, Math.min(...due) - performance.now()) + 5);
  }
}

/** @param {string} asked with the names of its files */
function waitingWords(asked) {
  const { question, files } = unframed(asked);
  return [...files.map(({ name }) => name), question].join("\n");
}

/**
 * @param {string} kind
 * @param {string} text
 */
function line(kind, text) {
  const item = document.createElement("li");
  item.className = kind;
  item.dir = "auto";
  item.textContent = text;
  return item;
}
