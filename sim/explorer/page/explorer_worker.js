'use strict';
// The core beside the page, so that the page answers to its reader while the core computes. Takes
// {bytes} once, then {id, what, scenario}; answers {ready} and {id, document} or {id, error, wrong}.
let core = null;
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
  try {
    self.postMessage({id: data.id, document: JSON.parse(core[data.what](data.scenario))});
  } catch (error) {
    self.postMessage({id: data.id, error: String(error.message || error), wrong: error.name === 'InputError'});
  }
};
