// A WebSocket that connects again by itself, sooner if something hints that it can.

import { readKey } from "./memory.js";

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
