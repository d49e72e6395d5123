// The connection of this tab: one conversation open, again after each loss.

import { readStatus } from "./api.js";
import { Socket } from "./socket.js";

/** @typedef {"connecting" | "open" | "gone" | "refused" | "locked"} ConnectionState */

/**
 * @typedef {object} ConnectionListener
 * @property {(message: any) => void} onMessage also `opened`
 * @property {(state: ConnectionState, error: {message: string, hint: string} | null) => void} onState
 */

const STARTING = ["unavailable", "overloaded"]; // errors that go away by themselves

export class Connection {
  /** @param {ConnectionListener} listener */
  constructor(listener) {
    this.listener = listener;
    /** @type {ConnectionState} */
    this.state = "connecting";
    /** @type {{conversation: string | null, system: string | null}} */
    this.wanted = { conversation: null, system: null };
    this.socket = new Socket("/moa/v1/conversation", {
      onConnected: () => this.askToOpen(),
      onMessage: (message) => this.take(message),
      onLost: () => this.explainLoss(),
    });
  }

  /**
   * Opens a conversation instead of the one that is open.
   * @param {string | null} conversation null: a new one
   * @param {string | null} system of a new one; null: the model's own
   */
  open(conversation, system = null) {
    this.wanted = { conversation, system };
    this.setState("connecting");
    this.socket.start();
  }

  /** Asks for the conversation, and for who writes its text. */
  askToOpen() {
    this.socket.send({ do: "open", ...this.wanted });
  }

  /**
   * @param {object} message
   * @returns {boolean} whether it was sent
   */
  send(message) {
    return this.state === "open" && this.socket.send(message);
  }

  /** Tries again now. */
  hurry() {
    if (this.state === "refused" || this.state === "locked") this.socket.start();
    else this.socket.hurry();
  }

  /** @param {any} message */
  take(message) {
    if (message.event === "opened") {
      this.wanted = { conversation: message.conversation || null, system: message.system };
      this.socket.settle();
      this.setState("open");
    } else if (message.event === "error" && this.state !== "open") {
      if (STARTING.includes(message.code)) {
        this.setState("connecting", message);
        setTimeout(() => this.state !== "open" && this.askToOpen(), 1000);
      } else {
        this.socket.stop();
        this.setState("refused", message);
      }
    }
    this.listener.onMessage(message);
  }

  /** A lost WebSocket does not say why, nor whether the daemon is there: a request does. */
  async explainLoss() {
    if (this.state === "open") this.setState("connecting");
    try {
      await readStatus();
      if (this.state === "gone") this.setState("connecting");
    } catch (error) {
      const { status } = /** @type {any} */ (error);
      if (this.state !== "connecting") return;
      if (status === 401) this.socket.stop();
      this.setState(status === 401 ? "locked" : "gone");
    }
  }

  /**
   * @param {ConnectionState} state
   * @param {{message: string, hint: string} | null} error
   */
  setState(state, error = null) {
    this.state = state;
    this.listener.onState(state, error);
  }
}
