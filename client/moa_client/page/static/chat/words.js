// The states of answers and of the link, in words. It shows nothing.

/** @typedef {import("./answer.js").Answer} Answer */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("../core/connection.js").ConnectionState} ConnectionState */
/** @typedef {{kind: "none" | "calm" | "away" | "bad", text: string, action?: {name: string, label: string}}} Said */

/**
 * @param {number} count
 * @param {string} noun in the singular
 */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * What stands below an answer.
 * @param {Answer} answer
 * @param {string} linkState
 * @returns {Said & {offer?: string}} offer: what the button says that has this device write
 */
export function answerWords(answer, linkState) {
  const { failure, settled } = answer;
  const words = answer.uncheckedWords;
  if (failure?.kind === "refused") return bad(`The server does not check this answer: ${failure.message} ${failure.hint}`);
  if (failure) return bad(`${failure.message} ${failure.hint}`);
  if (answer.isRunning) return runningWords(answer, words, linkState);
  if (answer.isUnsettled && answer.finish === "unfinished") {
    if (answer.text) return away("Not finished: it goes on when the server is back.");
    return { ...away(UNREAD), offer: linkState === "offline" ? "Write anyway" : "" };
  }
  if (answer.isUnsettled) {
    const what = words ? counted(words, "word") : "This answer";
    return away(`${what} not checked yet: the server does so when it is back.`);
  }
  if (answer.callsLeft !== null) return calm(answer.callsLeft || "Stopped before its calls were answered.");
  if (settled) return calm(SETTLED[settled.outcome]?.(settled) ?? "");
  return FINISHES[answer.finish] ? calm(FINISHES[answer.finish]) : withdrawnWords(answer);
}

/**
 * @param {Answer} answer
 * @param {number} words
 * @param {string} linkState
 * @returns {Said & {offer?: string}} offer: what the button says that has this device write
 */
function runningWords(answer, words, linkState) {
  if (answer.heldBack === "unread") {
    return { ...away(UNREAD), offer: "Write anyway" };
  }
  if (answer.heldBack) {
    const text = "Waiting for the server: what this device would write next is unlikely to be right.";
    return { ...away(text), offer: "Write on anyway" };
  }
  if (words && linkState === "back") return away(`The server checks ${counted(words, "word")}.`);
  if (words) return away(`${counted(words, "word")} by this device, not checked yet.`);
  return withdrawnWords(answer);
}

/**
 * @param {Answer} answer
 * @returns {Said}
 */
function withdrawnWords({ withdrawn }) {
  return withdrawn ? calm(`The server has replaced ${withdrawn} tokens of this device.`) : { kind: "none", text: "" };
}

const UNREAD =
  "No server has read this question: it is answered when one is back. What this device would write by itself is much worse.";

/** @type {Record<string, (settled: {written: number, kept: number}) => string>} */
const SETTLED = {
  confirmed: () => "Checked: all of it is what the server says.",
  completed: () => "Checked, and completed by the server.",
  corrected: ({ written, kept }) => `Corrected by the server: ${kept} of ${counted(written, "token")} of this device were right.`,
};

/** @type {Record<string, string>} */
const FINISHES = {
  max_tokens: "It ends here because it has as many tokens as the options allow.",
  context: "It ends here because the conversation fills the model’s context. Begin a new one.",
  loop: "The answer only repeated itself, so it was ended. Without the loop guard of the options it would go on.",
  cancelled: "Stopped.",
};

/**
 * Who drafted an answer, as the chat says it.
 * @param {number} byServer share of its tokens
 * @param {number} byDevice
 */
export function draftedWords(byServer, byDevice) {
  const [server, device] = [Math.round(100 * byServer), Math.round(100 * byDevice)];
  if (server && device) return `${server + device} % drafted: ${server} % by the server, ${device} % here`;
  if (server) return `${server} % drafted by the server`;
  return device ? `${device} % drafted here` : "not drafted";
}

/**
 * How much was written without a server, and how much of it was right, as the chat says it.
 * @param {number} written tokens
 * @param {number} kept
 * @param {number} undecided
 */
export function standaloneWords(written, kept, undecided) {
  if (undecided === written) return `${written}, not checked yet`;
  return `${written}, ${kept} kept${undecided ? `, ${undecided} not checked yet` : ""}`;
}

/**
 * What is said of an answer's reasoning, which is folded away.
 * @param {Answer} answer
 * @param {string} reasoning
 * @param {boolean} isThinking it goes on
 */
export function thoughtWords(answer, reasoning, isThinking) {
  const words = reasoning.match(/\S+/g)?.length ?? 0;
  const much = answer.isCounted && answer.split.tokens ? counted(answer.split.tokens, "token") : counted(words, "word");
  return isThinking && answer.isRunning ? `Thinking … ${much}` : `Thought, ${much}`;
}

