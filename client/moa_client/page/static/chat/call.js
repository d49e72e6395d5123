import { counted } from "./words.js";
import { fromTemplate, setText } from "../core/page.js";

// One call of a tool by an answer, as the messages of the daemon tell it. It shows nothing.

export class Call {
  /**
   * @param {string} id
   * @param {string} tool
   * @param {string} args a JSON object
   * @param {string} server that has the tool; empty: none has, or it is not known any more
   */
  constructor(id, tool, args, server = "") {
    this.id = id;
    this.tool = tool;
    this.args = args;
    this.server = server;
    this.waits = false; // for the user to say whether it may be run
    this.isDenied = false;
    this.isOver = false;
    this.isError = false;
    this.content = ""; // what the model is told
  }

  /**
   * A call of which an answer's options have the result.
   * @param {any} fields
   */
  static of(fields) {
    const call = new Call(fields.id, fields.name, fields.arguments);
    call.answer(fields);
    return call;
  }

  /** @param {{content: string, is_error: boolean}} fields */
  answer(fields) {
    Object.assign(this, { waits: false, isOver: true, content: fields.content, isError: fields.is_error });
  }

  /** How it is, in words. */
  get words() {
    if (this.waits) return "The model wants to call this tool. May it?";
    if (this.isDenied) return "You did not allow this call.";
    if (!this.isOver) return "It runs …";
    return this.isError ? "It failed." : "";
  }
}

// Shows one call of a tool: its arguments, the buttons that allow it, and its result.



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
