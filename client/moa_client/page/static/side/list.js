import { named } from "../chat/composer.js";
import { ApiError, listConversations } from "../core/api.js";
import { Socket } from "../core/connection.js";
import { byId, fromTemplate, setText } from "../core/page.js";

// When something was, as one says it: its day, and when on that day.

const MINUTE = 60_000;
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const weekday = new Intl.DateTimeFormat("en", { weekday: "long" });
const month = new Intl.DateTimeFormat("en", { month: "long", year: "numeric" });
const date = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

/** @param {number} now @param {number} days */
const midnight = (now, days) => new Date(new Date(now).setHours(0, 0, 0, 0)).setDate(new Date(now).getDate() - days);

/**
 * The day, or the month if it is a week ago.
 * @param {number} then in milliseconds since 1970
 * @param {number} now
 * @returns {string}
 */
export function dayWords(then, now) {
  if (then >= midnight(now, 0)) return "Today";
  if (then >= midnight(now, 1)) return "Yesterday";
  return then >= midnight(now, 6) ? weekday.format(then) : month.format(then);
}

/**
 * When it was on that day, or in that month.
 * @param {number} then in milliseconds since 1970
 * @param {number} now
 * @returns {string}
 */
export function whenWords(then, now) {
  if (now - then < MINUTE) return "now";
  if (now - then < 60 * MINUTE) return `${Math.floor((now - then) / MINUTE)} min ago`;
  return then >= midnight(now, 6) ? clock.format(then) : date.format(then);
}

// Renames a conversation that is not open, over a connection of its own.


const TRY_MS = 10_000;

/**
 * @param {string} conversation
 * @param {string} title
 * @returns {Promise<void>}
 */
export function rename(conversation, title) {
  return new Promise((resolve, reject) => {
    const end = (/** @type {() => void} */ settle) => {
      clearTimeout(timer);
      socket.stop();
      settle();
    };
    const refuse = (/** @type {string} */ message, /** @type {string} */ hint) => end(() => reject(new ApiError(0, message, hint)));
    const socket = new Socket("/moa/v1/conversation", {
      onConnected: () => socket.send({ do: "open", conversation, system: null }),
      onMessage: (message) => {
        if (message.event === "opened") socket.send({ do: "title", title });
        else if (message.event === "titled") end(resolve);
        else if (message.event === "error") refuse(message.message, message.hint);
      },
      onLost: () => {},
    });
    const timer = setTimeout(() => refuse("It was not renamed: moa-client does not answer.", "Try it again."), TRY_MS);
    socket.start();
  });
}

// The list of conversations at the side.


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
