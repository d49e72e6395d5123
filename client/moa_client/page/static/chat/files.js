// Text files of a question: by the rules of surface/question_files.py. It shows nothing.

/** @typedef {{name: string, text: string}} TextFile */

const MOST_FILE_BYTES = 512 * 1024;
const MOST_QUESTION = 1 << 20; // characters of a message to the daemon
const FRAME = /^File ([^\n]+):\n(`{3,})\n([^]*?)\n\2\n\n/;
const CONTROLS = /[\x00-\x1f\x7f\x85\u2028\u2029]/g;

/** A file that a question cannot have; the message says which, and why. */
export class FileError extends Error {}

/**
 * @param {File} file
 * @returns {Promise<TextFile>}
 */
export async function textFile(file) {
  const name = file.name.replace(CONTROLS, "_") || "file";
  if (file.size > MOST_FILE_BYTES) throw new FileError(tooLarge(name, file.size));
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    // It is no text, or a folder, or cannot be read.
  }
  if (!text.includes("\0")) return { name, text: text.replaceAll("\r\n", "\n").replace(/\n$/, "") };
  const what = file.type.startsWith("image/") ? "a picture" : "not text in UTF-8";
  throw new FileError(`${name} is ${what}: models here read text only.`);
}

/**
 * @param {string} question
 * @param {TextFile[]} files
 * @returns {string} the question as it is asked
 */
export function framed(question, files) {
  const frames = files.map(({ name, text }) => {
    const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}\n${fence}\n\n`;
  });
  return frames.join("") + question;
}

/**
 * @param {string} asked
 * @returns {{question: string, files: TextFile[]}}
 */
export function unframed(asked) {
  const files = [];
  for (let found; (found = FRAME.exec(asked)); asked = asked.slice(found[0].length)) files.push({ name: found[1], text: found[3] });
  return { question: asked, files };
}

/** @param {string} asked whether it is short enough to be sent */
export function fits(asked) {
  return JSON.stringify(asked).length < MOST_QUESTION - 4096; // with the options
}

/** @param {string} name @param {number} size in bytes */
function tooLarge(name, size) {
  const [has, most] = [size, MOST_FILE_BYTES].map((bytes) => bytes.toLocaleString("en"));
  return `${name} has ${has} bytes, more than the ${most} that a file of a question may have. Give a part of it.`;
}

/** @param {string} text */
export function sizeWords(text) {
  const count = new Blob([text]).size;
  return count < 1000 ? `${count} B` : `${(count / 1000).toFixed(count < 9950 ? 1 : 0)} kB`;
}
