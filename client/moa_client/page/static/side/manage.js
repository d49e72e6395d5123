import { deleteConversation, saveConversation } from "../core/api.js";
import { byId, keepTyped, remember, remembered } from "../core/page.js";
import { rename } from "./list.js";

// Renames, exports and deletes a conversation.


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

// List and panel: beside the chat where there is room, over it where there is not.


const narrow = matchMedia("(max-width: 51.99rem)"); // the list lies over the chat
const medium = matchMedia("(max-width: 75.99rem)"); // and so does the panel

export class Drawers {
  /** @param {(isOpen: boolean) => void} onPanel */
  constructor(onPanel) {
    this.onPanel = onPanel;
    this.app = byId("app");
    this.side = byId("side");
    this.panel = byId("panel");
    this.backdrop = byId("backdrop");
    this.sideButton = byId("side-open");
    this.panelButton = byId("chip");
    this.sideButton.addEventListener("click", () => this.openSide());
    byId("side-close").addEventListener("click", () => this.closeSide());
    byId("panel-close").addEventListener("click", () => this.setPanel(false, true));
    this.panelButton.addEventListener("click", () => this.setPanel(this.panel.hidden, true));
    this.backdrop.addEventListener("click", () => this.close());
    narrow.addEventListener("change", () => this.fit());
    medium.addEventListener("change", () => this.fit());
    this.fit();
  }

  /** As the window's width wants it. */
  fit() {
    this.side.hidden = narrow.matches;
    this.sideButton.ariaExpanded = "false";
    this.setPanel(!medium.matches && remembered("panel") === "open", false);
  }

  openSide() {
    if (!narrow.matches) return;
    this.side.hidden = false;
    this.sideButton.ariaExpanded = "true";
    this.cover();
    byId("side-close").focus();
  }

  closeSide() {
    if (!narrow.matches || this.side.hidden) return;
    this.side.hidden = true;
    this.sideButton.ariaExpanded = "false";
    this.cover();
    this.sideButton.focus();
  }

  /**
   * @param {boolean} isOpen
   * @param {boolean} isWish of the reader
   */
  setPanel(isOpen, isWish) {
    this.panel.hidden = !isOpen;
    this.app.dataset.panel = isOpen ? "open" : "closed";
    this.panelButton.ariaExpanded = String(isOpen);
    if (isWish && !medium.matches) remember("panel", isOpen ? "open" : "");
    this.cover();
    if (isWish) (isOpen && medium.matches ? byId("panel-close") : this.panelButton).focus();
    this.onPanel(isOpen);
  }

  /** Dims the chat below a drawer, and keeps the focus out of it. */
  cover() {
    const isSideOver = narrow.matches && !this.side.hidden;
    const isPanelOver = medium.matches && !this.panel.hidden;
    this.backdrop.hidden = !isSideOver && !isPanelOver;
    byId("main").inert = isSideOver || isPanelOver;
    this.panel.inert = isSideOver;
    this.side.inert = isPanelOver;
  }

  /** @returns {boolean} whether a drawer was over the chat */
  close() {
    if (this.backdrop.hidden) return false;
    if (narrow.matches && !this.side.hidden) this.closeSide();
    if (medium.matches && !this.panel.hidden) this.setPanel(false, true);
    return true;
  }
}
