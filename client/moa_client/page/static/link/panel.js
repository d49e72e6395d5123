// The panel beside the chat: figures, the switch to go offline, and what crosses the link.

import { ApiError, readStatus, setOffline } from "../core/api.js";
import { byId } from "../core/dom.js";
import { showFigures } from "./figures.js";
import { Timeline } from "./timeline.js";

const GONE = { state: "gone", rtt_ms: null };
const EVERY_MS = 5000;
const SHOWN_EVERY_MS = 250; // figures that change faster cannot be read

export class Panel {
  /**
   * @param {() => import("../chat/conversation.js").Conversation} conversation the open one
   * @param {(wantsOnline: boolean) => void} onWish
   * @param {(text: string) => void} say why something was refused
   */
  constructor(conversation, onWish, say) {
    this.conversation = conversation;
    this.onWish = onWish;
    this.say = say;
    /** @type {any} */
    this.daemon = null;
    this.isGone = false; // the daemon: what it has said last is no longer so
    this.timer = 0;
    this.timeline = new Timeline();
    byId("offline").addEventListener("click", () => this.wish(this.wantsOnline));
    setInterval(() => document.visibilityState === "visible" && this.read(), EVERY_MS);
    this.read();
  }

  get wantsOnline() {
    return this.daemon?.wants_online ?? true;
  }

  /** Shows what the conversation says, soon. */
  refresh() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, SHOWN_EVERY_MS);
  }

  draw() {
    const conversation = this.conversation();
    const status = this.isGone ? GONE : conversation.status;
    showFigures(status, this.daemon, conversation);
    const link = status ?? this.daemon;
    this.timeline.setLink(link?.state ?? "", link?.rtt_ms ?? null);
  }

  /** Reads the state of the link. */
  async read() {
    try {
      this.take(await readStatus());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the connection says it
    }
  }

  /** @param {boolean} isOffline wanted */
  async wish(isOffline) {
    try {
      this.take(await setOffline(isOffline));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.say(`${error.message} ${error.hint}`);
    }
  }

  /** @param {any} status of the daemon */
  take(status) {
    this.daemon = status;
    this.draw();
    this.onWish(this.wantsOnline);
  }
}
