import { Socket } from "../core/connection.js";
import { byId, setText } from "../core/page.js";
import { Crossings, summary } from "./panel.js";

// The live picture of the link: keeps what has crossed it, and has it drawn as long as somebody can see it.


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

  /** @param {import("./panel.js").Crossing} crossing */
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

// Draws messages that cross the link: time runs down, this device is the rail at the left, the server that at the right.
// A message is a line as steep as half a round trip, at the time at which each end has seen it.

/** @typedef {import("./panel.js").Crossings} Crossings */
/** @typedef {import("./panel.js").Crossing} Crossing */

const RAIL_PX = 28; // from the edge, with room for numbers
const LABEL_PX = 13; // between two numbers
const KINDS = ["draft", "verdict", "memory"];
/** @type {Record<string, {width: number, dash: number[]}>} lines differ by more than their colours */
const LINES = {
  draft: { width: 1.25, dash: [] },
  verdict: { width: 1.75, dash: [] },
  memory: { width: 1, dash: [2, 2] },
  other: { width: 1, dash: [1, 3] },
};

export class Picture {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} legend its items have the colours
   */
  constructor(canvas, legend) {
    this.canvas = canvas;
    this.legend = legend;
    /** @type {Record<string, string>} */
    this.colours = {};
  }

  /** Reads the colours again. */
  recolour() {
    this.colours = {};
    for (const item of this.legend.children) {
      this.colours[/** @type {HTMLElement} */ (item).dataset.kind ?? ""] = getComputedStyle(item, "::before").color;
    }
    const style = getComputedStyle(this.canvas);
    Object.assign(this.colours, { ink: style.color, rail: style.borderInlineStartColor, away: style.outlineColor });
    this.font = `11px ${style.fontFamily}`;
  }

  /**
   * @param {Crossings} crossings
   * @param {number} end the newest moment, at the lower edge
   * @param {number} spanMs from the upper edge
   * @param {number | null} rttMs
   */
  draw(crossings, end, spanMs, rttMs) {
    if (!this.colours.ink) this.recolour();
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const pen = this.prepare(width, height);
    if (!pen || !width) return;
    const start = end - spanMs;
    const y = (/** @type {number} */ t) => (height * (t - start)) / spanMs;
    this.shadeOutages(pen, crossings, start, end, y, width);
    this.ticks(pen, spanMs, y, start, end, width);
    const half = (rttMs ?? 0) / 2;
    const shown = crossings.between(start - half, end + half);
    for (const kind of ["other", ...KINDS]) {
      this.lines(pen, shown.filter((each) => (KINDS.includes(each.kind) ? each.kind : "other") === kind), kind, half, y, width);
    }
    this.rails(pen, width, height);
    this.counts(pen, shown.filter((each) => each.kind === "verdict" && each.t <= end), y);
  }

  /**
   * @param {number} width
   * @param {number} height
   */
  prepare(width, height) {
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
    const pen = this.canvas.getContext("2d");
    pen?.setTransform(scale, 0, 0, scale, 0, 0);
    pen?.clearRect(0, 0, width, height);
    return pen;
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {Crossing[]} crossings of one kind
   * @param {string} kind
   * @param {number} half of a round trip, in milliseconds
   * @param {(t: number) => number} y
   * @param {number} width
   */
  lines(pen, crossings, kind, half, y, width) {
    const line = LINES[kind];
    pen.strokeStyle = this.colours[kind];
    pen.lineWidth = line.width;
    pen.setLineDash(line.dash);
    pen.beginPath();
    for (const { t, way } of crossings) {
      pen.moveTo(RAIL_PX, y(t));
      pen.lineTo(width - RAIL_PX, y(way === "up" ? t + half : t - half));
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {number} width
   * @param {number} height
   */
  rails(pen, width, height) {
    pen.strokeStyle = this.colours.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const x of [RAIL_PX, width - RAIL_PX]) {
      pen.moveTo(x, 0);
      pen.lineTo(x, height);
    }
    pen.stroke();
  }

  /**
   * How many tokens verdicts have brought, where there is room.
   * @param {CanvasRenderingContext2D} pen
   * @param {Crossing[]} verdicts
   * @param {(t: number) => number} y
   */
  counts(pen, verdicts, y) {
    pen.font = this.font ?? "11px sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    let [last, tokens] = [-Infinity, 0];
    for (const verdict of verdicts) {
      const place = y(verdict.t);
      tokens += verdict.tokens;
      pen.fillStyle = verdict.accepted ? this.colours.draft : this.colours.verdict;
      pen.beginPath();
      pen.arc(RAIL_PX, place, 2.5, 0, 2 * Math.PI);
      pen.fill();
      if (place - last < LABEL_PX) continue;
      pen.fillStyle = this.colours.ink;
      pen.fillText(String(tokens), RAIL_PX - 7, place);
      [last, tokens] = [place, 0];
    }
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {number} spanMs
   * @param {(t: number) => number} y
   * @param {number} start
   * @param {number} end
   * @param {number} width
   */
  ticks(pen, spanMs, y, start, end, width) {
    const step = spanMs / 5;
    pen.strokeStyle = this.colours.rail;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let t = Math.ceil(start / step) * step; t <= end; t += step) {
      pen.moveTo(RAIL_PX, Math.round(y(t)) + 0.5);
      pen.lineTo(width - RAIL_PX, Math.round(y(t)) + 0.5);
    }
    pen.stroke();
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {Crossings} crossings
   * @param {number} start
   * @param {number} end
   * @param {(t: number) => number} y
   * @param {number} width
   */
  shadeOutages(pen, crossings, start, end, y, width) {
    pen.font = this.font ?? "11px sans-serif";
    for (const [from, to] of crossings.outages(end)) {
      const [top, bottom] = [y(Math.max(from, start)), y(Math.min(to, end))];
      if (bottom <= top) continue;
      pen.globalAlpha = 0.14;
      pen.fillStyle = this.colours.away;
      pen.fillRect(RAIL_PX, top, width - 2 * RAIL_PX, bottom - top);
      pen.globalAlpha = 1;
      if (bottom - top < 2 * LABEL_PX) continue;
      pen.fillStyle = this.colours.ink;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText("the server is away", width / 2, (top + bottom) / 2);
    }
  }
}
