// Shows one call of a tool: its arguments, the buttons that allow it, and its result.

import { fromTemplate, setText } from "../core/dom.js";
import { counted } from "./words.js";

/** @typedef {import("./call.js").Call} Call */

export class CallCard {
  /** @param {(permission: string) => void} permit */
  constructor(permit) {
    this.element = fromTemplate("call-template");
    const part = (/** @type {string} */ selector) => this.element.querySelector(selector);
    this.parts = {
      tool: part(".call-tool"),
      server: part(".call-server"),
      args: part(".call-arguments"),
      buttons: part(".call-buttons"),
      words: part(".call-words"),
      result: part(".call-result"),
      much: part(".call-result summary"),
      content: part(".call-result pre"),
    };
    this.parts.buttons.addEventListener("click", (/** @type {any} */ event) => {
      const permission = event.target.closest("[data-permission]")?.dataset.permission;
      if (permission) permit(permission);
    });
  }

  /** @param {Call} call */
  show(call) {
    const { parts } = this;
    setText(parts.tool, call.tool);
    setText(parts.server, call.server ? `of ${call.server}` : "");
    setText(parts.args, pretty(call.args));
    parts.args.setAttribute("aria-label", `Arguments of ${call.tool}`);
    parts.buttons.hidden = !call.waits;
    parts.buttons.setAttribute("aria-label", `May ${call.tool} be called?`);
    setText(parts.words, call.words);
    parts.words.hidden = !call.words;
    parts.result.hidden = !call.isOver || call.isDenied;
    setText(parts.much, `Result, ${counted(call.content.length, "character")}`);
    setText(parts.content, call.content);
    this.element.dataset.state = call.waits ? "waits" : call.isError ? "failed" : "";
  }
}

/**
 * @param {string} args a JSON object
 * @returns {string} the same for a person
 */
function pretty(args) {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}
