'use strict';
// kvsim's core in WebAssembly, as functions. Runs in a page, in a worker and under node:
//
//   const core = await kvsimCore(bytes);      // of kvsim.wasm
//   core.run(text)                            // the document of `kvsim run --json`, as text
//   core.reach(text)                          // "kvsim.explore/1"
//   core.launch(text)                         // "kvsim.launch/1", with manifests
//   core.log(text)                            // "kvsim.calibrate-log/1" of {"scenario": {…}, "log": "…"}
//   core.compare(text)                        // "kvsim.compare-bench/1" of {"result": "…", "bench": "…"}
//   core.catalogue()                          // "kvsim.catalogue/1"
//
// `text` is a scenario. A scenario that is wrong throws an Error of name "InputError" whose message
// is what the command line prints.
async function kvsimCore(bytes) {
  const kRun = 0, kReach = 1, kCatalogue = 2, kLaunch = 3, kLog = 4, kCompare = 5;
  const kWrongInput = 1;
  const kNotThere = 52;  // WASI's ENOSYS: no files, no clock, no arguments
  let memory = null;
  const view = () => new DataView(memory.buffer);

  // System calls of the C++ library. All others return kNotThere.
  const known = {
    proc_exit(code) { throw new Error(`the core ended itself with status ${code}`); },
    environ_sizes_get(count, size) {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    environ_get() { return 0; },
    fd_write(descriptor, vectors, n, written) {
      let text = '', total = 0;
      for (let i = 0; i < n; ++i) {
        const at = view().getUint32(vectors + 8 * i, true), size = view().getUint32(vectors + 8 * i + 4, true);
        text += new TextDecoder().decode(new Uint8Array(memory.buffer, at, size));
        total += size;
      }
      if (text.trim()) console.warn(text);
      view().setUint32(written, total, true);
      return 0;
    },
    emscripten_notify_memory_growth() {},
  };
  const module = await WebAssembly.compile(bytes);
  const imports = {};
  for (const {module: from, name, kind} of WebAssembly.Module.imports(module)) {
    if (kind !== 'function') throw new Error(`the core wants ${from}.${name}, a ${kind}`);
    imports[from] = imports[from] || {};
    imports[from][name] = known[name] || (from === 'env' ? () => -kNotThere : () => kNotThere);
  }
  const instance = await WebAssembly.instantiate(module, imports);
  const core = instance.exports;
  memory = core.memory;
  core._initialize();

  function ask(what, text) {
    const question = new TextEncoder().encode(text);
    const room = core.kvsim_room(question.length);
    new Uint8Array(memory.buffer, room, question.length).set(question);
    const status = core.kvsim_ask(what);
    const reply = new TextDecoder().decode(new Uint8Array(memory.buffer, core.kvsim_answer(), core.kvsim_answer_size()));
    if (status === 0) return reply;
    const error = new Error(reply);
    error.name = status === kWrongInput ? 'InputError' : 'ContractError';
    throw error;
  }
  return {run: text => ask(kRun, text), reach: text => ask(kReach, text), launch: text => ask(kLaunch, text),
          log: text => ask(kLog, text), compare: text => ask(kCompare, text), catalogue: () => ask(kCatalogue, '')};
}
