'use strict';
// Charts and tables that pages build from a result's document: operators under their roofs, memory
// over a run's length, latency against throughput, entries kept by each head. The program provides
// the charts that are figures, too. `window.kvsimSections`.
window.kvsimSections = (() => {
  const {say, number} = window.kvsimUnits;
  const {el, tableOf} = window.kvsimCards;

  const isNumber = v => typeof v === 'number' && Number.isFinite(v);
  /// "11.2 to 14.1 GiB"; both units if they differ.
  function rangeOf(low, high, unit) {
    const a = say(low, unit), b = high === Infinity ? 'never' : say(high, unit);
    if (a === b) return '';
    const tail = b.slice(b.indexOf(' '));
    return b.includes(' ') && a.endsWith(tail) ? `${a.slice(0, -tail.length)} to ${b}` :
                                                 `${a} to ${b}`;
  }
  /// Table cells with a value and, if the point has one, its interval on a second line.
  function withInterval(point, key, unit) {
    const value = point[key];
    if (!isNumber(value)) return '–';
    const low = point[`${key}_low`], high = point[`${key}_high`];
    return isNumber(low) && isNumber(high) ? [say(value, unit), rangeOf(low, high, unit)] :
                                             say(value, unit);
  }

  /// The steps of each point with known operators: [{point, name, terms, roof, tokens}].
  function explainedSteps(data) {
    const points = data.document.points || [], extras = (data.extras.points || []);
    const out = [];
    points.forEach((point, i) => {
      const roof = extras[i] && extras[i].roof;
      if (!roof) return;
      const label = extras[i].label || point.label;
      for (const step of point.time_terms || []) {
        const name = step.step === 0 ?
            'prefill' :
            `decode step ${number(step.step)} (${number(step.tokens)} tokens)`;
        out.push({
          point: label,
          name,
          terms: step.terms,
          roof,
          seconds: step.step_s,
          gpus: point.gpu_count || 1
        });
      }
      const mean = point.mean_iteration;
      if (mean)
        out.push({
          point: label,
          name: 'mean iteration',
          terms: mean.terms,
          roof,
          seconds: mean.step_s,
          gpus: point.gpu_count || 1
        });
    });
    return out;
  }
  function choicesOf(steps) {
    const points = [...new Set(steps.map(s => s.point))];
    const most = Math.max(...points.map(p => steps.filter(s => s.point === p).length));
    const names = most > 1 ? ['prefill', 'first decode step', 'last decode step'].slice(0, most) :
                             [steps[0].name];
    const pick = chosen => {
      const own = steps.filter(s => s.point === points[chosen[0]]);
      return own[Math.min(chosen[1], own.length - 1)];
    };
    return {
      pick,
      choices: [
        {name: 'Point', options: points}, {name: 'Step', options: names, first: names.length - 1}
      ]
    };
  }

  const familyWords = family => family.replace(/_/g, ' ');

  function roofline(data) {
    const steps = explainedSteps(data);
    if (steps.length === 0) return null;
    const {pick, choices} = choicesOf(steps);
    return {
      id: 'roofline',
      title: 'Roofline of the operators',
      choices,
      make(chosen) {
        const step = pick(chosen);
        const terms = step.terms.filter(
            t => t.flops > 0 && t.bytes_read + t.bytes_written > 0 && t.seconds > 0);
        const families = [...new Set(terms.map(t => t.family))];
        const series = families.map(family => {
          const own = terms.filter(t => t.family === family);
          return {
            name: familyWords(family),
            values: own.map(t => [t.flops / (t.bytes_read + t.bytes_written), t.flops / t.seconds]),
            names: own.map(t => t.what),
            details: own.map(
                t => [
                    [
                      'time',
                      `${say(t.seconds, 's')} (${
                          number(100 * t.seconds / step.seconds)} % of the step)`
                    ],
                    ['bound by', t.bound], ['basis', t.basis || '–'],
                    ['work', say(t.flops, 'FLOP')],
                    ['traffic', say(t.bytes_read + t.bytes_written, 'B')]])
          };
        });
        const {peak_flops: peak, bandwidth, gpu, dtype} = step.roof;
        const ridge = peak / bandwidth;
        const all = terms.map(t => t.flops / (t.bytes_read + t.bytes_written));
        const low = Math.min(0.5 * ridge, ...all) / 2, high = Math.max(4 * ridge, ...all) * 2;
        return {
          kind: 'points',
          series,
          x: {name: 'arithmetic intensity', unit: 'FLOP/B', log: true, logChoice: true},
          y: {name: 'rate reached', unit: 'FLOP/s', log: true, logChoice: true},
          roofs: [{
            name: `${gpu}: ${say(peak, 'FLOP/s')} ${dtype}, ${say(bandwidth, 'B/s')}`,
            values: [[low, low * bandwidth], [ridge, peak], [high, peak]]
          }],
          text:
              `${step.point}, ${step.name}: ${
                  say(step.seconds,
                      's')}. Each mark is an operator of all layers together; under the slope traffic limits it, under the level arithmetic. ` +
              `The roofs are the data sheet's of ${gpu} (${say(peak, 'FLOP/s')} in ${dtype}, ${
                  say(bandwidth, 'B/s')}).`,
          note: terms.length < step.terms.length ?
              `${
                  step.terms.length -
                  terms
                      .length} terms without arithmetic or traffic (copies, launches, the host) have no place here; the chart of times has them.` :
              '',
        };
      },
    };
  }

  function times(data) {
    const steps = explainedSteps(data);
    if (steps.length === 0) return null;
    const {pick, choices} = choicesOf(steps);
    const bounds = [
      ['compute', '#D55E00', 0], ['memory', '#0072B2', 0], ['launch', '#F0E442', 2],
      ['host', '#777777', 1]
    ];
    return {
      id: 'time-terms',
      title: 'Where the time of a step goes',
      choices,
      make(chosen) {
        const step = pick(chosen);
        const terms = [...step.terms].sort((a, b) => b.seconds - a.seconds);
        const shown = terms.slice(0, 16);
        const rest = terms.slice(16).reduce((sum, t) => sum + t.seconds, 0);
        const series = bounds
                           .map(([bound, fill, hatch]) => ({
                                  name: `${bound} bound`,
                                  fill,
                                  hatch,
                                  values: shown.map(t => t.bound === bound ? t.seconds : 0)
                                }))
                           .filter(s => s.values.some(v => v > 0));
        const other = shown.filter(t => !bounds.some(b => b[0] === t.bound));
        if (other.length > 0)
          series.push({
            name: 'other',
            fill: '#CC79A7',
            hatch: 3,
            values: shown.map(t => other.includes(t) ? t.seconds : 0)
          });
        return {
          kind: 'bars',
          categories: shown.map(t => t.what),
          y: {name: 'time', unit: 's'},
          series,
          ends: shown.map(t => `${number(100 * t.seconds / step.seconds)} %`),
          details: shown.map(t => t.basis ? `basis ${t.basis}` : ''),
          text: `${step.point}, ${step.name}: ${say(step.seconds, 's')} in all. The longest ${
              shown.length} of ${terms.length} terms, by what bounds them.`,
          note: rest > 0 ?
              `The other ${terms.length - shown.length} take ${say(rest, 's')} together.` :
              '',
        };
      },
    };
  }

  function memoryTimeline(data) {
    const own = (data.extras.points || []).filter(p => p.timeline && p.timeline.tokens.length > 2);
    if (own.length === 0) return null;
    return {
      id: 'hbm-over-length',
      title: 'HBM over the run',
      choices: [{name: 'Point', options: own.map(p => p.label)}],
      make([at]) {
        const t = own[at].timeline;
        const part = (name, fill, hatch, value) =>
            ({name, fill, hatch, values: t.tokens.map((x, k) => [x, Math.max(0, value(k))])});
        return {
          kind: 'area',
          x: {name: 'tokens per sequence', unit: 'tokens'},
          y: {name: 'HBM', unit: 'B'},
          levels: [{
            name: `usable HBM ${say(own[at].usable_hbm_bytes, 'B')}`,
            value: own[at].usable_hbm_bytes
          }],
          series: [
            part('weights and other fixed memory', '#BBBBBB', 0, k => t.held[k] - t.kv[k]),
            part('cache and side data', '#0072B2', 0, k => t.kv[k]),
            part('temporary: activations, copies', '#F0E442', 2, k => t.peak[k] - t.held[k])
          ],
          text: `${
              own[at]
                  .label}: what is held between steps, and what a step takes above that at its worst moment.`,
        };
      },
    };
  }

  function latencyThroughput(data) {
    const points = (data.document.points ||
                    []).filter(p => isNumber(p.throughput_tok_s) && isNumber(p.latency_s));
    if (points.length < 2) return null;
    const methods = [...new Set(points.map(p => p.method))];
    return {
      id: 'throughput-latency',
      title: 'Latency against throughput',
      text: 'Each mark is a completed point. Lower and further right is better.',
      make: () => ({
        kind: 'points',
        x: {name: 'output throughput, including prefill', unit: 'tok/s', logChoice: true},
        y: {name: 'latency of the whole batch', unit: 's', logChoice: true},
        series: methods.map(method => {
          const own = points.filter(p => p.method === method);
          return {
            name: method || 'points',
            values: own.map(p => [p.throughput_tok_s, p.latency_s]),
            names: own.map(p => p.label),
            details: own.map(
                p => [
                    [
                      '90 % interval',
                      isNumber(p.latency_s_low) ? rangeOf(p.latency_s_low, p.latency_s_high, 's') :
                                                  'no interval'
                    ],
                    ['prefill', say(p.prefill_s, 's')], ['batch', number(p.batch)]])
          };
        }),
      }),
    };
  }

  function keptHeads(data) {
    const kept = (data.extras.kept || []).filter(m => m.cells.length > 1);
    if (kept.length === 0) return null;
    const byHead = kept.some(m => m.by_head);
    const what =
        [['entries kept', 'entries', 2], ['bytes kept', 'B', 3], ['mean relative error', '', 4]];
    return {
      id: 'kept-heads',
      title: byHead ? 'Entries kept by layer and head' : 'Entries kept by layer',
      choices: [
        {
          name: 'Method',
          options: kept.map(m => m.label),
          first: Math.max(0, kept.findIndex(m => m.cells.some(c => c[2] !== m.cells[0][2])))
        },
        {name: 'Colour', options: what.map(w => w[0])}
      ],
      make([m, w]) {
        const {cells, by_head: heads} = kept[m];
        const layers = [...new Set(cells.map(c => c[0]))],
              columns = [...new Set(cells.map(c => c[1]))];
        const values = cells.map(c => c[what[w][2]]);
        const same = values.every(v => v === values[0]);
        return {
          kind: 'heat',
          heat: {
            rows: layers,
            columns: heads ? columns : ['all'],
            cells: cells.map(c => [columns.indexOf(c[1]), layers.indexOf(c[0]), c[what[w][2]]]),
            unit: what[w][1],
            rowName: 'layer',
            columnName: heads ? 'KV head' : 'heads',
            valueName: what[w][0]
          },
          text: `${kept[m].label}: ${what[w][0]} of each ${
              heads ? 'stored head' : 'layer'} after the last step.${
              same ? ` All are equal: ${say(values[0], what[w][1])}.` : ''}`,
          note: heads ?
              '' :
              'This run did not record single heads. Set "per_head": true in the scenario\'s replay, or use kvsim replay --per-head.',
        };
      },
    };
  }

  // ---- tables ----

  /// The entries of [{key, header, unit, place, latency}] in the table of points, in order.
  const isKnown = value => value !== null && value !== undefined;
  const shownOf = columns => columns.filter(c => c.place > 0).sort((a, b) => a.place - b.place);

  function staticTable(points, columns) {
    const shown = shownOf(columns);
    return tableOf(
        [
          'point', 'fits', ...shown.map(c => c.header), 'memory runs out at', 'largest batch',
          'fewest GPUs'
        ],
        points.map(
            p =>
                [p.label, p.oom ? `no: ${p.oom.phase}` : 'yes',
                 ...shown.map(c => withInterval(p, c.key, c.unit)), oomWords(p),
                 withInterval(p, 'largest_batch', ''), withInterval(p, 'fewest_gpus', '')]));
  }
  function oomWords(p) {
    const range = isNumber(p.oom_tokens_low) ?
        rangeOf(p.oom_tokens_low, isNumber(p.oom_tokens_high) ? p.oom_tokens_high : Infinity, '') :
        '';
    if (p.oom) return [`${number(p.oom.tokens)} tokens`, range];
    return range ? ['not in the prediction', range] : '–';
  }
  /// A percentile of a service's times and its interval on a second line.
  function at(p, {key, unit}, q) {
    const d = p[key], low = p[`${key}_low`], high = p[`${key}_high`];
    if (!d || !isNumber(d[q])) return '–';
    return low && isNumber(low[q]) ? [say(d[q], unit), rangeOf(low[q], high[q], unit)] :
                                     say(d[q], unit);
  }
  /// `tail`: the requested percentile, "p95".
  function serveTable(points, columns, tail) {
    const shown = shownOf(columns);
    return tableOf(
        [
          'point', 'completed', ...shown.map(c => c.latency ? `${c.header} ${tail}` : c.header),
          'limited by'
        ],
        points.map(
            p =>
                [p.label, `${number(p.completed)} of ${number(p.requests)}`,
                 ...shown.map(c => c.latency ? at(p, c, tail) : withInterval(p, c.key, c.unit)),
                 p.bound_text || '–']));
  }
  function percentileTable(points, columns) {
    const percentiles = ['p50', 'p90', 'p95', 'p99'];
    return tableOf(
        ['point', 'time', ...percentiles],
        points.flatMap(
            p => columns.filter(c => c.latency && p[c.key])
                     .map(c => [p.label, c.header, ...percentiles.map(q => at(p, c, q))])));
  }
  function replayTable(methods, columns) {
    const [held, ...rest] = shownOf(columns);
    const cell = (m, c) => withInterval(m, c.key, c.unit);
    return tableOf(
        ['method', 'budget', held.header, 'share of full cache', ...rest.map(c => c.header)],
        methods.map(
            m =>
                [m.name,
                 m.budget === null ? '–' :
                     m.budget <= 1 ? say(m.budget, 'share') :
                                     `${number(m.budget)} entries`,
                 cell(m, held),
                 m.bytes_full_final > 0 ? say(m.bytes_held_final / m.bytes_full_final, 'share') :
                                          '–',
                 ...rest.map(c => cell(m, c))]));
  }
  /// Means over traces, with Student's t interval on a second line.
  function aggregateTable(rows, columns) {
    const shown = shownOf(columns).filter(c => rows.some(r => isKnown(r[c.key])));
    const spread = (s, unit) => !s || !isNumber(s.mean) ? '–' :
        isNumber(s.ci95_low) ? [say(s.mean, unit), rangeOf(s.ci95_low, s.ci95_high, unit)] :
                               say(s.mean, unit);
    return tableOf(
        ['method', 'budget', 'traces', ...shown.map(c => c.header)],
        rows.map(
            r =>
                [r.name,
                 r.budget === null ? '–' :
                     r.budget <= 1 ? say(r.budget, 'share') :
                                     `${number(r.budget)} entries`,
                 number(r.traces.length), ...shown.map(c => spread(r[c.key], c.unit))]));
  }
  /// Columns without a value for any candidate are omitted, such as service columns for batches.
  function planTable(answer, plan, {candidates, ways}) {
    const tail = `p${plan.percentile}`;
    const lastWay = c => c.points && c.points.length > 0 ? c.points[c.points.length - 1] : {};
    const columns = shownOf([
      ...candidates.map(column => ({...column, of: c => c})),
      ...ways.map(column => ({...column, of: lastWay}))
    ]).filter(column => answer.candidates.some(c => isKnown(column.of(c)[column.key])));
    const services = answer.question === 'highest_rate' || answer.question === 'fewest_gpus';
    const header = ({key, header, latency}) => key === 'cost' ? `${header} (${plan.cost_unit})` :
        latency || (key === 'latency_s' && services)          ? `${header} ${tail}` :
                                                                header;
    const cell = (column, c) => column.latency ? at(column.of(c), column, tail) :
                                                 withInterval(column.of(c), column.key, column.unit);
    return tableOf(
        [
          'candidate', answer.unit, 'range', 'limited by', 'smallest change that helps',
          ...columns.map(header), 'available in'
        ],
        answer.candidates.map(c => {
          const knob = c.impossible && c.impossible.knobs.length > 0 ? c.impossible.knobs[0] : null;
          return [
            c.label + (c.label === answer.best ? ' (best)' : ''),
            isNumber(c.answer) ? `${c.at_most ? 'at least ' : ''}${number(c.answer)}` : 'none',
            c.range || '–',
            c.impossible ? `${c.impossible.constraint}: ${c.impossible.text}` : c.pruned || c.limited_by || '–',
            knob ? `${knob.knob} ${knob.change}` : '–', ...columns.map(column => cell(column, c)),
            (c.available_in || []).map(softwareText).join(', ') || 'none known'
          ];
        }));
  }
  /// "vLLM 0.30"; "vLLM (main)" if no release has the method.
  function softwareText(a) {
    if (!a.version) return a.software;
    return /^\d/.test(a.version) ? `${a.software} ${a.version}` : `${a.software} (${a.version})`;
  }
  /// A value with its 90 % interval: "5,120 (4,100 to 6,200)".
  function measured(value, range, measure) {
    if (!isNumber(value)) return '–';
    const said = v => number(v / measure.divisor);
    return said(value) + (range ? ` (${said(range[0])} to ${said(range[1])})` : '');
  }
  function sweepTable(extras) {
    return tableOf(
        [
          ...extras.columns, 'state',
          ...extras.measures.map(m => m.unit ? `${m.words} (${m.unit})` : m.words)
        ],
        extras.rows.map(
            r =>
                [...r.values, r.state,
                 ...r.measures.map((v, i) => measured(v, r.ranges[i], extras.measures[i]))]));
  }
  function publishedTable(published) {
    const said = v => v === null || v === undefined ? '–' :
        typeof v === 'boolean'                      ? (v ? 'yes' : 'no') :
                                                      number(v);
    return tableOf(
        ['metric', 'point', 'published', 'predicted', 'error', 'source', 'note'],
        published.map(
            f =>
                [f.metric, f.label, f.published_text || said(f.published), said(f.predicted),
                 isNumber(f.miss) ? `${f.miss > 0 ? '+' : ''}${number(100 * f.miss)} %` : '–',
                 f.source || '–', f.note || '–']));
  }

  return {
    roofline,
    times,
    memoryTimeline,
    latencyThroughput,
    keptHeads,
    staticTable,
    serveTable,
    percentileTable,
    replayTable,
    aggregateTable,
    planTable,
    sweepTable,
    publishedTable,
    el,
    isNumber
  };
})();
