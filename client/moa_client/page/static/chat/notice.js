// The line above the field, with what one can do about it.

import { byId, setText } from "../core/dom.js";

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
