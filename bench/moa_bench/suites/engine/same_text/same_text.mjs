// llama.cpp for `moa-bench same-text`, on one thread, through node-llama-cpp. Arguments: the folder in which npm has
// installed node-llama-cpp; the GGUF file. A line of JSON in, a line out: {"write": tokens, "count": new ones} to
// {"tokens"}, written greedily; {"score": tokens} to {"chances"}, of each token after the first.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const entry = path.join(folder, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama } = await import(pathToFileURL(entry).href);
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: 2048, batchSize: 512, threads: 1 });
const sequence = context.getSequence();

async function write(prompt, count) {
    const tokens = [];
    for await (const token of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
        tokens.push(token);
        if (tokens.length === count) break;
    }
    return { tokens };
}

async function score(tokens) {
    const chances = [];
    for (let place = 0; place + 1 < tokens.length; place++) {
        const [{ next }] = await sequence.controlledEvaluate([[tokens[place], { generateNext: { probabilities: true } }]]);
        chances.push(next.probabilities.get(tokens[place + 1]));
    }
    return { chances };
}

console.log(JSON.stringify({ details: `llama.cpp ${llama.llamaCppRelease.release}, 1 thread` }));
for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    await sequence.clearHistory();
    const answer = command.score === undefined ? await write(command.write, command.count) : await score(command.score);
    console.log(JSON.stringify({ ...answer, resident_mb: process.memoryUsage.rss() / 1e6 }));
}
process.exit(0);
