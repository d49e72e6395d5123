import { byId, fromTemplate, keepFiles, keepTyped, keptFiles, setText, typed } from "../core/page.js";

// Text files of a question: by the rules of chat/files.py. It shows nothing.

/** @typedef {{name: string, text: string}} TextFile */

const MOST_BYTES = 1 << 18; // of all files of a question
const FRAME = /^<file name="([^"\n]*)">\n([^]*?)\n<\/file>\n\n/;
const CONTROLS = /[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;
const PICTURE = /\.(png|jpe?g|gif|webp|bmp|tiff?|heic|avif|ico)$/i;
const PICTURE_STARTS = ["\x89PNG", "\xff\xd8\xff", "GIF8"];

/** A file that a question cannot have; the message says which, and why. */
export class FileError extends Error {}

/**
 * @param {File} file
 * @returns {Promise<TextFile>}
 */
export async function textFile(file) {
  const name = file.name.replace(CONTROLS, " ").replaceAll('"', "'") || "file";
  const start = await readAs(file.slice(0, 4), "latin1");
  if (PICTURE.test(name) || PICTURE_STARTS.some((each) => start.startsWith(each))) {
    throw new FileError(`${name} is a picture: models read text only. Describe what it shows.`);
  }
  if (file.size > MOST_BYTES) throw tooLong(`${name} has`);
  const text = await readAs(file, "utf-8");
  if (text.includes("\0")) throw new FileError(`${name} is not text in UTF-8. Convert it first, for example with iconv.`);
  return { name, text: text.replaceAll("\r\n", "\n").replace(/\n$/, "") };
}

/**
 * @param {Blob} blob
 * @param {string} encoding
 * @returns {Promise<string>} a NUL if it is no such text, or cannot be read, as a folder
 */
async function readAs(blob, encoding) {
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(await blob.arrayBuffer());
  } catch {
    return "\0";
  }
}

/**
 * Refuses files that are too long together.
 * @param {TextFile[]} files
 */
export function checkAll(files) {
  if (files.reduce((sum, { text }) => sum + new Blob([text]).size, 0) > MOST_BYTES) throw tooLong("The files have together");
}

/**
 * @param {string} question
 * @param {TextFile[]} files
 * @returns {string} the question as it is asked
 */
export function framed(question, files) {
  return files.map(({ name, text }) => `<file name="${name}">\n${text}\n</file>\n\n`).join("") + question;
}

/**
 * @param {string} asked
 * @returns {{question: string, files: TextFile[]}}
 */
export function unframed(asked) {
  const files = [];
  for (let found; (found = FRAME.exec(asked)); asked = asked.slice(found[0].length)) files.push({ name: found[1], text: found[2] });
  return { question: asked, files };
}

/**
 * @param {string} title that may be the first line of a question
 * @returns {string} the file's name, if that begins a file
 */
export function named(title) {
  return /^<file name="([^"\n]*)">$/.exec(title)?.[1] ?? title;
}

/** @param {string} what */
function tooLong(what) {
  return new FileError(`${what} more than ${MOST_BYTES >> 10} KiB. Ask about a part of it.`);
}

/** @param {string} text */
export function sizeWords(text) {
  const count = new Blob([text]).size;
  return count < 1000 ? `${count} B` : `${(count / 1000).toFixed(count < 9950 ? 1 : 0)} kB`;
}

// The files of the next question: dropped, pasted or chosen, each shown as a chip that can be removed.



