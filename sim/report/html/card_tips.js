'use strict';
// Texts for a place in a chart: a tip at the pointer, a sentence for the keyboard.
// `window.kvsimCardTips`; needs units.js, card_parts.js.
window.kvsimCardTips = (() => {
  const {say} = window.kvsimUnits;
  const {el, swatch, intervalOf} = window.kvsimCardParts;

  function indexOf(p) {
    const [kind, at] = String(p.seriesId).split(':');
    return kind === 'line' ? Number(at) : null;
  }

  /// The tip at the pointer, as a node, so that no name is parsed as markup. `near`: whether a line
  /// has a point close to the pointer.
  function tipOf(spec, params, x, y, near) {
    const rows = [];
    let head = '';
    const list = Array.isArray(params) ? params : [params];
    if (spec.kind === 'heat') {
      const [c, r, v] = list[0].value;
      head = `${spec.heat.rowName} ${spec.heat.rows[r]}, ${spec.heat.columnName} ${
          spec.heat.columns[c]}`;
      rows.push([null, spec.heat.valueName, say(v * y.by, spec.heat.unit)]);
    } else if (spec.kind === 'bars') {
      const k = list[0].dataIndex;
      head = spec.details && spec.details[k] ? `${spec.categories[k]}: ${spec.details[k]}` :
                                               spec.categories[k];
      if (spec.headings && spec.headings[k]) return '';
      let total = 0, parts = 0;
      for (const p of list) {
        const i = indexOf(p);
        const v = i === null ? null : spec.series[i].values[k];
        if (!v) continue;
        if (!spec.series[i].beside) {
          total += v;
          ++parts;
        }
        rows.push([i, spec.series[i].name, say(v, spec.y.unit)]);
      }
      if (parts > 1) rows.push([null, 'together', say(total, spec.y.unit)]);
      if (spec.limits && spec.limits[k] > 0)
        rows.push([null, spec.limitName, say(spec.limits[k], spec.y.unit)]);
      for (const level of spec.levels || [])
        rows.push([null, level.name, say(level.value, spec.y.unit)]);
      if (spec.ends && spec.ends[k]) rows.push([null, spec.ends[k], '']);
    } else {
      const seen = [];
      for (const p of list) {
        const [kind, at, k] = String(p.seriesId).split(':');
        const i = Number(at);
        if (kind === 'end' || kind === 'open') {
          const item = spec.series[i][kind === 'end' ? 'ends' : 'open'][Number(k)];
          if (list.length === 1) {
            head = item.text;
            rows.push([
              i, spec.series[i].name, `${say(item.x, spec.x.unit)}, ${say(item.y, spec.y.unit)}`
            ]);
          }
          continue;
        }
        if (kind !== 'line') continue;
        const s = spec.series[i];
        const v = s.values[p.dataIndex];
        if (!v || v[1] === null) continue;
        if (Array.isArray(params) && !near(p.axisValue, v[0] / x.by)) continue;
        const interval = intervalOf(spec, s, v[0]);
        const band = interval && ` (${interval})`;
        seen.push(v[0]);
        if (spec.kind === 'points') {
          head = s.names ? s.names[p.dataIndex] : s.name;
          rows.push(
              [i, spec.y.name, say(v[1], spec.y.unit)],
              [null, spec.x.name, say(v[0], spec.x.unit)]);
          for (const [name, value] of (s.details && s.details[p.dataIndex]) || [])
            rows.push([null, name, value]);
        } else {
          rows.push([i, s.name, say(v[1], spec.y.unit) + band]);
        }
      }
      if (seen.length > 0 && spec.kind !== 'points')
        head = `${spec.x.name}: ${say(seen[0], spec.x.unit)}`;
      if (spec.kind === 'area' && rows.length > 1) {
        const total = list.reduce((sum, p) => {
          const i = indexOf(p);
          return i === null || !spec.series[i].values[p.dataIndex] ?
              sum :
              sum + spec.series[i].values[p.dataIndex][1];
        }, 0);
        rows.push([null, 'together', say(total, spec.y.unit)]);
      }
    }
    if (rows.length === 0) return '';
    return el(
        'div', {class: 'tip'}, el('strong', {}, head),
        el('table', {},
           rows.map(
               ([i, name, value]) =>
                   el('tr', {}, el('td', {}, i === null ? '' : swatch(spec, i), ` ${name}`),
                      el('td', {class: 'value'}, value)))));
  }

  /// A point as text, for screen readers.
  function wordsOf(spec, i, k) {
    if (spec.kind === 'heat') {
      const [c, r, v] = spec.heat.cells[k];
      return `${spec.heat.rowName} ${spec.heat.rows[r]}, ${spec.heat.columnName} ${
          spec.heat.columns[c]}: ${say(v, spec.heat.unit)}`;
    }
    const s = spec.series[i];
    if (spec.kind === 'bars')
      return `${spec.categories[k]}, ${s.name}: ${say(s.values[k], spec.y.unit)}`;
    const v = s.values[k];
    const interval = intervalOf(spec, s, v[0]);
    return `${s.names ? s.names[k] : s.name}: ${spec.x.name} ${say(v[0], spec.x.unit)}, ${
        spec.y.name} ${say(v[1], spec.y.unit)}${interval && `, 90 % interval ${interval}`}`;
  }

  /// A cross or an open mark as text.
  function wordsOfMark(spec, i, kind, k) {
    const s = spec.series[i];
    const item = s[kind === 'end' ? 'ends' : 'open'][k];
    return `${s.name}: ${item.text}, ${spec.x.name} ${say(item.x, spec.x.unit)}, ${spec.y.name} ${
        say(item.y, spec.y.unit)}`;
  }

  /// The keyboard stops: the points, open marks and crosses of every drawn line, from left to
  /// right. A line without points still has its cross.
  function stopsOf(spec, series) {
    const kOrder = {open: 0, line: 1, end: 2};  // at the same x
    const lines = new Map();
    series.forEach((drawn, seriesIndex) => {
      const [kind, line, mark] = String(drawn.id).split(':');
      if (kOrder[kind] === undefined) return;
      const i = Number(line);
      if (!lines.has(i)) lines.set(i, []);
      (drawn.data || []).forEach((_, dataIndex) => {
        const k = kind === 'line' ? dataIndex : Number(mark);
        const s = spec.series && spec.series[i];
        const item = kind === 'line' ? null : s[kind === 'end' ? 'ends' : 'open'][k];
        const x = spec.kind !== 'lines' ? dataIndex : item ? item.x : s.values[k][0];
        const words = () => item ? wordsOfMark(spec, i, kind, k) : wordsOf(spec, i, k);
        lines.get(i).push({seriesIndex, dataIndex, x, order: kOrder[kind], words});
      });
    });
    const out = [...lines.entries()].sort((a, b) => a[0] - b[0]).map(entry => entry[1]);
    for (const stops of out) stops.sort((a, b) => a.x - b.x || a.order - b.order);
    return out.filter(stops => stops.length > 0);
  }

  return {tipOf, wordsOf, stopsOf};
})();
