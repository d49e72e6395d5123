// The live picture of the link: keeps what has crossed it, and has it drawn as long as somebody can see it.

import { byId, setText } from "../core/dom.js";
import { Socket } from "../core/socket.js";
import { Crossings } from "./crossings.js";
import { Picture } from "./picture.js";
import { summary } from "./summary.js";

const WORDS_EVERY_MS = 2000;
const EVERY_MS = 66; // the drafter needs this device's processor more than the picture does
const STILL_EVERY_MS = 2000; // for those who want no motion
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Timeline {
  constructor() {
    this.crossings = new Crossings();
    this.picture = new Picture(byId("timeline"), byId("legend"));
    this.button = byId("timeline-pause");
    this.ago = byId("timeline-ago");
    this.words = byId("timeline-words");
    this.spanMs = 3000;
    /** @type {number | null} when it was paused */
    this.pausedAt = null;
    /** @type {number | null} */
    this.rttMs = null;
    this.isAway = false;
    this.isOpen = false;
    this.frame = 0;
    this.drawnAt = -Infinity;
    this.newest = -Infinity;
    this.socket = new Socket("/moa/v1/timeline", {
      onConnected: () => this.crossings.reset(),
      onMessage: (crossing) => this.add(crossing),
      onLost: () => {},
    });
    this.button.addEventListener("click", () => this.setPaused(this.pausedAt === null));
    this.ago.addEventListener("input", () => this.redraw());
    for (const radio of document.querySelectorAll("input[name=span]")) {
      radio.addEventListener("change", () => this.setSpan(1000 * Number(/** @type {any} */ (radio).value)));
    }
    document.addEventListener("visibilitychange", () => this.watch());
    new ResizeObserver(() => this.redraw()).observe(byId("timeline"));
    setInterval(() => this.isWatched && this.pausedAt === null && this.say(), WORDS_EVERY_MS);
  }

  get isWatched() {
    return this.isOpen && document.visibilityState === "visible";
  }

  /** @param {boolean} isOpen the panel */
  setOpen(isOpen) {
    this.isOpen = isOpen;
    this.watch();
  }

  /** Listens while somebody looks, and only then. */
  watch() {
    if (this.isWatched && !this.socket.isWanted) this.socket.start();
    else if (!this.isWatched && this.socket.isWanted) this.socket.stop();
    this.redraw();
  }

  /**
   * @param {string} state of the link
   * @param {number | null} rttMs
   */
  setLink(state, rttMs) {
    this.rttMs = rttMs;
    this.isAway = state === "offline";
    this.crossings.setAway(this.isAway, performance.now());
    this.animate();
  }

  /** @param {import("./crossings.js").Crossing} crossing */
  add(crossing) {
    this.socket.settle();
    this.newest = performance.now();
    this.crossings.add(crossing, this.newest);
    this.animate();
  }

  /** @param {number} ms */
  setSpan(ms) {
    this.spanMs = ms;
    this.redraw();
  }

  /** @param {boolean} isPaused */
  setPaused(isPaused) {
    this.pausedAt = isPaused ? performance.now() : null;
    this.button.ariaPressed = String(isPaused);
    byId("timeline-back").hidden = !isPaused;
    this.ago.value = "0";
    this.redraw();
  }

  /** The newest moment that is shown. */
  get end() {
    return this.pausedAt === null ? performance.now() : this.pausedAt - 1000 * Number(this.ago.value);
  }

  /** Draws from now on, until nothing moves any more. */
  animate() {
    if (this.frame || !this.isWatched || this.pausedAt !== null) return;
    const everyMs = calm.matches ? STILL_EVERY_MS : EVERY_MS;
    this.frame = setTimeout(() => {
      this.frame = 0;
      if (this.pausedAt === null) this.redraw();
      if (performance.now() - this.newest < this.spanMs + 1000 || this.isAway) this.animate();
    }, Math.max(0, this.drawnAt + everyMs - performance.now()));
  }

  redraw() {
    if (!this.isWatched) return;
    this.drawnAt = performance.now();
    this.picture.draw(this.crossings, this.end, this.spanMs, this.rttMs);
    if (this.pausedAt !== null) this.say();
  }

  say() {
    const { end, spanMs } = this;
    setText(this.words, summary(this.crossings.between(end - spanMs, end), spanMs / 1000, this.isAway));
  }

  /** The colours have changed. */
  recolour() {
    this.picture.recolour();
    this.redraw();
  }
}
