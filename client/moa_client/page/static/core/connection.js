import { readStatus } from "./api.js";
import { readKey } from "./page.js";

// A WebSocket that connects again by itself, sooner if something hints that it can.


const FIRST_MS = 250;
const LONGEST_MS = 8000;
const CONNECT_MS = 10_000;

/**
 * @typedef {object} Listener
 * @property {() => void} onConnected
 * @property {(message: any) => void} onMessage
 * @property {() => void} onLost it tries again by itself
 */

export class Socket {
  /**
   * @param {string} path
   * @param {Listener} listener
   */
  constructor(path, listener) {
    this.path = path;
    this.listener = listener;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.isWanted = false;
    this.waitMs = FIRST_MS;
    this.timer = 0;
    const hurry = () => this.hurry();
    addEventListener("online", hurry);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && hurry());
  }

  /** Connects, and stays connected. Anew, if it is. */
  start() {
    this.stop();
    this.isWanted = true;
    this.connect();
  }

  stop() {
    this.isWanted = false;
    clearTimeout(this.timer);
    const old = this.socket;
    this.socket = null; // its events are of no interest any more
    old?.close();
  }

  /** What came back shows that all is well: the next loss is tried again at once. */
  settle() {
    this.waitMs = FIRST_MS;
  }

  /** Tries now, if it waits. */
  hurry() {
    if (!this.isWanted || this.socket) return;
    clearTimeout(this.timer);
    this.connect();
  }

  /**
   * @param {object} message
   * @returns {boolean} whether it was sent
   */
  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  connect() {
    const key = readKey();
    const url = new URL(this.path, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, key ? ["moa", `moa.key.${key}`] : []);
    this.socket = socket;
    const timeout = setTimeout(() => socket.close(), CONNECT_MS);
    socket.onopen = () => {
      clearTimeout(timeout);
      if (socket === this.socket) this.listener.onConnected();
    };
    socket.onmessage = (event) => {
      if (socket === this.socket) this.listener.onMessage(JSON.parse(event.data));
    };
    socket.onclose = () => {
      clearTimeout(timeout);
      if (socket !== this.socket) return;
      this.socket = null;
      this.timer = setTimeout(() => this.connect(), this.waitMs * (0.75 + Math.random() / 2));
      this.waitMs = Math.min(2 * this.waitMs, LONGEST_MS);
      this.listener.onLost();
    };
  }
}

// The connection of this tab: one conversation open, again after each loss.


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
