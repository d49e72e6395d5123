// The field for questions. What is typed is kept for each conversation until it is asked.

import { byId } from "../core/dom.js";
import { keepTyped, typed } from "../core/memory.js";

export class Composer {
  /**
   * @param {(question: string) => boolean} ask whether it was taken
   * @param {() => void} stop
   */
  constructor(ask, stop) {
    this.ask = ask;
    this.field = byId("question");
    this.stopButton = byId("stop");
    this.sendButton = byId("send");
    this.conversation = "";
    byId("composer").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.submit();
    });
    this.stopButton.addEventListener("click", () => {
      stop();
      this.field.focus();
    });
    this.field.addEventListener("input", () => this.changed());
    this.field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const isTouch = matchMedia("(pointer: coarse)").matches; // there Enter is the only way to a new line
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch) return;
      event.preventDefault();
      this.submit();
    });
    this.changed();
  }

  /**
   * Shows what was typed for this conversation.
   * @param {string} conversation empty: a new one, which has no name yet
   */
  bind(conversation) {
    const isNamedNow = !this.conversation && conversation && !typed(conversation);
    if (isNamedNow) {
      keepTyped("", "");
      keepTyped(conversation, this.field.value);
    } else if (conversation !== this.conversation) this.field.value = typed(conversation);
    this.conversation = conversation;
    this.changed();
  }

  /**
   * Puts a question back that was not asked, before whatever is there.
   * @param {string} question
   */
  putBack(question) {
    this.field.value = this.field.value.trim() ? `${question}\n${this.field.value}` : question;
    this.changed();
  }

  submit() {
    const question = this.field.value.trim();
    if (!question || !this.ask(question)) return;
    this.field.value = "";
    this.changed();
  }

  changed() {
    keepTyped(this.conversation, this.field.value);
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.showButtons();
  }

  /**
   * @param {{canAsk?: boolean, isBusy?: boolean}} state
   */
  show({ canAsk, isBusy }) {
    this.canAsk = canAsk;
    if (!isBusy && document.activeElement === this.stopButton) this.field.focus();
    this.stopButton.hidden = !isBusy;
    this.showButtons();
  }

  showButtons() {
    this.sendButton.ariaDisabled = String(!this.canAsk || !this.field.value.trim());
  }

  focus() {
    this.field.focus();
  }
}
