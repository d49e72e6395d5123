// How answers are chosen, and the system prompt of the conversation. What is not set is left to the model.

import { byId, remember, remembered } from "../core/page.js";

const MOST_TOKENS = 2048; // as in the chat
const AGAIN_TEMPERATURE = 0.7; // of an answer that is to be another one, if the likeliest words were chosen
const NUMBERS = ["temperature", "top_p", "top_k", "seed", "max_tokens"];
const NAMES = [...NUMBERS, "reasoning_effort"];
/** @type {Record<string, number>} what older pages kept where nobody had set anything */
const KEPT_BEFORE = { temperature: 0, top_k: 0, top_p: 1, seed: 0, max_tokens: 512 };

/** @typedef {Record<string, any>} AnswerOptions */

/** @typedef {{efforts: string[]}} Marks of a model that reasons */

/** @returns {AnswerOptions} those that were set */
function chosen() {
  try {
    const text = remembered("answers");
    if (text) return Object.fromEntries(Object.entries(JSON.parse(text) ?? {}).filter(([name]) => NAMES.includes(name)));
    const before = Object.entries(JSON.parse(remembered("options") || "{}"));
    return Object.fromEntries(before.filter(([name, value]) => name in KEPT_BEFORE && value !== KEPT_BEFORE[name]));
  } catch {
    return {};
  }
}

/**
 * @param {Marks | null} thinking how the model marks reasoning; null: it has none to be asked for
 * @returns {AnswerOptions}
 */
export function options(thinking) {
  const mine = { max_tokens: MOST_TOKENS, ...chosen() };
  if (!thinking?.efforts.includes(mine.reasoning_effort)) delete mine.reasoning_effort;
  return mine;
}

/**
 * @param {Record<string, number>} sampling how answers are chosen where nothing is set
 * @param {Marks | null} thinking how the model marks reasoning; null: it has none to be asked for
 * @returns {AnswerOptions} for another answer to the same question
 */
export function otherOptions(sampling, thinking) {
  const { seed: _, ...mine } = options(thinking);
  return mine.temperature ?? sampling.temperature ? mine : { ...mine, temperature: AGAIN_TEMPERATURE };
}

export class OptionsDialog {
  /** @param {(system: string | null) => void} onSystem another system prompt is wanted */
  constructor(onSystem) {
    this.onSystem = onSystem;
    this.dialog = byId("options");
    this.form = byId("options-form");
    this.system = "";
    /** @type {string[]} of reasoning, that the model can be asked for */
    this.efforts = [];
    byId("options-open").addEventListener("click", () => this.open());
    byId("options-defaults").addEventListener("click", () => this.fill({}));
    this.dialog.addEventListener("close", () => this.dialog.returnValue === "save" && this.save());
    this.say();
  }

  /**
   * @param {string | null} system of the open conversation
   * @param {boolean} hasBegun
   * @param {Record<string, number>} sampling how answers are chosen where nothing is set
   * @param {Marks | null} thinking how the model marks reasoning; null: it has none to be asked for
   */
  bind(system, hasBegun, sampling, thinking) {
    for (const each of this.form.querySelectorAll("[data-reasoning]")) each.hidden = !thinking;
    this.efforts = thinking?.efforts ?? [];
    this.system = system ?? "";
    const hint = hasBegun ? "Another system prompt begins a new conversation." : "What the model is told before the first question.";
    byId("o-system-hint").textContent = hint;
    /** @type {Record<string, any>} */
    const unset = { seed: "new", max_tokens: MOST_TOKENS, ...sampling };
    for (const name of NUMBERS) this.field(name).placeholder = String(unset[name] ?? "");
  }

  /** @param {string} name */
  field(name) {
    return this.form.elements.namedItem(name);
  }

  open() {
    this.fill(chosen());
    this.field("system").value = this.system;
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  /** @param {AnswerOptions} values */
  fill(values) {
    for (const name of NUMBERS) this.field(name).value = values[name] ?? "";
    this.field("reasoning_effort").replaceChildren(...["", ...this.efforts].map((name) => new Option(name || "the model’s own", name)));
    this.field("reasoning_effort").value = this.efforts.includes(values.reasoning_effort) ? values.reasoning_effort : "";
  }

  save() {
    const numbers = NUMBERS.map((name) => [name, this.field(name).valueAsNumber]);
    const values = Object.fromEntries(numbers.filter(([, number]) => Number.isFinite(number)));
    const effort = this.field("reasoning_effort").value;
    if (effort) values.reasoning_effort = effort;
    remember("answers", JSON.stringify(values));
    this.say();
    const system = this.field("system").value.trim();
    if (system !== this.system.trim()) this.onSystem(system || null);
  }

  /** Says next to the field what is set. */
  say() {
    const said = Object.entries(chosen()).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    byId("options-said").textContent = said.join(", ");
  }
}
