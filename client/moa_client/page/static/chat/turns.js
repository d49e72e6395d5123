import { unframed } from "./composer.js";
import { Turn } from "./turn.js";
import { byId, remember, remembered, setText } from "../core/page.js";

// The switch that has answers painted, by writer or by chance, and what each colour means.


/** @typedef {import("../text/paint.js").PaintMode} PaintMode */

/** @returns {PaintMode} */
export function paintMode() {
  const mode = remembered("paint");
  return mode === "writer" || mode === "chance" ? mode : "";
}

/** @returns {object} what a question asks for so that its answer can be painted */
export function wantedChances() {
  return paintMode() === "chance" ? { chances: { likeliest: 0 } } : {};
}

/** @param {() => void} onChange */
export function setUpColours(onChange) {
  const form = byId("colours");
  const show = () => {
    const mode = paintMode();
    form.elements.namedItem("paint").value = mode;
    for (const legend of form.querySelectorAll("[data-mode]")) legend.hidden = legend.dataset.mode !== mode;
  };
  form.addEventListener("change", () => {
    remember("paint", form.elements.namedItem("paint").value);
    show();
    onChange();
  });
  show();
}

// The line above the field, with what one can do about it.


export class Notice {
  /** @param {Record<string, () => void>} actions by the names in `words.js` */
  constructor(actions) {
    this.box = byId("notice");
    this.text = byId("notice-text");
    this.button = byId("notice-action");
    this.passing = "";
    this.timer = 0;
    /** @type {import("./words.js").Said} */
    this.said = { kind: "none", text: "" };
    this.button.addEventListener("click", () => actions[this.button.dataset.action]?.());
  }

  /** @param {import("./words.js").Said} said */
  show(said) {
    this.said = said;
    if (!this.passing) this.draw(said);
  }

  /**
   * Says something that will not last, such as why a request was refused.
   * @param {string} text
   */
  pass(text) {
    this.passing = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.passing = "";
      this.draw(this.said);
    }, 5000 + 60 * text.length);
    this.draw({ kind: "bad", text });
  }

  /** @param {import("./words.js").Said} said */
  draw(said) {
    this.box.dataset.kind = said.kind;
    setText(this.text, said.text);
    this.button.hidden = !said.action;
    if (!said.action) return;
    setText(this.button, said.action.label);
    this.button.dataset.action = said.action.name;
  }
}

// Follows new text if the reader is at the end, and only then.


const NEAR_PX = 40;

export class Scrolling {
  constructor() {
    this.scroller = byId("scroller");
    this.button = byId("to-end");
    this.isFollowing = true;
    this.scroller.addEventListener("scroll", () => this.look(), { passive: true });
    this.button.addEventListener("click", () => {
      this.toEnd();
      byId("question").focus();
    });
    new ResizeObserver(() => this.follow()).observe(this.scroller);
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  look() {
    this.isFollowing = this.isAtEnd;
    this.button.hidden = this.isFollowing;
  }

  /** After a change of what is shown. */
  follow() {
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.button.hidden = this.isAtEnd;
  }

  /** Goes to the newest text and follows it. */
  toEnd() {
    this.isFollowing = true;
    this.button.hidden = true;
    this.follow();
  }
}

// Shows a conversation: its turns in order, remarks between them, and questions that wait for their turn.


/** @typedef {import("./conversation.js").Conversation} Conversation */

const EVERY_MS = 40; // faster than anybody reads

export class Turns {
  /**
   * @param {import("./turn.js").TurnActions} actions
   * @param {Scrolling} scrolling
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
