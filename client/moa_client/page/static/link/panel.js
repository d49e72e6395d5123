import { counted, draftedWords, linkWords, standaloneWords } from "../chat/words.js";
import { ApiError, readStatus, setOffline } from "../core/api.js";
import { byId, setText } from "../core/page.js";
import { Timeline } from "./picture.js";

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

// The figures on the panel: of the link, and of the newest answer.


const NONE = "–";

/** @param {number | undefined} bytes */
export function bytesWords(bytes) {
  if (bytes === undefined) return NONE;
  if (bytes < 1000) return `${Math.round(bytes)} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** @param {number | null | undefined} ms */
function roundTripWords(ms) {
  if (ms === null || ms === undefined) return NONE;
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

/**
 * @param {string} state
 * @param {boolean} wantsOnline
 */
function chipWords(state, wantsOnline) {
  if (state === "gone") return "not running";
  return state === "offline" && wantsOnline ? "server away" : state;
}

/** @param {import("../chat/conversation.js").Conversation} conversation */
function uncheckedWords({ uncheckedWords: words, uncheckedAnswers: answers }) {
  if (words) return counted(words, "word");
  return answers ? counted(answers, "answer") : "nothing";
}

/** @param {string} text */
function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * @param {any} link its state, with the newest answer's figures where a conversation is open
 * @param {any} daemon as GET /moa/v1/status has it; null: not known
 * @param {import("../chat/conversation.js").Conversation} conversation
 */
export function showFigures(link, daemon, conversation) {
  const { facts } = conversation;
  const wantsOnline = daemon?.wants_online ?? true;
  const { state } = link;
  byId("link-state").dataset.state = state;
  setText(byId("link-words"), linkWords(state, wantsOnline));
  byId("chip").dataset.state = state;
  setText(byId("chip-text"), chipWords(state, wantsOnline));
  byId("offline").ariaChecked = String(!wantsOnline);
  byId("offline").disabled = state === "gone" || !daemon; // nobody would do it
  setText(byId("f-rtt"), roundTripWords(link.rtt_ms));
  byId("speed-words").hidden = !link.tokens_per_s;
  setText(byId("speed"), (link.tokens_per_s ?? 0).toFixed(1));
  setText(byId("speed-drafted"), link.tokens_per_s ? `${capitalized(draftedWords(link.by_server, link.by_device))}.` : "No answer yet.");
  setText(byId("f-up"), bytesWords(link.up_bytes));
  setText(byId("f-down"), bytesWords(link.down_bytes));
  setText(byId("f-memory"), bytesWords(link.memory_bytes));
  setText(byId("f-waiting"), uncheckedWords(conversation));
  setText(byId("f-standalone"), link.written_standalone ? standaloneWords(link.written_standalone, link.kept, link.undecided) : "nothing");
  setText(byId("f-model"), facts.target || daemon?.target || NONE);
  setText(byId("f-server"), link.server || NONE);
  setText(byId("f-drafter"), facts.drafter || daemon?.drafter || "none");
  byId("f-drafter").title = facts.drafter_reason ?? "";
  setText(byId("f-writer"), facts.standalone || daemon?.standalone || "the same");
  setText(byId("f-level"), levelWords(facts.level || daemon?.level, facts.exact ?? daemon?.exact));
  setText(byId("f-version"), daemon?.version ?? NONE);
}

/**
 * @param {string} level
 * @param {boolean} isExact
 */
function levelWords(level, isExact) {
  if (!level) return NONE;
  return isExact ? `${level}, exact` : `${level}, the text may depend on drafts`;
}

// What the picture of the link shows, in words.



/**
 * @param {Crossing[]} crossings
 * @param {number} seconds
 * @param {boolean} isAway the server, now
 * @returns {string}
 */
export function summary(crossings, seconds, isAway) {
  const away = isAway ? " The server is away." : "";
  if (crossings.length === 0) return `Nothing has crossed the link in the last ${counted(seconds, "second")}.${away}`;
  const of = (/** @type {string} */ kind) => crossings.filter((each) => each.kind === kind);
  const sum = (/** @type {Crossing[]} */ some, /** @type {"tokens" | "accepted" | "server_accepted" | "bytes"} */ what) =>
    some.reduce((total, each) => total + each[what], 0);
  const [drafts, verdicts] = [of("draft"), of("verdict")];
  const parts = [];
  if (drafts.length) parts.push(`${counted(drafts.length, "draft")} with ${counted(sum(drafts, "tokens"), "token")}`);
  if (verdicts.length) {
    const brought = `${counted(verdicts.length, "verdict")} with ${counted(sum(verdicts, "tokens"), "token")}`;
    parts.push(`${brought}, ${drafted(sum(verdicts, "server_accepted"), sum(verdicts, "accepted"))}`);
  }
  const up = sum(crossings.filter((each) => each.way === "up"), "bytes");
  const down = sum(crossings, "bytes") - up;
  const what = parts.length ? `${parts.join("; ")}; ` : "";
  return `In the last ${counted(seconds, "second")}: ${what}${bytesWords(up)} up, ${bytesWords(down)} down.${away}`;
}

/**
 * @param {number} server of some tokens, how many it has drafted
 * @param {number} device
 */
function drafted(server, device) {
  if (server && device) return `${server} of them drafted by the server, ${device} here`;
  if (server) return `${server} of them drafted by the server`;
  return device ? `${device} of them drafted here` : "none of them drafted";
}

// The panel beside the chat: figures, the switch to go offline, and what crosses the link.


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