export class FileChips {
  /**
   * @param {() => void} onChange
   * @param {(text: string) => void} refuse says why a file is not taken
   */
  constructor(onChange, refuse) {
    this.onChange = onChange;
    this.refuse = refuse;
    /** @type {TextFile[]} */
    this.files = [];
    this.list = byId("files");
    this.picker = byId("file-picker");
    this.composer = byId("composer");
    byId("file-open").addEventListener("click", () => this.picker.click());
    this.picker.addEventListener("change", () => {
      this.add([...this.picker.files]);
      this.picker.value = "";
    });
    byId("question").addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
      const pasted = [...(event.clipboardData?.files ?? [])];
      if (!pasted.length || event.clipboardData?.getData("text/plain")) return; // a cell of a table is text and a picture
      event.preventDefault();
      this.add(pasted);
    });
    this.takeDrops(byId("main"));
  }

  /** @param {HTMLElement} target */
  takeDrops(target) {
    const mark = (/** @type {boolean} */ isOver) => (isOver ? (this.composer.dataset.drop = "yes") : delete this.composer.dataset.drop);
    target.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      mark(true);
    });
    target.addEventListener("dragleave", (event) => target.contains(/** @type {Node | null} */ (event.relatedTarget)) || mark(false));
    target.addEventListener("drop", (event) => {
      mark(false);
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  /** @param {File[]} files */
  async add(files) {
    for (const file of files) {
      try {
        const all = [...this.files, await textFile(file)];
        checkAll(all);
        this.set(all);
      } catch (error) {
        if (!(error instanceof FileError)) throw error;
        this.refuse(error.message);
      }
    }
  }

  /** @param {TextFile[]} files from now on */
  set(files) {
    this.files = files;
    this.list.replaceChildren(...files.map((file) => this.chip(file)));
    this.list.hidden = files.length === 0;
    this.onChange();
  }

  /** @param {TextFile} file */
  chip(file) {
    const chip = fromTemplate("file-template");
    setText(chip.querySelector(".file-name"), file.name);
    setText(chip.querySelector(".file-size"), sizeWords(file.text));
    const button = chip.querySelector("button");
    button.setAttribute("aria-label", `Remove ${file.name}`);
    button.addEventListener("click", () => {
      this.set(this.files.filter((each) => each !== file));
      byId("question").focus();
    });
    return chip;
  }
}

// The field for questions. What is typed is kept for each conversation until it is asked.


export class Composer {
  /**
   * @param {(question: string) => boolean} ask whether it was taken
   * @param {() => void} stop
   * @param {(text: string) => void} say what the reader must know
   */
  constructor(ask, stop, say) {
    this.ask = ask;
    this.field = byId("question");
    this.stopButton = byId("stop");
    this.sendButton = byId("send");
    this.conversation = "";
    this.chips = new FileChips(() => this.filesChanged(), say);
    byId("composer").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.submit();
    });
    this.stopButton.addEventListener("click", () => {
      stop();
      this.field.focus();
    });
    this.field.addEventListener("input", () => this.changed());
    this.field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const isTouch = matchMedia("(pointer: coarse)").matches; // there Enter is the only way to a new line
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch) return;
      event.preventDefault();
      this.submit();
    });
    this.load("");
  }

  /**
   * Shows what was typed for this conversation.
   * @param {string} conversation empty: a new one, in which nothing was asked yet
   */
  bind(conversation) {
    if (conversation !== this.conversation) this.load(conversation);
  }

  /**
   * Something was asked in the new conversation, which has a name now.
   * @param {string} conversation
   */
  rename(conversation) {
    if (this.conversation) return;
    keepTyped("", "");
    keepFiles("", []);
    this.conversation = conversation;
    this.filesChanged();
  }

  /** @param {string} conversation */
  load(conversation) {
    this.conversation = conversation;
    this.field.value = typed(conversation);
    this.chips.set(keptFiles(conversation));
  }

  /**
   * Puts a question back that was not asked, before whatever is there.
   * @param {string} question
   */
  putBack(question) {
    const back = unframed(question);
    this.field.value = this.field.value.trim() ? `${back.question}\n${this.field.value}` : back.question;
    this.chips.set([...back.files, ...this.chips.files]);
  }

  submit() {
    const question = framed(this.field.value.trim(), this.chips.files);
    if (!question || !this.ask(question)) return;
    this.field.value = "";
    this.chips.set([]);
  }

  filesChanged() {
    keepFiles(this.conversation, this.chips.files);
    this.changed();
  }

  changed() {
    keepTyped(this.conversation, this.field.value);
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.showButtons();
  }

  /**
   * @param {{canAsk?: boolean, isBusy?: boolean}} state
   */
  show({ canAsk, isBusy }) {
    this.canAsk = canAsk;
    if (!isBusy && document.activeElement === this.stopButton) this.field.focus();
    this.stopButton.hidden = !isBusy;
    this.showButtons();
  }

  showButtons() {
    this.sendButton.ariaDisabled = String(!this.canAsk || !(this.field.value.trim() || this.chips.files.length));
  }

  focus() {
    this.field.focus();
  }
}
