// A block of code with its language and a button that copies it.

import { colourCode } from "./code_colours.js";
import { copyText } from "./copy.js";
import { Section } from "./sections.js";

/**
 * @param {string} content with marks
 * @param {string} info what stands after the fence
 * @param {Section} section
 * @returns {HTMLElement}
 */
export function codeBlock(content, info, section) {
  const language = /[\w+#.-]+/.exec(info)?.[0] ?? "";
  const block = document.createElement("div");
  block.className = "code";
  block.dir = "ltr";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || "code";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button small";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the code");
  head.append(name, button);
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // it scrolls
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const code = document.createElement("code");
  section.append(code, content.replace(/\n$/, ""));
  colourCode(code, language);
  pre.append(code);
  block.append(head, pre);
  button.addEventListener("click", () => copyText(code.textContent ?? "", button));
  return block;
}
