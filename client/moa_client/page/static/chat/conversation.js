// The open conversation, as the messages of the daemon tell it (docs/device.md). It shows nothing.

import { Answer } from "./answer.js";
import { unframed } from "./composer.js";

/**
 * What a message has changed.
 * @typedef {{answers?: number[] | "all", facts?: boolean, spoken?: string, ended?: Answer, list?: boolean}} Change
 */

const MOST_REMARKS = 20;

export class Conversation {
  constructor() {
    this.id = "";
    this.title = "";
    /** @type {any} what `opened` says of model, server and drafter */
    this.facts = {};
    /** @type {any} of the link */
    this.status = null;
    /** @type {Answer[]} */
    this.answers = [];
    /** @type {{question: string}[]} asked, not begun */
    this.waiting = [];
    /** @type {[string, string][]} that may answer, with words about each */
    this.models = [];
    this.wanted = ""; // the model that was asked for and does not answer yet
    /** @type {{after: number, text: string}[]} sentences between answers */
    this.remarks = [];
    this.reason = ""; // of the state of the link
    this.waitUntil = 0; // in milliseconds, if the reason is that the server lets this client wait
    this.otherModel = ""; // another model is served there now
    /** @type {{message: string, hint: string} | null} why the link has failed for good */
    this.failure = null;
  }

  /** @param {number} now in milliseconds; how long the server lets this client wait, in whole seconds */
  waitSeconds(now) {
    return this.status?.state === "waiting" ? Math.max(1, Math.ceil((this.waitUntil - now) / 1000)) : 0;
  }

  /** The answer that is being written. */
  get running() {
    return this.answers.find((answer) => answer.isRunning) ?? null;
  }

  get isBusy() {
    return this.running !== null || this.waiting.length > 0 || this.answers.some((answer) => answer.isCalling);
  }

  /** What the list and the top of the page call it. */
  get name() {
    const { question, files } = unframed(this.answers[0]?.question ?? "");
    return this.title || question.split("\n")[0] || files[0]?.name || "New conversation";
  }

  get uncheckedWords() {
    return this.answers.reduce((sum, answer) => sum + answer.uncheckedWords, 0);
  }

  /** Answers that ended without the server, which has not decided them. */
  get uncheckedAnswers() {
    return this.answers.filter((answer) => answer.isUnsettled).length;
  }

  /**
   * @param {any} message
   * @param {number} now in milliseconds
   * @returns {Change}
   */
  apply(message, now) {
    if (message.status) this.status = message.status;
    if (this.status && this.status.state !== "offline") this.otherModel = "";
    const answer = this.answers[message.answer - 1];
    const changes = CHANGES[message.event];
    if (answer && changes) {
      answer.apply(message, now);
      return { answers: [answer.number], ...changes(message, answer) };
    }
    return HANDLERS[message.event]?.(this, message, now) ?? {};
  }

  /** @param {string} text a sentence after the newest answer */
  remark(text) {
    this.remarks.push({ after: this.answers.length, text });
    this.remarks.splice(0, this.remarks.length - MOST_REMARKS);
  }
}

/**
 * What an event about an answer changes besides that answer.
 * @type {Record<string, (message: any, answer: Answer) => Change>}
 */
const CHANGES = {
  continued: () => ({ facts: true }),
  committed: (_message, answer) => ({ spoken: answer.takeSpoken() }),
  provisional: () => ({}),
  corrected: () => ({}),
  held_back: () => ({ facts: true }),
  ended: (_message, answer) => ({ facts: true, spoken: answer.takeSpoken(), ended: answer, list: true }),
  call_wanted: (message) => ({ facts: true, spoken: message.waits ? `The model wants to call ${message.tool}. ` : "" }),
  call_decided: () => ({ facts: true }),
  call_answered: () => ({}),
  calls_left: (_message, answer) => ({ facts: true, ended: answer }),
  settled: (_message, answer) => ({ facts: true, ended: answer, list: true }),
  refused: (_message, answer) => ({ facts: true, ended: answer, list: true }),
  failed: (_message, answer) => ({ facts: true, ended: answer, list: true }),
};

/** @type {Record<string, (all: Conversation, message: any, now: number) => Change>} */
const HANDLERS = {
  opened(all, message) {
    all.id = message.conversation;
    all.title = message.title;
    all.facts = message;
    const marks = (/** @type {any} */ { model, marks }) => (model ? marks : message.thinking) ?? null;
    all.answers = message.answers.map((/** @type {any} */ fields) => Answer.of(fields, marks(fields.options)));
    for (const answer of all.answers) all.answers[answer.number - 2]?.takeResults(answer.options.results ?? []);
    all.reason = message.absent ?? "";
    return { answers: "all", facts: true, list: true };
  },
  asked(all, message) {
    const answer = new Answer(message.answer, message.question, message.options, all.facts.thinking ?? null);
    const mine = all.waiting.findIndex((each) => each.question === message.question);
    if (mine >= 0) all.waiting.splice(mine, 1);
    const replaced = all.answers.splice(message.answer - 1)[0];
    answer.versions = replaced?.asVersions ?? [];
    all.answers.push(answer);
    all.remarks = all.remarks.filter((remark) => remark.after < message.answer);
    all.answers[message.answer - 2]?.takeResults(message.options.results ?? []);
    all.failure = null;
    return { answers: "all", facts: true, list: true };
  },
  failed(all, message) {
    all.failure = { message: message.message, hint: message.hint };
    all.wanted = "";
    return { facts: true };
  },
  link(all, message, now) {
    all.reason = message.reason;
    all.waitUntil = now + 1000 * (message.retry_seconds ?? 0);
    if (message.state !== "offline") all.failure = null;
    return { facts: true };
  },
  execution(all, message) {
    Object.assign(all.facts, { level: message.level, exact: message.exact });
    all.remark(`This server computes differently (${message.level}): what follows may differ from what the one before would have written.`);
    return { answers: "all", facts: true };
  },
  server(all, message) {
    if (message.what === "model") all.otherModel = message.message;
    else all.remark(message.message);
    return { answers: "all", facts: true };
  },
  models(all, message) {
    Object.assign(all.facts, message);
    if (message.models.length) {
      all.models = message.models;
    } else {
      all.wanted = "";
      all.remark(`${message.model} answers from now on: what was said before is new text for it.`);
    }
    return { answers: "all", facts: true };
  },
  drafter(all, message) {
    Object.assign(all.facts, { drafter: message.name, drafter_reason: message.reason, standalone: message.standalone });
    return { facts: true };
  },
  not_kept(all, message) {
    all.remark(`From here on the conversation is not kept: ${message.message} ${message.hint}`);
    return { answers: "all" };
  },
  tools(all, message) {
    if (all.remarks.some(({ text }) => text === message.message)) return {}; // told again to each tab that opens
    all.remark(message.message);
    return { answers: "all" };
  },
  rewound(all, message) {
    all.answers.length = Math.min(all.answers.length, message.answers);
    all.remarks = all.remarks.filter((remark) => remark.after <= message.answers);
    return { answers: "all", facts: true, list: true };
  },
  titled(all, message) {
    all.title = message.title;
    return { facts: true, list: true };
  },
};
