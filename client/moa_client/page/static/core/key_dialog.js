// Asks for the key that the page must show.

import { byId } from "./dom.js";
import { keepKey } from "./memory.js";

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
