// Reads answers aloud where a screen reader listens: whole sentences, a few seconds' worth at a time, never single tokens.

import { byId } from "./dom.js";

const EVERY_MS = 2500;
const MOST_KEPT = 20;
const SENTENCE = /^[\s\S]*(?:[.!?:…。！？]["')\]]*\s+|\n+)/;
const MARKUP = /[*_`#>|~]+|\[([^\]]*)\]\([^)]*\)/g;

export class Announcer {
  constructor() {
    this.region = byId("announcer");
    this.waiting = ""; // committed text that was not read yet
    this.timer = 0;
  }

  /** @param {string} text committed text, as it comes */
  add(text) {
    this.waiting += text;
    if (!this.timer) this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  /** @param {string} words the final state of an answer, after all its text */
  end(words) {
    this.say(this.waiting);
    this.waiting = "";
    clearTimeout(this.timer);
    this.timer = 0;
    this.say(words);
  }

  /** Forgets what was not read: another conversation is shown. */
  clear() {
    this.waiting = "";
    this.region.replaceChildren();
  }

  read() {
    this.timer = 0;
    const sentences = SENTENCE.exec(this.waiting)?.[0] ?? "";
    this.waiting = this.waiting.slice(sentences.length);
    this.say(sentences);
    if (this.waiting) this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  /** @param {string} text */
  say(text) {
    const words = text.replace(MARKUP, "$1").trim();
    if (!words) return;
    const paragraph = document.createElement("p");
    paragraph.textContent = words;
    this.region.append(paragraph);
    while (this.region.childElementCount > MOST_KEPT) this.region.firstElementChild?.remove();
  }
}