/**
 * What an answer has cost.
 * @param {Answer} answer
 */
export function costWords(answer) {
  const parts = [];
  const { figures, options } = answer;
  if (figures?.tokens && figures.seconds) {
    const tokens = figures.tokens + (figures.undecided ?? 0);
    parts.push(counted(tokens, "token"), `${(tokens / figures.seconds).toFixed(1)} a second`);
    parts.push(draftedWords(figures.server_accepted / figures.tokens, figures.accepted / figures.tokens));
    if (figures.written_standalone) parts.push(`standalone ${standaloneWords(figures.written_standalone, figures.kept, figures.undecided ?? 0)}`);
  }
  if (options?.temperature) parts.push(`temperature ${options.temperature}, seed ${options.seed}`);
  return parts.join(" · ");
}

/**
 * What a screen reader says when an answer is over.
 * @param {Answer} answer
 * @param {string} linkState
 */
export function endWords(answer, linkState) {
  return `${answer.settled ? `Answer ${answer.number}.` : "End of the answer."} ${answerWords(answer, linkState).text}`;
}

/** @type {Record<string, string>} */
const LINK = {
  good: "The link is good",
  slow: "The link is slow",
  offline: "The server is away",
  back: "The server is back",
  waiting: "The server lets you wait",
  gone: "moa-client does not run",
};

/**
 * The state of the link on the panel.
 * @param {string} state
 * @param {boolean} wantsOnline
 */
export function linkWords(state, wantsOnline) {
  if (state === "offline" && !wantsOnline) return "Offline, as requested";
  return LINK[state] ?? "Connecting";
}

/**
 * The line above the field: the one thing that matters most now.
 * @param {ConnectionState} connection
 * @param {{message: string, hint: string} | null} refusal
 * @param {Conversation} conversation
 * @param {boolean} wantsOnline
 * @returns {Said}
 */
export function noticeWords(connection, refusal, conversation, wantsOnline) {
  const again = { name: "hurry", label: "Try now" };
  if (connection === "locked") return { ...bad("This page needs its key."), action: { name: "key", label: "Enter it" } };
  if (connection === "refused") {
    const text = `${refusal?.message ?? "The conversation cannot be opened."} ${refusal?.hint ?? ""}`;
    return { ...bad(text), action: { name: "new", label: "New conversation" } };
  }
  if (connection === "gone") {
    const text = "moa-client does not run on this device any more. Trying again; nothing that you have typed is lost.";
    return { ...bad(text), action: again };
  }
  if (connection === "connecting") return calm(refusal ? `${refusal.message} ${refusal.hint}` : "Connecting …");
  if (conversation.wanted) return calm(`Asking for ${conversation.wanted} …`);
  if (conversation.failure) {
    return { ...bad(`${conversation.failure.message} ${conversation.failure.hint}`), action: { name: "online", label: "Try again" } };
  }
  if (conversation.otherModel) return away(conversation.otherModel);
  return linkNotice(conversation, wantsOnline);
}

/**
 * @param {Conversation} conversation
 * @param {boolean} wantsOnline
 * @returns {Said}
 */
function linkNotice(conversation, wantsOnline) {
  const { status, running, reason } = conversation;
  const { companion, target } = conversation.facts;
  const words = conversation.uncheckedWords;
  if (status?.state === "back" && words) return calm(`The server is back and checks ${counted(words, "word")}.`);
  if (status?.state === "waiting") return away(waitingWords(reason, conversation.waitSeconds(performance.now())));
  if (status?.state !== "offline") return { kind: "none", text: "" };
  if (!wantsOnline) {
    const writes = companion ? `${companion} writes.` : `the small model on this device writes, much worse than ${target}.`;
    const what = (running ? !running.heldBack : companion) ? writes : "questions wait for the server.";
    return { ...away(`You are offline: ${what}`), action: { name: "online", label: "Go online" } };
  }
  const why = reason ? ` (${reason.replace(/[.\s]+$/, "")})` : "";
  if (running && !running.heldBack) return away(`The server is away${why}. This device writes on; that text is not checked yet.`);
  if (running) return away(`Waiting for the server${why}.`);
  if (companion) return away(`The server is away${why}. You can ask: ${companion} on this device answers until it is back.`);
  return away(`The server is away${why}. You can ask: the answer comes when it is back.`);
}

/** @param {string} reason @param {number} seconds */
function waitingWords(reason, seconds) {
  const why = reason ? reason.replace(/[.\s]+$/, "") : "The server lets you wait";
  return `${why}; the answer resumes in ${seconds} s.`;
}

/** @param {string} text @returns {Said} */
const calm = (text) => ({ kind: "calm", text });
/** @param {string} text @returns {Said} */
const away = (text) => ({ kind: "away", text });
/** @param {string} text @returns {Said} */
const bad = (text) => ({ kind: "bad", text });
