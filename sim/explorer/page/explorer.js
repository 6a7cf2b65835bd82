'use strict';
// The explorer's page: calls the core for the current controls and shows the results, text first.
(() => {
  const {el, mount, themeSwitch} = window.kvsimCards;
  const {tableOf} = window.kvsimCardParts;
  const {say, number} = window.kvsimUnits;
  const catalogue = JSON.parse(document.getElementById('catalogue').textContent);
  const state = window.kvsimKnobs.readHash(window.location.hash);
  const byId = id => document.getElementById(id);
  const kRest = 150;  // ms without a change of the controls before the core is called

  // ---- The core, in a worker. An answer is dropped if a newer question of its kind was sent, or if
  // the controls have changed since then. ----

  let worker = null, ready = false;
  const waiting = {};  // newest unanswered question of each kind
  let questions = 0;

  async function startCore() {
    const text = byId('core').textContent.trim();
    const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const plain = new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip')));
    const bytes = await plain.arrayBuffer();
    const source = byId('core-js').textContent + '\n' + byId('worker-js').textContent;
    worker = new Worker(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
    worker.onmessage = ({data}) => onCore(data);
    worker.onerror = event => broken(event.message || 'the worker did not start');
    worker.postMessage({bytes}, [bytes]);
  }
  function onCore(data) {
    if (data.broken) { broken(data.broken); return; }
    if (data.ready) { ready = true; ask(); compareFiles(); return; }
    const asked = Object.values(waiting).find(one => one.id === data.id);
    if (!asked) return;
    delete waiting[asked.what];
    if (data.error) asked.failed(data.error, data.wrong); else asked.done(data.document);
  }
  /// Drops pending answers, because the controls have changed. A comparison depends only on files.
  function forget() {
    for (const what of Object.keys(waiting)) { if (what !== 'compare') delete waiting[what]; }
  }
  function question(what, scenario, done, failed) {
    const id = ++questions;
    waiting[what] = {id, what, done, failed};
    worker.postMessage({id, what, scenario: JSON.stringify(scenario)});
  }
  function broken(why) {
    status(`The core did not start: ${why}. This page needs a browser with WebAssembly exceptions and DecompressionStream (Chromium 95, Firefox 113, Safari 16.4, or later).`, true);
  }

  function status(text, wrong) {
    const line = byId('status');
    line.textContent = text;
    line.classList.toggle('wrong', Boolean(wrong));
    line.hidden = text === '';
  }

  // ---- Questions ----

  let timer = 0, begun = 0;
  const answers = {run: null, reach: null};

  /// The settings that a start-up log belongs to; with other values its memory does not apply.
  const logKey = () => [state.model, state.gpu, state.gpu_count, state.stack, state.dtype].join('\n');
  let logged = logKey();

  function changed() {
    if (state.start && logKey() !== logged) {
      state.start = '';
      byId('log').value = '';
      sayLog('The log was dropped: its start had another model, GPU, number of GPUs, stack or weights.', []);
    }
    window.history.replaceState(null, '', window.kvsimKnobs.writeHash(state));
    forget();
    mark('waiting');
    window.clearTimeout(timer);
    timer = window.setTimeout(ask, kRest);
  }
  /// 'waiting' until both documents of the current controls have arrived, then 'answered'; 'refused' if
  /// a control has an invalid value: the page then shows the previous answers, dimmed.
  function mark(what) {
    byId('answers').dataset.state = what;
    byId('answers').classList.toggle('stale', what !== 'answered');
  }
  function ask() {
    if (!ready) return;
    mark('waiting');
    let missing = 2, refused = false;
    const answered = () => {
      if (--missing > 0) return;
      byId('answers').dataset.took = (performance.now() - begun).toFixed(0);
      mark(refused ? 'refused' : 'answered');
    };
    begun = performance.now();
    const scenario = window.kvsimKnobs.scenarioOf(state, catalogue, true);
    showScenario();
    const failed = message => {
      refused = true;
      knobs.complain(message);
      status(`Not possible: ${message.replace(/^explorer\.json: /, '')}`, true);
      answered();
    };
    question('run', scenario, document => {
      answers.run = document;
      knobs.complain('');
      status('');
      sayRun();
      draw(['breakdown']);
      answered();
    }, failed);
    askLaunch();
    question('reach', scenario, document => {
      answers.reach = document;
      sayReach();
      draw(['memory', 'speed', 'prefill']);
      answered();
    }, failed);
  }

  // ---- Texts ----

  const tokens = n => `${Math.round(n).toLocaleString('en-US')} tokens`;
  const count = n => Math.round(n).toLocaleString('en-US');
  /// " (likely 1 to 2)"; the ends in the order low, high.
  function likely(low, high, text) {
    if (low === null || high === null || low === undefined || high === undefined) return '';
    return low === high ? ' (likely the same)' : ` (likely ${text(low)} to ${text(high)})`;
  }
  function fact(name, value, note) {
    return [el('dt', {}, name), el('dd', {}, el('span', {class: 'value'}, value), note ? el('span', {class: 'help'}, note) : null)];
  }
  const labelOf = owner => (catalogue.owners.find(o => o.owner === owner) || {label: owner}).label;

  function sayReach() {
    const point = answers.reach.points[0], found = point.longest_context;
    const line = byId('longest');
    const sequences = Number(state.batch) > 1 ? ` in each of ${count(Number(state.batch))} sequences` : '';
    if (found.impossible) {
      line.textContent = `No context fits: ${found.impossible.text}.`;
    } else {
      line.textContent = `Longest context that fits${sequences}: ${found.at_most ? 'at least ' : ''}${tokens(found.tokens)}` +
        (found.tokens_low === null ? ` (a bound: stack without measurements: ${state.stack})` : ` (likely ${count(found.tokens_low)} to ${count(found.tokens_high)})`);
    }
    line.className = found.impossible ? 'fails' : 'fits';
    const others = answers.reach.points.slice(1);
    const notes = [];
    for (const other of others) {
      const full = other.longest_context;
      notes.push(full.impossible ? 'With the full cache no context fits.' : `With the full cache: ${tokens(full.tokens)}${likely(full.tokens_low, full.tokens_high, count)}.`);
    }
    if (found.limited_by === 'positions') notes.push(`Limited by the positions of ${state.model}, not by memory.`);
    byId('longest-notes').replaceChildren(...notes.map(text => el('li', {}, text)));
  }

  function sayRun() {
    const point = answers.run.points[0];
    const verdict = byId('verdict');
    const asked = tokens(Number(state.prompt_tokens) + Number(state.output_tokens));
    if (point.oom) {
      const oom = point.oom, held = Object.entries(oom.owners).sort((a, b) => b[1] - a[1])[0];
      const when = oom.phase === 'decode' ? `at ${tokens(oom.tokens)}` : `in ${oom.phase}`;
      verdict.textContent = `${asked}: does not fit. Memory runs out ${when}: ${oom.what} requests ${say(oom.requested, 'B')}, ${say(Math.max(0, oom.free), 'B')} are free; ` +
        `most is held by ${held ? `${labelOf(held[0])} (${say(held[1], 'B')})` : 'nothing'}.`;
      verdict.className = 'fails';
    } else {
      const owners = Object.entries(point.peak_owners).sort((a, b) => b[1] - a[1]);
      verdict.textContent = `${asked}: fits. At its peak, in ${point.peak_phase}, it uses ${say(point.peak_hbm_bytes, 'B')} of ${say(point.usable_hbm_bytes, 'B')}; ` +
        `most of it ${owners.slice(0, 2).map(([name, bytes]) => `${labelOf(name)} (${say(bytes, 'B')})`).join(' and ')}.`;
      verdict.className = 'fits';
    }
    const seconds = (name, key) => fact(name, point[key] === null ? '–' : say(point[key], 's'), likely(point[`${key}_low`], point[`${key}_high`], v => say(v, 's')));
    const rate = (name, key) => fact(name, point[key] === null ? '–' : say(point[key], 'tok/s'), likely(point[`${key}_low`], point[`${key}_high`], v => number(v)));
    const whole = (name, key, none) => fact(name, point[key] === null ? none : count(point[key]), point[key] === null ? '' : likely(point[`${key}_low`], point[`${key}_high`], count));
    byId('facts').replaceChildren(
      ...whole('Largest batch of such sequences', 'largest_batch', '–'), ...whole('Fewest GPUs for it', 'fewest_gpus', 'more than 64'),
      ...seconds('Time to first token (prefill)', 'prefill_s'), ...rate('Tokens per second while decoding', 'decode_tok_s'),
      ...rate('Tokens per second, prefill included', 'throughput_tok_s'), ...seconds('Whole batch', 'latency_s'),
      ...fact(point.oom ? 'Peak memory per GPU before that' : 'Peak memory per GPU', say(point.peak_hbm_bytes, 'B'), likely(point.peak_hbm_bytes_low, point.peak_hbm_bytes_high, v => say(v, 'B'))),
      ...fact('Cache of the batch at the end', say(point.kv_bytes_wanted === null ? point.kv_bytes : point.kv_bytes_wanted, 'B'), ''));
    const notes = [...point.notes];
    const engine = point.startup && point.startup.engine;
    if (engine) notes.push(`Assumed flags of ${engine.name} ${engine.version}: ${engine.flags}`);
    if (point.interval_basis) notes.push(`Times: ${point.interval_basis.time}.`, `Memory: ${point.interval_basis.memory}.`);
    byId('notes').replaceChildren(...notes.map(text => el('li', {}, text)));
  }

  /// Requests the launch only if its text is visible.
  function askLaunch() {
    if (!ready || !byId('start').open) return;
    const scenario = window.kvsimKnobs.scenarioOf(state, catalogue, false);
    question('launch', scenario, sayLaunch, message => sayLaunch(null, message));
  }
  /// Shows the engine's command, one of its manifests, or the reason why there is none.
  function sayLaunch(document, refused) {
    const as = byId('start-as'), about = byId('start-about');
    const texts = {};
    if (document) {
      const launch = document.launches[0];
      texts.command = launch.roles.map(role => [...role.files.map(file => `cat > ${file.name} <<'EOF'\n${file.text}EOF`), role.command].join('\n')).join('\n\n');
      Object.assign(texts, document.manifests);
      about.textContent = [`${launch.engine} ${launch.version}, ${launch.roles.map(role => `${role.gpu_count} x ${launch.gpu}`).join(', ')}.`, ...launch.notes].join(' ');
    } else {
      about.textContent = refused.replace(/^launch command: /, 'None: ');
    }
    const chosen = as.value in texts ? as.value : 'command';
    as.replaceChildren(...Object.keys(texts).map(kind => el('option', {value: kind, selected: kind === chosen}, kind)));
    as.disabled = !document;
    const show = () => { byId('start-text').textContent = texts[as.value] || ''; };
    as.onchange = show;
    show();
  }

  // ---- Start-up log of an engine ----

  const kLongestFile = 32 * 2 ** 20;
  /// The reason why a file is not read; empty if it is.
  const tooLong = (file, hint) => (file.size > kLongestFile ? `${file.name}: expected at most ${say(kLongestFile, 'B')}, got ${say(file.size, 'B')}: ${hint}` : '');
  async function readLog(file) {
    if (!file || !ready) return;
    const refused = tooLong(file, 'the lines about the start are enough');
    if (refused) {
      sayLog(refused, [], true);
      return;
    }
    const scenario = window.kvsimKnobs.scenarioOf({...state, start: ''}, catalogue, false);
    question('log', {scenario, log: await file.text()}, document => {
      state.start = JSON.stringify(document.overrides);
      logged = logKey();
      const pool = document.log_tokens ? `; the pool in the log has ${tokens(document.log_tokens)}` : '';
      sayLog(`${file.name}: the pool has ${tokens(document.with_overrides.tokens)} (predicted without it: ${count(document.predicted.tokens)})${pool}.`,
        [...document.warnings, ...document.notes]);
      changed();
    }, message => sayLog(message, [], true));
  }
  function sayLog(text, notes, wrong) {
    byId('log-said').textContent = text;
    byId('log-said').classList.toggle('wrong', Boolean(wrong));
    byId('log-notes').replaceChildren(...notes.map(note => el('li', {}, note)));
    byId('forget-log').hidden = state.start === '';
  }
  function forgetLog() {
    state.start = '';
    byId('log').value = '';
    sayLog('', []);
    changed();
  }

  // ---- Comparison of a benchmark with a prediction, both from files ----

  const kMeasured = {ttft_s: ['TTFT', 's'], tpot_s: ['TPOT', 's'], e2e_s: ['E2E', 's'],
                     output_tok_s: ['output throughput', 'tok/s'], request_s: ['request throughput', 'req/s']};
  let comparisons = 0;
  async function compareFiles() {
    const turn = ++comparisons;
    delete waiting.compare;
    sayComparison('', []);
    const files = [byId('predicted').files[0], byId('measured').files[0]];
    if (!ready || !files[0] || !files[1]) return;
    const refused = files.map(file => tooLong(file, 'kvsim compare reads up to 64 MiB')).find(text => text);
    if (refused) {
      sayComparison(refused, [], true);
      return;
    }
    let texts = [];
    try {
      texts = await Promise.all(files.map(file => file.text()));
    } catch (error) {
      if (turn === comparisons) sayComparison(`A file cannot be read: ${error.message}. Choose it again.`, [], true);
      return;
    }
    if (turn !== comparisons) return;  // other files were chosen meanwhile
    question('compare', {result: texts[0], bench: texts[1]}, document => {
      const values = document.runs.flatMap(run => run.values);
      const known = values.filter(hasInterval);
      const counted = known.length > 0 ? `${known.filter(isInside).length} of ${known.length} values are in their intervals.` : 'No value has an interval.';
      sayComparison(`Measured by ${document.runs[0].tool}. ${values.length > 0 ? counted : 'No metric is in both files.'}`, document.runs);
    }, message => sayComparison(message, [], true));
  }
  const hasInterval = value => value.low !== null && value.high !== null;
  const isInside = value => hasInterval(value) && value.low <= value.measured && value.measured <= value.high;
  function comparedRow(run, value) {
    const [name, unit] = kMeasured[value.metric] || [value.metric, ''];
    const percent = 100 * value.error;
    return [run.load, value.stat === null ? name : `${value.stat} ${name}`, say(value.measured, unit), say(value.predicted, unit),
            `${percent < 0 ? '' : '+'}${percent.toFixed(1)}`,
            hasInterval(value) ? `${say(value.low, unit)} to ${say(value.high, unit)}` : '–', hasInterval(value) ? (isInside(value) ? 'yes' : 'no') : '–'];
  }
  function sayComparison(text, runs, wrong) {
    byId('compare-said').textContent = text;
    byId('compare-said').classList.toggle('wrong', Boolean(wrong));
    const rows = runs.flatMap(run => run.values.map(value => comparedRow(run, value)));
    byId('compared').replaceChildren(...(rows.length > 0 ? [tableOf(['load', 'metric', 'measured', 'predicted', 'error %', '90 % interval', 'in it'], rows)] : []));
    byId('compare-notes').replaceChildren(...runs.flatMap(run => run.notes).map(note => el('li', {}, note)));
  }

  function showScenario() {
    const text = JSON.stringify(window.kvsimKnobs.scenarioOf(state, catalogue, false), null, 2);
    byId('scenario').textContent = text;
  }

  // ---- Charts ----

  const nameOf = (point, i, all) => (all.length === 1 ? point.method : point.label || point.method);
  const kLength = {name: 'context', unit: 'tokens'};

  function memorySpec() {
    const points = answers.reach.points, usable = answers.run.points[0].usable_hbm_bytes;
    const series = points.map((point, i) => {
      const found = point.longest_context, banded = point.curve.filter(c => c.peak_hbm_bytes_low !== null);
      return {name: nameOf(point, i, points), values: point.curve.map(c => [c.tokens, c.peak_hbm_bytes]),
              band: banded.map(c => [c.tokens, c.peak_hbm_bytes_low, c.peak_hbm_bytes_high]),
              ends: found.impossible || found.at_most ? [] : [{x: found.tokens, y: usable, text: 'longest that fits'}]};
    });
    return {kind: 'lines', x: kLength, y: {name: 'peak memory', unit: 'B'}, series, levels: [{name: `usable of ${state.gpu}`, value: usable}],
            text: 'Peak memory of one GPU against the length of the run. Shaded: 90 % interval. Cross: the line reaches the usable memory.'};
  }
  function breakdownSpec() {
    const points = answers.run.points;
    const parts = catalogue.owners.filter(o => points.some(p => (o.owner === 'asked_for' ? p.oom : (p.oom ? p.oom.owners : p.peak_owners)[o.owner] > 0)));
    const series = parts.map(o => ({name: o.label, fill: o.fill, hatch: o.hatch,
      values: points.map(p => (o.owner === 'asked_for' ? (p.oom ? p.oom.requested : 0) : (p.oom ? p.oom.owners : p.peak_owners)[o.owner] || 0))}));
    return {kind: 'bars', categories: points.map((p, i) => `${nameOf(p, i, points)}${p.oom ? ' (out of memory)' : ''}`), y: {name: 'memory at the peak', unit: 'B'}, series,
            levels: [{name: 'usable', value: points[0].usable_hbm_bytes}],
            text: `Memory of one GPU by owner at the peak of the run, at ${tokens(Number(state.prompt_tokens) + Number(state.output_tokens))}.`};
  }
  function curveSpec(key, y, text) {
    const points = answers.reach.points;
    const series = points.map((point, i) => ({name: nameOf(point, i, points), values: point.curve.filter(c => c[key] !== null).map(c => [c.tokens, c[key]])}));
    const none = series.every(s => s.values.length === 0);
    return {kind: 'lines', x: kLength, y, series, text, note: none ? 'No length fits, so there is no time to show.' : ''};
  }
  const kCharts = {
    memory: ['Peak memory versus context', memorySpec],
    breakdown: ['Memory by owner', breakdownSpec],
    speed: ['Decoding rate versus context', () => curveSpec('last_step_tok_s', {name: 'tokens per second of the batch', unit: 'tok/s'}, 'At the last token of a run of each length that fits.')],
    prefill: ['Time to first token versus context', () => curveSpec('prefill_s', {name: 'prefill', unit: 's'}, 'Time to prefill a batch of prompts of each length that fits.')],
  };
  const cards = {};
  function draw(names) {
    if (!answers.run || !answers.reach) return;
    // The first call draws all charts, in order.
    const all = Object.keys(cards).length === 0 ? Object.keys(kCharts) : names;
    for (const name of all) {
      const [title, make] = kCharts[name];
      if (cards[name]) cards[name].redraw();
      else cards[name] = mount(byId('charts'), {id: `chart-${name}`, title, level: 3, make});
    }
  }

  // ---- Start ----

  const knobs = new window.kvsimKnobs.Knobs(byId('knobs'), catalogue, state, changed);
  window.addEventListener('hashchange', () => {
    Object.assign(state, window.kvsimKnobs.readHash(window.location.hash));
    logged = logKey();
    knobs.build();
    changed();
  });
  byId('start').addEventListener('toggle', askLaunch);
  byId('log').addEventListener('change', event => readLog(event.target.files[0]));
  byId('forget-log').addEventListener('click', forgetLog);
  for (const id of ['predicted', 'measured']) byId(id).addEventListener('change', compareFiles);
  if (state.start) sayLog('The address holds the start of an engine’s log.', []);
  byId('copy').addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(byId('scenario').textContent);
      byId('copied').textContent = 'copied';
    } catch {
      byId('copied').textContent = 'the browser does not let this page copy: select the text';
    }
  });
  themeSwitch(byId('theme'));
  window.kvsimExplorer = {answers: () => answers};
  showScenario();
  startCore().catch(error => broken(String(error.message || error)));
})();
