// Renames, exports and deletes a conversation.

import { deleteConversation, saveConversation } from "../core/api.js";
import { byId } from "../core/dom.js";
import { keepTyped } from "../core/memory.js";
import { rename } from "./renaming.js";

/** @typedef {import("../core/api.js").Kept} Kept */

/**
 * Asks whether something is meant.
 * @param {string} title
 * @param {string} text
 * @param {string} yes what the button does
 * @returns {Promise<boolean>}
 */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export class ManageDialog {
  /**
   * @param {object} actions
   * @param {(id: string, title: string) => boolean} actions.retitle of the open conversation; false: it is another one
   * @param {(id: string) => void} actions.leave it, if it is open: it will be deleted
   * @param {() => void} actions.done the list has changed
   * @param {(text: string) => void} actions.say why something was refused
   */
  constructor(actions) {
    this.actions = actions;
    this.dialog = byId("manage");
    this.field = byId("m-title");
    /** @type {Kept | null} */
    this.kept = null;
    this.dialog.addEventListener("close", () => this.carryOut(this.dialog.returnValue));
    this.field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter") return; // otherwise the form's first button, which exports
      event.preventDefault();
      this.dialog.close("rename");
    });
  }

  /** @param {Kept} kept */
  open(kept) {
    this.kept = kept;
    this.field.value = kept.title;
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  /** @param {string} what */
  async carryOut(what) {
    const { kept, actions } = this;
    if (!kept) return;
    try {
      if (what === "rename") await this.rename(kept, this.field.value.trim());
      else if (what === "markdown" || what === "json") await saveConversation(kept.id, what);
      else if (what === "delete") await this.delete(kept);
    } catch (error) {
      const { message, hint = "" } = /** @type {any} */ (error);
      actions.say(`${message} ${hint}`);
    }
    actions.done();
  }

  /**
   * @param {Kept} kept
   * @param {string} title
   */
  async rename(kept, title) {
    if (!title || title === kept.title) return;
    if (!this.actions.retitle(kept.id, title)) await rename(kept.id, title);
  }

  /** @param {Kept} kept */
  async delete(kept) {
    const text = `“${kept.title || "Conversation"}” will be deleted from this device for good.`;
    if (!(await confirmed("Delete the conversation?", text, "Delete"))) return;
    this.actions.leave(kept.id);
    await deleteConversation(kept.id);
    keepTyped(kept.id, "");
  }
}
