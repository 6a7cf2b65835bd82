'use strict';
// Runs the core in a worker, so that the page stays responsive while it computes. Takes {bytes} once,
// then {id, what, scenario}; answers {ready} and {id, document} or {id, error, wrong}. Ids ascend. If
// several questions of one kind arrive during a computation, it answers only the newest.
let core = null;
const newest = new Map();  // next question of each kind
let awake = false;

function answer({id, what, scenario}) {
  try {
    self.postMessage({id, document: JSON.parse(core[what](scenario))});
  } catch (error) {
    self.postMessage({id, error: String(error.message || error), wrong: error.name === 'InputError'});
  }
}
/// Answers one question; messages that arrived meanwhile are received before the next.
function answerNext() {
  const [next] = [...newest.values()].sort((a, b) => a.id - b.id);
  if (next) {
    newest.delete(next.what);
    answer(next);
  }
  awake = newest.size > 0;
  if (awake) setTimeout(answerNext, 0);
}
self.onmessage = async ({data}) => {
  if (data.bytes) {
    try {
      core = await kvsimCore(data.bytes);
      self.postMessage({ready: true});
    } catch (error) {
      self.postMessage({broken: String(error.message || error)});
    }
    return;
  }
  const waiting = newest.get(data.what);
  if (!waiting || waiting.id < data.id) newest.set(data.what, data);
  if (!awake) {
    awake = true;
    setTimeout(answerNext, 0);
  }
};
