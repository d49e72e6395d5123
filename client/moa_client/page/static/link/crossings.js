// What has crossed the link in the last half minute. It shows nothing.

/**
 * @typedef {{t: number, way: "up" | "down", kind: string, bytes: number, tokens: number, accepted: number,
 *   server_accepted: number}} Crossing
 */

export const KEPT_MS = 40_000;

export class Crossings {
  constructor() {
    /** @type {Crossing[]} by the page's clock, oldest first */
    this.all = [];
    /** @type {{t: number, isAway: boolean}[]} */
    this.states = [];
    this.offset = Infinity; // of the page's clock: what came fastest says most about it
  }

  /** The clock of the messages may be another one. */
  reset() {
    this.offset = Infinity;
  }

  /**
   * @param {Crossing} crossing by the daemon's clock
   * @param {number} now by the page's, in milliseconds
   */
  add(crossing, now) {
    this.offset = Math.min(this.offset, now - crossing.t);
    this.all.push({ ...crossing, t: crossing.t + this.offset });
    const old = this.all.findIndex((each) => each.t > now - KEPT_MS);
    if (old > 1000 || (old > 0 && this.all.length > 4 * 1024)) this.all.splice(0, old);
  }

  /**
   * @param {boolean} isAway the server
   * @param {number} now
   */
  setAway(isAway, now) {
    if ((this.states.at(-1)?.isAway ?? false) === isAway) return;
    this.states.push({ t: now, isAway });
    if (this.states.length > 100) this.states.shift();
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  between(from, to) {
    return this.all.filter((each) => each.t >= from && each.t <= to);
  }

  /**
   * Stretches without a server.
   * @param {number} to
   * @returns {[number, number][]}
   */
  outages(to) {
    return this.states.flatMap(({ t, isAway }, index) =>
      isAway ? [/** @type {[number, number]} */ ([t, this.states[index + 1]?.t ?? to])] : [],
    );
  }
}
