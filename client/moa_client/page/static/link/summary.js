// What the picture of the link shows, in words.

import { counted } from "../chat/words.js";
import { bytesWords } from "./figures.js";

/** @typedef {import("./crossings.js").Crossing} Crossing */

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
