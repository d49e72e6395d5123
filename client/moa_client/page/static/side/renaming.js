// Renames a conversation that is not open, over a connection of its own.

import { ApiError } from "../core/api.js";
import { Socket } from "../core/socket.js";

const TRY_MS = 10_000;

/**
 * @param {string} conversation
 * @param {string} title
 * @returns {Promise<void>}
 */
export function rename(conversation, title) {
  return new Promise((resolve, reject) => {
    const end = (/** @type {() => void} */ settle) => {
      clearTimeout(timer);
      socket.stop();
      settle();
    };
    const refuse = (/** @type {string} */ message, /** @type {string} */ hint) => end(() => reject(new ApiError(0, message, hint)));
    const socket = new Socket("/moa/v1/conversation", {
      onConnected: () => socket.send({ do: "open", conversation, system: null }),
      onMessage: (message) => {
        if (message.event === "opened") socket.send({ do: "title", title });
        else if (message.event === "titled") end(resolve);
        else if (message.event === "error") refuse(message.message, message.hint);
      },
      onLost: () => {},
    });
    const timer = setTimeout(() => refuse("It was not renamed: moa-client does not answer.", "Try it again."), TRY_MS);
    socket.start();
  });
}
