// The list of conversations at the side.

import { named } from "../chat/files.js";
import { ApiError, listConversations } from "../core/api.js";
import { byId, fromTemplate, setText } from "../core/dom.js";
import { dayWords, whenWords } from "./when.js";

/** @typedef {import("../core/api.js").Kept} Kept */

const SOON_MS = 250;
const NOW_AND_THEN_MS = 30_000;

export class ConversationList {
  /**
   * @param {object} actions
   * @param {(id: string) => void} actions.open
   * @param {(conversation: Kept) => void} actions.manage
   */
  constructor(actions) {
    this.actions = actions;
    this.list = byId("conversations");
    this.found = byId("found");
    this.search = byId("search");
    this.current = "";
    /** @type {Kept[]} */
    this.shown = [];
    this.timer = 0;
    this.search.addEventListener("input", () => this.refreshSoon());
    this.list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.move(event));
    this.search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.move(event));
    document.addEventListener("visibilitychange", () => this.refreshSoon());
    setInterval(() => document.visibilityState === "visible" && this.refreshSoon(), NOW_AND_THEN_MS);
  }

  /** Reads the list again, once for all reasons that come together. */
  refreshSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), SOON_MS);
  }

  async refresh() {
    const search = this.search.value.trim();
    try {
      const conversations = await listConversations(search);
      if (search === this.search.value.trim()) this.draw(conversations, search);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status) setText(this.found, `${error.message} ${error.hint}`); // otherwise the page says it elsewhere
    }
  }

  /** @param {string} id of the conversation that is open */
  setCurrent(id) {
    this.current = id;
    for (const link of this.list.querySelectorAll("a")) mark(link, link.dataset.id === id);
  }

  /**
   * @param {Kept[]} conversations
   * @param {string} search
   */
  draw(conversations, search) {
    if (byId("manage").open) return; // the focus goes back to the button that opened it; then the list is read again
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.closest("#conversations li")?.querySelector("a")?.dataset.id;
    const wasMenu = document.activeElement?.matches("#conversations button");
    this.shown = conversations;
    this.list.replaceChildren(...this.days(conversations));
    const none = search ? "Nothing found." : "";
    setText(this.found, conversations.length ? (search ? `${conversations.length} found` : "") : none);
    if (!focused) return;
    const link = [...this.list.querySelectorAll("a")].find((each) => each.dataset.id === focused);
    (wasMenu ? link?.nextElementSibling : link)?.focus();
  }

  /**
   * @param {Kept[]} conversations the newest first
   * @returns {HTMLElement[]} a part for each day
   */
  days(conversations) {
    const now = Date.now();
    /** @type {Map<string, HTMLElement>} */
    const parts = new Map();
    for (const kept of conversations) {
      const day = dayWords(1000 * kept.updated, now);
      const part = parts.get(day) ?? fromTemplate("day-template");
      setText(part.querySelector("h2"), day);
      part.querySelector("ul").append(this.item(kept));
      parts.set(day, part);
    }
    return [...parts.values()];
  }

  /**
   * @param {Kept} kept
   * @returns {HTMLElement}
   */
  item(kept) {
    const item = fromTemplate("conversation-template");
    const [link, button] = [item.querySelector("a"), item.querySelector("button")];
    const title = named(kept.title) || "Conversation";
    link.href = `/?c=${encodeURIComponent(kept.id)}`;
    link.dataset.id = kept.id;
    mark(link, kept.id === this.current);
    setText(item.querySelector(".conversation-title"), title);
    const time = item.querySelector("time");
    time.dateTime = new Date(1000 * kept.updated).toISOString();
    setText(time, whenWords(1000 * kept.updated, Date.now()));
    const unverified = item.querySelector(".unverified");
    unverified.hidden = kept.unverified === 0;
    setText(unverified, `${kept.unverified} to be checked`);
    link.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // another tab or window is wanted
      event.preventDefault();
      this.actions.open(kept.id);
    });
    button.setAttribute("aria-label", `Rename, export or delete ${title}`);
    button.addEventListener("click", () => this.actions.manage(kept));
    return item;
  }

  /** @param {KeyboardEvent} event arrows move between conversations, and back to the search */
  move(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const stops = [this.search, ...this.list.querySelectorAll("a")];
    const item = /** @type {HTMLElement} */ (event.target).closest("li");
    const at = item ? stops.indexOf(item.querySelector("a")) : 0;
    const next = stops[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

/**
 * @param {HTMLElement} link
 * @param {boolean} isCurrent
 */
function mark(link, isCurrent) {
  if (isCurrent) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}
