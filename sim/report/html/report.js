'use strict';
// The page of one run: reads its data (schema kvsim.report/1) and lays out sections of cards. The
// findings in words are already part of the page.
(() => {
  const data = JSON.parse(document.getElementById('kvsim-report').textContent);
  const {el, mount, themeSwitch} = window.kvsimCards;
  const sections = window.kvsimSections;
  const {say, number} = window.kvsimUnits;
  const main = document.getElementById('main');
  const doc = data.document;
  const points = doc.points || [];
  const replay = doc.replay;

  // The contents of each kind of chart, and its section.
  const kKinds = {
    memory_vs_length: [
      'memory', 'Peak memory versus length',
      'Peak HBM of each decode step as sequences grow, one line per method. Red line: memory the stack may use. Cross: memory runs out. Open mark: peak of prefill. Shaded band: 90 % interval.'
    ],
    peak_vs_final_length: [
      'memory', 'Peak memory by final length',
      'Peak HBM of whole runs against their final length. Cross: memory runs out.'
    ],
    hbm_breakdown: [
      'memory', 'HBM by owner at the peak',
      'Memory by owner when it peaks. Where memory runs out: memory by owner at that moment, plus the request that failed.'
    ],
    cache_size: [
      'memory', 'Cache after the prompt',
      'Keys, values and side data of the whole batch, with the published value if there is one.'
    ],
    cache_per_layer: ['memory', 'Cache by layer', 'Bytes per layer at the end of the run.'],
    hbm_timeline: ['memory', 'HBM by owner over time', 'Memory of one GPU while the service runs.'],
    memory_vs_load: [
      'memory', 'Cache under load',
      'KV cache bytes against the tokens of the running requests. Band: 90 % of the samples.'
    ],
    throughput_vs_length: [
      'speed', 'Decode throughput versus length',
      'Tokens per second of the whole batch at each length.'
    ],
    throughput_ttft: [
      'speed', 'Time to first token against throughput',
      'One mark per load. The axis names the percentile.'
    ],
    throughput_tpot: [
      'speed', 'Time per output token against throughput',
      'One mark per load. The axis names the percentile.'
    ],
    throughput_e2e: [
      'speed', 'End-to-end latency against throughput',
      'One mark per load. The axis names the percentile.'
    ],
    goodput: [
      'speed', 'Goodput',
      'Requests per second by outcome: within all latency bounds, late, rejected or not completed.'
    ],
    running_timeline: ['speed', 'Running requests', 'Sum over all replicas.'],
    waiting_timeline: ['speed', 'Waiting requests', 'Sum over all replicas.'],
    ttft_cdf: [
      'speed', 'Distribution of the time to first token', 'Share of requests at or below each time.'
    ],
    tpot_cdf: [
      'speed', 'Distribution of the time per output token',
      'Share of requests at or below each time.'
    ],
    itl_cdf:
        ['speed', 'Distribution of inter-token latency', 'Share of gaps at or below each time.'],
    e2e_cdf: [
      'speed', 'Distribution of end-to-end latency', 'Share of requests at or below each time.'
    ],
    error_vs_bytes: [
      'error', 'Error against bytes held',
      'Mean error of the attention output against the cache size as a share of the full cache. Dashed line: Pareto front (no method is both smaller and more accurate).'
    ],
    error_vs_read:
        ['error', 'Error against bytes read', 'The same error against the bytes that decode steps read.'],
    error_vs_step:
        ['error', 'Error over decode steps', 'If there are many methods, only those on the Pareto front are drawn.'],
    bytes_vs_step: ['error', 'Cache held over decode steps', 'Keys, values and side data.'],
    replay_cache_per_layer: ['error', 'Cache by layer after the last step', 'From the replay.'],
    plan_answers: [
      'answers', 'Answers',
      'Answer of each candidate. Text next to a bar names the limit of a candidate without an answer.'
    ],
    plan_front: [
      'answers', 'Cost against latency',
      'Each mark is one configuration. Dashed line: Pareto front of cost and latency.'
    ],
    plan_times: [
      'answers', 'TPOT against TTFT',
      'Each mark is one configuration. Dashed line: Pareto front of TTFT and TPOT.'
    ],
    lines: ['sweep', 'Metrics over the varied key', ''],
    tradeoff: [
      'sweep', 'Latency against throughput', 'Each line runs from the lowest load to the highest.'
    ],
    heat_map: ['sweep', 'Metrics over two keys', ''],
    bars: ['sweep', 'Metrics per point', ''],
  };
  const kSections = [
    ['results', 'Results'], ['answers', 'Answers'], ['sweep', 'What varies'], ['memory', 'Memory'],
    ['speed', 'Speed'], ['error', 'Error of compression'],
    ['published', 'Published values'], ['basis', 'Sources of the numbers'],
    ['scenario', 'Scenario'], ['notes', 'Notes']
  ];
  const bodies = new Map();
  function section(id) {
    if (!bodies.has(id))
      bodies.set(
          id,
          el('section', {id, 'aria-labelledby': `${id}-heading`},
             el('h2', {id: `${id}-heading`}, kSections.find(s => s[0] === id)[1])));
    return bodies.get(id);
  }
  const later = [];  // cards are drawn in page order once their sections are in the page
  function card(id, options) {
    if (options) later.push([id, options]);
  }
  function table(id, title, node, text) {
    section(id).append(
        el('div', {class: 'card'}, el('h3', {}, title),
           text ? el('p', {class: 'text'}, text) : null, node));
  }

  /// Figures of one kind share a card with a choice between them.
  function figureCards() {
    const kinds = new Map();
    for (const chart of data.charts) {
      const sweep = ['lines', 'tradeoff', 'heat_map', 'bars'].includes(chart.kind);
      const key = sweep ? `${chart.kind}:${chart.name.split('_vs_')[0]}` : chart.kind;
      if (!kinds.has(key)) kinds.set(key, []);
      kinds.get(key).push(chart);
    }
    for (const [key, charts] of kinds) {
      const kind = charts[0].kind;
      const [where, title, text] =
          kKinds[kind] || [kind.startsWith('error_vs_') ? 'error' : 'sweep', '', ''];
      const tail = c => c.title.includes(': ') ? c.title.slice(c.title.indexOf(': ') + 2) : c.title;
      const head = title && !['lines', 'heat_map', 'bars', 'tradeoff'].includes(kind) ?
          title :
          charts[0].title.split(': ')[0];
      const several = charts.length > 1;
      let options = charts.map(tail);
      if (new Set(options).size < options.length) options = charts.map(c => c.title);
      card(where, {
        id: `chart-${key.replace(/[^a-z0-9]+/gi, '-')}`,
        title: head,
        choices: several ? [{name: 'Of', options}] : [],
        make: ([at]) => {
          const chart = charts[several ? at : 0];
          const about = several ? '' : tail(chart);
          return {
            ...chart.spec,
            text: [text, about && about !== head ? `(${about})` : ''].filter(Boolean).join(' ')
          };
        },
      });
    }
  }

  function list(items) {
    return el('ul', {}, items.map(item => el('li', {}, item)));
  }
  const asList = v => v === null || v === undefined ? [] : Array.isArray(v) ? v : [v];

  function basis() {
    const facts = [];
    const add = (name, value) => {
      if (value !== null && value !== undefined && value !== '')
        facts.push(el('dt', {}, name), el('dd', {}, value));
    };
    const calibration = doc.calibration;
    if (calibration && calibration.name) {
      add('calibration', asList(calibration.name).join(', '));
      add('provenance',
          asList(calibration.provenance).length > 1 ? list(asList(calibration.provenance)) :
                                                      asList(calibration.provenance)[0]);
    }
    const times =
        [...new Set(points.map(p => p.interval_basis && p.interval_basis.time).filter(Boolean))];
    const memory =
        [...new Set(points.map(p => p.interval_basis && p.interval_basis.memory).filter(Boolean))];
    const served = [...new Set(points.map(p => p.intervals && p.intervals.basis).filter(Boolean))];
    if (times.length > 0) add('accuracy of times', list(times));
    if (memory.length > 0) add('accuracy of memory', list(memory));
    if (served.length > 0) add('accuracy of service metrics', list(served));
    if (doc.answers) {
      const all = doc.answers.flatMap(a => a.candidates);
      for (const [name, key] of [
               ['memory interval', 'memory_basis'], ['time interval', 'time_basis']]) {
        const said = [...new Set(all.map(c => c[key]).filter(Boolean))];
        if (said.length > 0) add(name, list(said));
      }
      add('confidence', say(doc.confidence, 'share'));
    }
    const laws = [...new Set(points.map(p => p.size_law).filter(Boolean))];
    if (laws.length > 0) add('size of the cache', laws.join('; '));
    for (const [key, text] of Object.entries(doc.definitions || {})) add(key, text);
    const labels = [];
    if (points.length > 0) {
      labels.push(el(
          'li', {}, el('span', {class: 'tag'}, 'predicted'),
          ': all memory, times and throughput on this page, unless marked otherwise.'));
      labels.push(el(
          'li', {}, el('span', {class: 'tag'}, '90 % interval'),
          ': the range next to a prediction. A prediction without a range has no known accuracy.'));
    }
    if ((doc.published || []).length > 0)
      labels.push(el(
          'li', {}, el('span', {class: 'tag'}, 'published'),
          ': values from the literature, with their source, never mixed with predictions.'));
    if (replay)
      labels.push(el(
          'li', {}, el('span', {class: 'tag'}, 'measured on a trace'),
          ': errors, entries and bytes of the replay, computed from recorded queries, keys and values, layer by layer and step by step.'));
    const bases = {};
    for (const p of points)
      for (const step of [...(p.time_terms || []), ...(p.mean_iteration ? [p.mean_iteration] : [])])
        for (const t of step.terms || [])
          if (t.basis) bases[t.basis] = (bases[t.basis] || 0) + t.seconds;
    const sum = Object.values(bases).reduce((a, b) => a + b, 0);
    const words = {
      measured: 'a kernel fitted to measurements of this GPU, kernels and format',
      other_version: 'extrapolated: fitted to another version of the stack',
      other_stack: 'extrapolated: fitted to another stack\'s kernels',
      sibling: 'extrapolated: fitted on a GPU of the same generation',
      other_generation: 'extrapolated: fitted on another generation of GPUs',
      other_format: 'extrapolated: fitted in another number format',
      nominal: 'the data sheet only: no measurement',
      stack: 'fractions of the data sheet from the stack profile',
      data_sheet: 'the data sheet',
      calibration: 'the calibration'
    };
    if (sum > 0) {
      labels.push(
          el('li', {}, 'Sources of the time of the explained steps: ',
             Object.entries(bases)
                 .sort((a, b) => b[1] - a[1])
                 .map(([name, s]) => `${words[name] || name} (${number(100 * s / sum)} %)`)
                 .join('; '),
             '.'));
    }
    section('basis').append(
        el('div', {class: 'card'}, facts.length > 0 ? el('dl', {class: 'facts'}, facts) : null,
           labels.length > 0 ? el('ul', {}, labels) : null,
           el('p', {class: 'note'},
              `Written by kvsim ${data.kvsim.version}; the same run gives the same file. `,
              'The CSV and JSON files next to this page hold every number in full precision.')));
  }

  function scenario() {
    const of = doc.scenario;
    if (!of || !of.echo) return;
    const text = JSON.stringify(of.echo, null, 2);
    const said = el('span', {class: 'note', role: 'status'});
    const pre = el('pre', {tabindex: 0, 'aria-label': 'scenario as JSON'}, text);
    const copy =
        el('button', {
          type: 'button',
          class: 'copy',
          onclick: () => {
            const done = () => {
              said.textContent = ' copied';
            };
            const byHand = () => {
              const range = document.createRange();
              range.selectNodeContents(pre);
              const selection = window.getSelection();
              selection.removeAllRanges();
              selection.addRange(range);
              said.textContent = ' selected: copy it with the keyboard';
            };
            if (navigator.clipboard)
              navigator.clipboard.writeText(text).then(done, byHand);
            else
              byHand();
          }
        },
           'Copy');
    const facts = [
      ['name', of.name], ['hash', of.hash], ['seed', of.seed], ['description', of.description]
    ].filter(f => f[1] !== undefined && f[1] !== '');
    section('scenario')
        .append(
            el('div', {class: 'card'},
               el('dl', {class: 'facts'},
                  facts.map(([k, v]) => [el('dt', {}, k), el('dd', {}, String(v))])),
               el('p', {}, copy, said), pre));
  }

  function notes() {
    const all = [];
    const add = text => {
      if (text && !all.includes(text)) all.push(text);
    };
    // A text that applies to several owners appears once, with their names.
    const addOf = (owners, n) => {
      const whose = new Map();
      for (const [label, text] of owners) whose.set(text, [...(whose.get(text) || []), label]);
      for (const [text, labels] of whose) {
        const who = [...new Set(labels)];
        add(labels.length === n ? text :
                who.length > 3  ? `${who.length} of ${n}: ${text}` :
                                  `${who.join(', ')}: ${text}`);
      }
    };
    for (const n of doc.notes || []) add(n);
    addOf(points.flatMap(p => (p.notes || []).map(n => [p.label, n])), points.length);
    const methods = (replay && replay.methods) || [];
    addOf(methods.flatMap(m => (m.notes || []).map(n => [m.name, n])), methods.length);
    for (const s of (replay && replay.skipped) || []) add(`skipped ${s.name}: ${s.reason}`);
    for (const cut of data.left_out) add(cut);
    const kMost = 60;
    if (all.length === 0) return;
    section('notes').append(
        el('div', {class: 'card'}, list(all.slice(0, kMost)),
           all.length > kMost ?
               el('p', {class: 'note'}, `and ${all.length - kMost} more, in the JSON file.`) :
               null));
  }

  if (data.kind === 'static' && points.length > 0)
    table(
        'results', 'Points', sections.staticTable(points, data.extras.columns),
        'Predicted. Small print: 90 % interval.');
  if (data.kind === 'serve') {
    const tail = `p${data.extras.percentile || 90}`;
    table(
        'results', 'Points', sections.serveTable(points, data.extras.columns, tail),
        'Predicted. Small print: 90 % interval.');
    table(
        'results', 'Latency of requests', sections.percentileTable(points, data.extras.columns),
        'TTFT: arrival to first token. TPOT: mean time per output token after the first. ITL: time between two tokens. E2E: arrival to last token. p90: 90 % of requests take at most this time.');
  }
  if (replay && replay.methods)
    table(
        points.length > 0 ? 'error' : 'results', 'Methods',
        sections.replayTable(replay.methods, data.extras.methods),
        `Trace ${replay.trace}. Errors compare the attention output with that of the full cache.`);
  if (data.kind === 'aggregate')
    table(
        'results', 'Methods', sections.aggregateTable(doc.aggregate, data.extras.means),
        `Means over ${
            doc.traces.length} traces with equal weight. Small print: 95 % confidence interval of the mean.`);
  if (data.kind === 'scenario-sweep') table('results', 'Points', sections.sweepTable(data.extras));
  if (data.kind === 'sweep')
    table('results', 'Points', sections.replayTable(points.map(p => p.method), data.extras.methods));
  figureCards();
  if (data.kind === 'static' || data.kind === 'serve') {
    card('memory', sections.memoryTimeline(data));
    if (data.kind === 'static') card('speed', sections.latencyThroughput(data));
    card('speed', sections.times(data));
    card('speed', sections.roofline(data));
  }
  card('error', sections.keptHeads(data));
  if ((doc.published || []).length > 0)
    table(
        'published', 'Predicted and published', sections.publishedTable(doc.published),
        'Error: predicted / published - 1.');
  for (const [id] of later) section(id);
  if (doc.answers) section('answers');
  basis();
  scenario();
  notes();
  for (const [id] of kSections) {
    if (bodies.has(id)) main.append(bodies.get(id));
  }
  later.sort(
      (a, b) => kSections.findIndex(s => s[0] === a[0]) - kSections.findIndex(s => s[0] === b[0]));
  for (const [id, options] of later) mount(section(id), options);
  for (const answer of doc.answers || [])
    table(
        'answers', `${answer.question.replace(/_/g, ' ')} of ${answer.of}`,
        sections.planTable(answer, doc, data.extras),
        `${
            answer.best ? `Best: ${answer.best}, ${number(answer.answer)} ${answer.unit}${
                              answer.range ? `, range ${answer.range}` : ''}.` :
                          'Impossible for every candidate.'} ${answer.finding}`);
  document.getElementById('contents')
      .append(...kSections.filter(s => bodies.has(s[0]))
                  .map(([id, name]) => el('li', {}, el('a', {href: `#${id}`}, name))));
  themeSwitch(document.getElementById('theme'));
  document.documentElement.dataset.ready = 'true';
})();
