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
