'use strict';
// Parts of a card: elements, line swatches, tables, the data of a spec as rows.
// `window.kvsimCardParts`; needs units.js, charts.js.
window.kvsimCardParts = (() => {
  const {say} = window.kvsimUnits;
  const charts = window.kvsimCharts;
  const kMostRows = 400;  // per table; the CSV files have all

  /// An element: el('p', {class: 'x'}, 'text', child, …). Text is never parsed as markup.
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith('on'))
        node.addEventListener(name.slice(2), value);
      else
        node.setAttribute(name, value === true ? '' : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }
  function svg(tag, attributes) {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
    return node;
  }

  const kMarkShapes = {
    circle: 'M13,3 a4,4 0 1,0 0.01,0 Z',
    rect: 'M9.5,3.5 h7 v7 h-7 Z',
    triangle: 'M13,2.5 L17.5,10.5 L8.5,10.5 Z',
    diamond: 'M13,2 L18,7 L13,12 L8,7 Z',
    down: 'M8.5,3.5 L17.5,3.5 L13,11.5 Z',
    pentagon: 'M13,2.5 L17.5,6 L15.8,11 L10.2,11 L8.5,6 Z',
  };
  function markShape(symbol) {
    if (kMarkShapes[symbol]) return kMarkShapes[symbol];
    return symbol.startsWith('path://M0,0') ? kMarkShapes.down : kMarkShapes.pentagon;
  }
  /// A line with its mark, or a part's fill, as drawn in the chart.
  function swatch(spec, i) {
    const box = svg('svg', {width: 26, height: 14, 'aria-hidden': 'true', class: 'swatch'});
    const s = spec.series[i];
    if (spec.kind === 'area' || spec.kind === 'bars') {
      box.append(svg('rect', {
        x: 2,
        y: 1,
        width: 22,
        height: 12,
        fill: charts.fillOf(s, i),
        stroke: 'currentColor',
        'stroke-width': 0.5
      }));
      if (s.hatch)
        box.append(svg('path', {
          d: 'M4,12 L12,2 M10,12 L18,2 M16,12 L22,4',
          stroke: 'currentColor',
          'stroke-width': 1,
          fill: 'none'
        }));
      return box;
    }
    const {colour, dash, mark} = charts.styleOf(spec, i);
    if (spec.kind === 'lines' || s.join) {
      const line = svg(
          'path', {d: 'M0,7 L26,7', stroke: s.front ? 'currentColor' : colour, 'stroke-width': 2});
      if (s.front)
        line.setAttribute('stroke-dasharray', '5 4');
      else if (dash !== 'solid')
        line.setAttribute('stroke-dasharray', dash.join(' '));
      box.append(line);
    }
    if (!s.front) box.append(svg('path', {d: markShape(mark), fill: colour}));
    return box;
  }

  /// A table in a separate scroll box. A cell is a text, or [text, a second line under it]. Empty
  /// columns are omitted.
  function tableOf(head, rows) {
    const body = rows.slice(0, kMostRows);
    const empty = cell => cell === '–' || cell === '' || cell === null || cell === undefined;
    const shown = head.map((_, c) => c === 0 || rows.some(row => !empty(row[c])));
    const cellOf = (cell, c) => {
      const [text, under] = Array.isArray(cell) ? cell : [cell, ''];
      const long = String(text).length > 44;
      return el(
          c === 0 ? 'th' : 'td', {scope: c === 0 ? 'row' : null, class: long ? 'long' : null},
          String(text), under ? el('span', {class: 'under'}, under) : null);
    };
    return el(
        'div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'table'},
        el('table', {},
           el('thead', {},
              el('tr', {}, head.filter((_, c) => shown[c]).map(h => el('th', {scope: 'col'}, h)))),
           el('tbody', {},
              body.map(
                  row => el('tr', {}, row.map((cell, c) => shown[c] ? cellOf(cell, c) : null))))),
        rows.length > body.length ? el('p', {class: 'note'},
                                       `The first ${body.length} of ${
                                           rows.length} rows; the CSV files of the run have all.`) :
                                    null);
  }

  /// The 90 % interval at `x` of a series: "1 GiB to 2 GiB"; empty if unknown. Looked up by x,
  /// because the band may have fewer points than the line.
  function intervalOf(spec, s, x) {
    const at = (s.band || []).find(b => b[0] === x);
    return at ? `${say(at[1], spec.y.unit)} to ${say(at[2], spec.y.unit)}` : '';
  }

  /// Heading and rows of a spec's data, numbers with units.
  function dataOf(spec) {
    if (spec.kind === 'heat') {
      const {rows, columns, cells, unit, rowName, columnName, valueName} = spec.heat;
      return [
        [rowName, columnName, valueName],
        cells.map(c => [rows[c[1]], columns[c[0]], say(c[2], unit)])
      ];
    }
    if (spec.kind === 'bars') {
      const more = (spec.ends || []).some(text => text);
      return [
        ['', ...spec.series.map(s => s.name), ...(more ? ['remark'] : [])],
        spec.categories.map(
            (name, k) =>
                [spec.details && spec.details[k] ? `${name} (${spec.details[k]})` : name,
                 ...spec.series.map(s => say(s.values[k], spec.y.unit)),
                 ...(more ? [spec.ends[k]] : [])])
      ];
    }
    if (spec.kind === 'area') {
      const first = spec.series[0] ? spec.series[0].values : [];
      return [
        [spec.x.name, ...spec.series.map(s => s.name)],
        first.map(
            (v, k) =>
                [say(v[0], spec.x.unit),
                 ...spec.series.map(s => say(s.values[k] ? s.values[k][1] : null, spec.y.unit))])
      ];
    }
    const rows = [];
    const bands = spec.series.some(s => s.band);
    for (const s of spec.series) {
      (s.values || []).forEach((v, k) => {
        const row = [
          s.names ? `${s.name}: ${s.names[k]}` : s.name, say(v[0], spec.x.unit),
          say(v[1], spec.y.unit)
        ];
        if (bands) row.push(intervalOf(spec, s, v[0]) || '–');
        rows.push(row);
      });
      for (const e of [...(s.open || []), ...(s.ends || [])]) {
        rows.push([
          `${s.name}: ${e.text}`, say(e.x, spec.x.unit), say(e.y, spec.y.unit),
          ...(bands ? ['–'] : [])
        ]);
      }
    }
    for (const level of spec.levels || [])
      rows.push([level.name, '–', say(level.value, spec.y.unit), ...(bands ? ['–'] : [])]);
    return [['', spec.x.name, spec.y.name, ...(bands ? ['90 % interval'] : [])], rows];
  }

  return {el, swatch, tableOf, dataOf, intervalOf};
})();
