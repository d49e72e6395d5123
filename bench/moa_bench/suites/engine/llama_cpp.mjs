// llama.cpp as a subject of `moa-bench engine`: speaks as worker.py does, on one thread, through node-llama-cpp.
// Arguments: the folder in which npm has installed node-llama-cpp; the GGUF file.
import path from "node:path";
import { performance } from "node:perf_hooks";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const entry = path.join(folder, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama } = await import(pathToFileURL(entry).href);
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: 2048, batchSize: 512, threads: 1 });
const sequence = context.getSequence();
let length = 0;

async function read(tokens) {
    await sequence.clearHistory();
    const prompt = Array.from({ length: tokens }, (_, place) => (7 * place + 11) % 40000);
    const began = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(prompt);
    const taken = performance.now() - began;
    length = tokens;
    return taken;
}

async function forward(rows) {
    if (rows !== 1) throw new Error("llama.cpp is measured with one row");
    const began = performance.now();
    await sequence.controlledEvaluate([[11, { generateNext: { token: true, options: { temperature: 0 } } }]]);
    const taken = performance.now() - began;
    await sequence.eraseContextTokenRanges([{ start: length, end: sequence.nextTokenIndex }]);
    return taken;
}

console.log(JSON.stringify({ details: `llama.cpp, ${context.currentThreads} threads` }));
for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    const ms = command.read === undefined ? await forward(command.forward) : await read(command.read);
    console.log(JSON.stringify({ ms, resident_mb: process.memoryUsage.rss() / 1e6 }));
}
process.exit(0);
