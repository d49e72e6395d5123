// The files of the next question: dropped, pasted or chosen, each shown as a chip that can be removed.

import { byId, fromTemplate, setText } from "../core/dom.js";
import { FileError, checkAll, sizeWords, textFile } from "./files.js";

/** @typedef {import("./files.js").TextFile} TextFile */

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
