// llama.cpp for `moa-bench engine` and `single`, on one thread, through node-llama-cpp.
// Arguments: the folder in which npm has installed node-llama-cpp; the GGUF file.
// A line of JSON in, a line out. As worker.py: {"read": tokens} into an empty cache, or {"forward": 1} after them, to
// {"ms"}. Of single: {"ask": prompt tokens, "count": new ones, "mode": "plain" or "lookup"} to
// {"tokens", "arrivals_ms"}. Each token's text is written to standard error as it comes, as a server writes it to a
// stream; an end of text does not end an answer.
import path from "node:path";
import { performance } from "node:perf_hooks";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const CONTEXT = 4096;
const [folder, file] = process.argv.slice(2);
const entry = path.join(folder, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama, InputLookupTokenPredictor } = await import(pathToFileURL(entry).href);
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const predictor = new InputLookupTokenPredictor({
    patternLength: { min: 1, max: 3 }, predictionLength: { min: 1, max: 10 },
});
const sizes = { contextSize: CONTEXT, batchSize: 512, threads: 1 };
const options = { plain: {}, lookup: { tokenPredictor: predictor } };
const sequences = {};
let length = 0;

async function sequenceOf(mode) {
    sequences[mode] ??= (await model.createContext(sizes)).getSequence(options[mode]);
    return sequences[mode];
}

async function read(tokens) {
    const sequence = await sequenceOf("plain");
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
    const sequence = await sequenceOf("plain");
    const began = performance.now();
    await sequence.controlledEvaluate([[11, { generateNext: { token: true, options: { temperature: 0 } } }]]);
    const taken = performance.now() - began;
    await sequence.eraseContextTokenRanges([{ start: length, end: sequence.nextTokenIndex }]);
    return taken;
}

async function answer(prompt, count, mode) {
    const sequence = await sequenceOf(mode);
    await sequence.clearHistory();
    predictor.updateInputTokens(prompt);
    const tokens = [], arrivals = [];
    const began = performance.now();
    for await (const token of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
        arrivals.push(performance.now() - began);
        tokens.push(token);
        process.stderr.write(`data: ${JSON.stringify({ content: model.detokenize([token]) })}\n\n`);
        if (tokens.length === count) break;
    }
    return { tokens, arrivals_ms: arrivals };
}

async function obey(command) {
    if (command.read !== undefined) return { ms: await read(command.read) };
    if (command.forward !== undefined) return { ms: await forward(command.forward) };
    return answer(command.ask, command.count, command.mode);
}

const { release } = llama.llamaCppRelease;
console.log(JSON.stringify({ details: `llama.cpp ${release}, 1 thread`}));
for await (const line of readline.createInterface({ input: process.stdin })) {
    const said = await obey(JSON.parse(line));
    console.log(JSON.stringify({ ...said, resident_mb: process.memoryUsage.rss() / 1e6 }));
}
process.exit(0);
