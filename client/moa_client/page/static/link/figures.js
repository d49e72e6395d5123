// The figures on the panel: of the link, and of the newest answer.

import { byId, setText } from "../core/dom.js";
import { standaloneWords, counted, draftedWords, linkWords } from "../chat/words.js";

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
