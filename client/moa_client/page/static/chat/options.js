// How answers are chosen, and the system prompt of the conversation.

import { byId } from "../core/dom.js";
import { remember, remembered } from "../core/memory.js";

const DEFAULTS = { temperature: 0, top_k: 0, top_p: 1, seed: 0, max_tokens: 512 };
const AGAIN_TEMPERATURE = 0.7; // of an answer that is to be another one, if the options choose the likeliest words
const NAMES = /** @type {(keyof typeof DEFAULTS)[]} */ (Object.keys(DEFAULTS));

/** @typedef {typeof DEFAULTS & {stop: string[]}} AnswerOptions */

/** @returns {AnswerOptions} */
export function options() {
  try {
    return { ...DEFAULTS, ...JSON.parse(remembered("options") || "{}"), stop: [] };
  } catch {
    return { ...DEFAULTS, stop: [] };
  }
}

/** @returns {AnswerOptions} for another answer to the same question */
export function otherOptions() {
  const mine = options();
  const seed = Math.floor(Math.random() * 1_000_000) + 1;
  return { ...mine, seed, temperature: mine.temperature || AGAIN_TEMPERATURE };
}

export class OptionsDialog {
  /** @param {(system: string | null) => void} onSystem another system prompt is wanted */
  constructor(onSystem) {
    this.onSystem = onSystem;
    this.dialog = byId("options");
    this.form = byId("options-form");
    this.system = "";
    byId("options-open").addEventListener("click", () => this.open());
    byId("options-defaults").addEventListener("click", () => this.fill({ ...DEFAULTS, stop: [] }));
    this.dialog.addEventListener("close", () => this.dialog.returnValue === "save" && this.save());
    this.say();
  }

  /**
   * @param {string | null} system of the open conversation
   * @param {boolean} hasBegun
   */
  bind(system, hasBegun) {
    this.system = system ?? "";
    const hint = hasBegun ? "Another system prompt begins a new conversation." : "What the model is told before the first question.";
    byId("o-system-hint").textContent = hint;
  }

  open() {
    this.fill(options());
    this.form.elements.namedItem("system").value = this.system;
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  /** @param {AnswerOptions} values */
  fill(values) {
    for (const name of NAMES) this.form.elements.namedItem(name).value = String(values[name]);
  }

  save() {
    const values = NAMES.map((name) => {
      const number = this.form.elements.namedItem(name).valueAsNumber;
      return [name, Number.isFinite(number) ? number : DEFAULTS[name]];
    });
    remember("options", JSON.stringify(Object.fromEntries(values)));
    this.say();
    const system = this.form.elements.namedItem("system").value.trim();
    if (system !== this.system.trim()) this.onSystem(system || null);
  }

  /** Says next to the field what differs from the defaults. */
  say() {
    const mine = options();
    const different = NAMES.filter((name) => mine[name] !== DEFAULTS[name]);
    byId("options-said").textContent = different.map((name) => `${name.replace("_", " ")} ${mine[name]}`).join(", ");
  }
}
