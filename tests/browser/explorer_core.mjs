// Answers queries about scenarios with the explorer's core, like the page's worker:
//
//   node explorer_core.mjs CORE.wasm.gz explorer_core.js < QUESTIONS > ANSWERS
//
// Each question is a line of JSON: {"what": "run" | "reach" | "launch" | "log" | "compare" | "catalogue", "scenario": …}.
// Each answer is a line of JSON: {"document": …, "ms": …} or {"error": TEXT, "name": "InputError"}.
import fs from 'node:fs';
import zlib from 'node:zlib';

const [wasm, script] = process.argv.slice(2);
const kvsimCore = new Function(`${fs.readFileSync(script, 'utf8')}\nreturn kvsimCore;`)();
const core = await kvsimCore(zlib.gunzipSync(fs.readFileSync(wasm)));
for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
  if (line.trim() === '') continue;
  const {what, scenario} = JSON.parse(line);
  const begun = performance.now();
  try {
    const text = core[what](JSON.stringify(scenario));
    console.log(JSON.stringify({document: JSON.parse(text), ms: performance.now() - begun}));
  } catch (error) {
    console.log(JSON.stringify({error: error.message, name: error.name}));
  }
}
