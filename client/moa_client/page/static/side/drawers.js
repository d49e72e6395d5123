// List and panel: beside the chat where there is room, over it where there is not.

import { byId } from "../core/dom.js";
import { remember, remembered } from "../core/memory.js";

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
