// The field for questions. What is typed is kept for each conversation until it is asked.

import { byId } from "../core/dom.js";
import { keepFiles, keepTyped, keptFiles, typed } from "../core/memory.js";
import { FileChips } from "./file_chips.js";
import { framed, unframed } from "./files.js";

export class Composer {
  /**
   * @param {(question: string) => boolean} ask whether it was taken
   * @param {() => void} stop
   * @param {(text: string) => void} say what the reader must know
   */
  constructor(ask, stop, say) {
    this.ask = ask;
    this.field = byId("question");
    this.stopButton = byId("stop");
    this.sendButton = byId("send");
    this.conversation = "";
    this.chips = new FileChips(() => this.filesChanged(), say);
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
    this.load("");
  }

  /**
   * Shows what was typed for this conversation.
   * @param {string} conversation empty: a new one, in which nothing was asked yet
   */
  bind(conversation) {
    if (conversation !== this.conversation) this.load(conversation);
  }

  /**
   * Something was asked in the new conversation, which has a name now.
   * @param {string} conversation
   */
  rename(conversation) {
    if (this.conversation) return;
    keepTyped("", "");
    keepFiles("", []);
    this.conversation = conversation;
    this.filesChanged();
  }

  /** @param {string} conversation */
  load(conversation) {
    this.conversation = conversation;
    this.field.value = typed(conversation);
    this.chips.set(keptFiles(conversation));
  }

  /**
   * Puts a question back that was not asked, before whatever is there.
   * @param {string} question
   */
  putBack(question) {
    const back = unframed(question);
    this.field.value = this.field.value.trim() ? `${back.question}\n${this.field.value}` : back.question;
    this.chips.set([...back.files, ...this.chips.files]);
  }

  submit() {
    const question = framed(this.field.value.trim(), this.chips.files);
    if (!question || !this.ask(question)) return;
    this.field.value = "";
    this.chips.set([]);
  }

  filesChanged() {
    keepFiles(this.conversation, this.chips.files);
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
    this.sendButton.ariaDisabled = String(!this.canAsk || !(this.field.value.trim() || this.chips.files.length));
  }

  focus() {
    this.field.focus();
  }
}
