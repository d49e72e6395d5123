import { byId, keepKey, readKey } from "./page.js";

// What the page asks over HTTP: the list of conversations, the link, files to save.


/** A request was refused (status), or nobody answers (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string} hint
   */
  constructor(status, message, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @returns {Promise<Response>}
 */
async function request(method, path) {
  const key = readKey();
  let response;
  try {
    response = await fetch(path, { method, headers: key ? { authorization: `Bearer ${key}` } : {} });
  } catch {
    throw unanswered();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const { message = `It was refused (${response.status}).`, hint = "" } = body?.error ?? {};
  throw new ApiError(response.status, message, hint);
}

/**
 * @param {string} method
 * @param {string} path
 * @returns {Promise<any>} the answer, whole: the daemon may end in the middle of it
 */
async function requestJson(method, path) {
  const response = await request(method, path);
  try {
    return await response.json();
  } catch {
    throw unanswered();
  }
}

function unanswered() {
  return new ApiError(0, "moa-client does not answer.", "Start it on this device: moa-client daemon start");
}

/**
 * @typedef {{id: string, title: string, updated: number, model: string, answers: number, unverified: number}} Kept
 */

/**
 * @param {string} search
 * @returns {Promise<Kept[]>}
 */
export async function listConversations(search) {
  const query = search ? `?search=${encodeURIComponent(search)}` : "";
  return (await requestJson("GET", `/moa/v1/conversations${query}`)).conversations;
}

/** @returns {Promise<any>} the state of the link, as GET /moa/v1/status has it */
export async function readStatus() {
  return requestJson("GET", "/moa/v1/status");
}

/**
 * @param {boolean} isOffline
 * @returns {Promise<any>} the state after it
 */
export async function setOffline(isOffline) {
  return requestJson("POST", isOffline ? "/moa/v1/offline" : "/moa/v1/online");
}

const OPEN_ELSEWHERE = 409;
const TRIES = 8; // the daemon may not have noticed yet that this page has left the conversation

/**
 * @param {string} id of a conversation that this page has left
 * @returns {Promise<void>}
 */
export async function deleteConversation(id) {
  for (let tries = 1; ; tries += 1) {
    try {
      await request("DELETE", `/moa/v1/conversations/${encodeURIComponent(id)}`);
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== OPEN_ELSEWHERE || tries === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50 * tries));
    }
  }
}

/**
 * Has the browser save a conversation as a file.
 * @param {string} id
 * @param {"markdown" | "json"} form
 */
export async function saveConversation(id, form) {
  const response = await request("GET", `/moa/v1/conversations/${encodeURIComponent(id)}/export?format=${form}`);
  const named = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = named?.[1] ?? "conversation";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Asks for the key that the page must show.


/** @param {() => void} onKey */
export function askForKey(onKey) {
  const dialog = byId("key");
  if (dialog.open) return;
  const field = byId("key-field");
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  dialog.addEventListener(
    "close",
    () => {
      if (dialog.returnValue !== "use") return;
      keepKey(field.value.trim());
      onKey();
    },
    { once: true },
  );
}
