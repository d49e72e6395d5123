// The panel beside the chat: figures, the switch to go offline, and what crosses the link.

import { ApiError, readStatus, setOffline } from "../core/api.js";
import { byId } from "../core/dom.js";
import { showFigures } from "./figures.js";
import { Timeline } from "./timeline.js";

const EVERY_MS = 5000;
const SHOWN_EVERY_MS = 250; // figures that change faster cannot be read

export class Panel {
  /**
   * @param {() => import("../chat/conversation.js").Conversation} conversation the open one
   * @param {() => import("../core/connection.js").ConnectionState} connection
   * @param {(wantsOnline: boolean) => void} onWish
   * @param {(text: string) => void} say why something was refused
   */
  constructor(conversation, connection, onWish, say) {
    this.conversation = conversation;
    this.connection = connection;
    this.onWish = onWish;
    this.say = say;
    /** @type {any} */
    this.daemon = null;
    this.timer = 0;
    this.timeline = new Timeline();
    byId("offline").addEventListener("click", () => this.wish(this.wantsOnline));
    setInterval(() => document.visibilityState === "visible" && this.read(), EVERY_MS);
    this.read();
  }

  get wantsOnline() {
    return this.daemon?.wants_online ?? true;
  }

  /** The state of the link, as all of the page shows it: the open conversation says it, else the daemon does. */
  get link() {
    const connection = this.connection();
    if (connection === "gone") return { state: "gone" };
    return (connection === "open" && this.conversation().status) || this.daemon || { state: "connecting" };
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
    const { link } = this;
    showFigures(link, this.daemon, this.conversation());
    this.timeline.setLink(link.state, link.rtt_ms ?? null);
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
