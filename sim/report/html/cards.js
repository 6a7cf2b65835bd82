'use strict';
// Puts charts on a page so that they can be read without a mouse, without colours and without
// seeing them. `window.kvsimCards`; needs units.js, charts.js and `echarts`.
//
//   const card = kvsimCards.mount(host, {
//     id: 'memory', title: 'Peak memory versus length', text: 'what a reader should see',
//     level: 3,                          // of its heading; 3 where left out
//     choices: [{name: 'point', options: ['a', 'b']}],   // selects above the chart; or none
//     make: chosen => spec,              // of the indices chosen: a spec of charts.js, and
//   });                                  //   spec.text, spec.note beside it where they depend on
//   it card.redraw();                       // after the data behind `make` has changed
//   card.dispose();
//
// A card has a heading, a key whose entries are buttons (they show and hide a line), switches of
// the axes, zoom buttons, the chart, and the data as a table. The chart takes the focus: left and
// right go along a line, up and down to the next one, + and - zoom, 0 resets; what stands there is
// said in a live region.
window.kvsimCards = (() => {
  const {say, named, scale} = window.kvsimUnits;
  const charts = window.kvsimCharts;
  const cards = [];
  const kPaperWidth = 660;  // pixels, of A4 and letter between usual margins
  const kMostRows = 400;    // of a table; the CSV files have all

  /// An element: el('p', {class: 'x'}, 'text', child, …). Text is never read as markup.
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
  /// A line with its mark, or a part's fill, as the chart has it.
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

  /// A table that scrolls in its own box. A cell is a text, or [text, a second line under it].
  /// Columns in which nothing stands are left out.
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
        if (bands)
          row.push(
              s.band && s.band[k] ?
                  `${say(s.band[k][1], spec.y.unit)} to ${say(s.band[k][2], spec.y.unit)}` :
                  '–');
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
    return [['', spec.x.name, spec.y.name, ...(bands ? ['90 % of cases'] : [])], rows];
  }

  class Card {
    constructor(host, options) {
      this.options = options;
      this.hidden = new Set();
      this.chosen = (options.choices || []).map(choice => choice.first || 0);
      this.logs = {};
      this.at = null;  // [series, point] of the keyboard's place
      const id = options.id;
      this.key = el('div', {class: 'key', role: 'group', 'aria-label': 'lines: show or hide'});
      this.tools = el('div', {class: 'tools'});
      this.plot = el('div', {
        class: 'plot',
        tabindex: 0,
        role: 'group',
        'aria-roledescription': 'chart',
        'aria-labelledby': `${id}-title`,
        'aria-describedby': `${id}-text ${id}-help`
      });
      this.text = el('p', {class: 'text', id: `${id}-text`});
      this.note = el('p', {class: 'note', hidden: true});
      this.live = el('p', {class: 'hidden-text', 'aria-live': 'polite'});
      this.data = el('details', {class: 'data'}, el('summary', {}, 'Data as a table'));
      this.data.addEventListener('toggle', () => this.fillTable());
      this.node = el(
          'section', {class: 'card', id},
          el(`h${options.level || 3}`, {id: `${id}-title`}, options.title), this.text, this.tools,
          this.key, this.plot, this.note,
          el('p', {class: 'hidden-text', id: `${id}-help`},
             'Left and right arrow go from point to point, up and down to another line, plus and minus zoom, 0 resets the zoom. The data stand as a table below.'),
          this.live, this.data);
      host.append(this.node);
      this.chart = window.echarts.init(
          this.plot, null, {renderer: 'svg', width: this.width(), height: this.height()});
      this.plot.addEventListener('keydown', event => this.onKey(event));
      this.plot.addEventListener('blur', () => this.chart.dispatchAction({type: 'hideTip'}));
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.plot);
      cards.push(this);
      this.build();
    }

    width() {
      return charts.isPrinting() ?
          kPaperWidth :
          Math.max(240, this.plot.clientWidth || this.plot.parentElement.clientWidth || 600);
    }
    height() {
      const spec = this.spec;
      if (spec && spec.kind === 'bars') return charts.barsHeight(spec, this.width());
      if (spec && spec.kind === 'heat')
        return 140 + Math.min(420, Math.max(120, spec.heat.rows.length * 18));
      return this.width() < 560 || charts.isPrinting() ? 340 : 400;
    }

    /// Asks for the spec anew and draws everything of it.
    build() {
      const previous = this.spec;
      this.spec = this.options.make(this.chosen);
      if (previous && previous.kind !== this.spec.kind) this.logs = {};
      this.text.textContent = this.spec.text || this.options.text || '';
      const ticks =
          (this.spec.limits || []).some(v => v > 0) ? `Red ticks: ${this.spec.limitName}.` : '';
      const note = [ticks, this.spec.note].filter(Boolean).join(' ');
      this.note.textContent = note;
      this.note.hidden = !note;
      const names = new Set((this.spec.series || []).map(s => s.name));
      for (const name of [...this.hidden]) {
        if (!names.has(name)) this.hidden.delete(name);
      }
      this.buildTools();
      this.buildKey();
      this.draw();
      this.fillTable();
    }

    buildTools() {
      const parts = [];
      (this.options.choices || []).forEach((choice, c) => {
        if (choice.options.length < 2) return;
        const select =
            el('select', {
              id: `${this.options.id}-choice-${c}`,
              onchange: event => {
                this.chosen[c] = Number(event.target.value);
                this.build();
                document.getElementById(`${this.options.id}-choice-${c}`).focus();
              }
            },
               choice.options.map(
                   (name, i) => el('option', {value: i, selected: i === this.chosen[c]}, name)));
        parts.push(el('label', {class: 'choice'}, `${choice.name} `, select));
      });
      for (const axis of ['x', 'y']) {
        if (!this.spec[axis] || !this.spec[axis].logChoice) continue;
        if (this.logs[axis] === undefined) this.logs[axis] = Boolean(this.spec[axis].log);
        parts.push(
            el('label', {class: 'switch', title: this.spec[axis].name}, el('input', {
                 type: 'checkbox',
                 'data-log': axis,
                 checked: this.logs[axis],
                 onchange: event => {
                   this.logs[axis] = event.target.checked;
                   this.draw();
                 }
               }),
               ` log ${axis} axis`));
      }
      if (this.spec.kind !== 'bars' && this.spec.kind !== 'heat') {
        const button = (words, label, action) =>
            el('button',
               {type: 'button', class: 'small', 'aria-label': label, title: label, onclick: action},
               words);
        parts.push(
            el('span', {class: 'zoom', role: 'group', 'aria-label': 'zoom'},
               button('+', 'zoom in', () => this.zoom(0.6)),
               button('−', 'zoom out', () => this.zoom(1 / 0.6)),
               button('reset', 'reset zoom', () => this.zoom(0))));
      }
      this.tools.replaceChildren(...parts);
      this.tools.hidden = parts.length === 0;
    }

    buildKey() {
      const series = this.spec.series || [];
      if (this.spec.kind === 'heat' || series.length === 0) {
        this.key.replaceChildren();
        this.key.hidden = true;
        return;
      }
      this.key.hidden = false;
      const entries = series.map((s, i) => {
        const button =
            el('button', {
              type: 'button',
              class: 'entry',
              'aria-pressed': String(!this.hidden.has(s.name)),
              'data-series': s.name
            },
               swatch(this.spec, i), el('span', {}, s.name));
        button.addEventListener('click', () => {
          if (this.hidden.has(s.name))
            this.hidden.delete(s.name);
          else
            this.hidden.add(s.name);
          button.setAttribute('aria-pressed', String(!this.hidden.has(s.name)));
          this.draw();
        });
        return button;
      });
      if (series.length > 2) {
        const all =
            el('button', {
              type: 'button',
              class: 'small',
              onclick: () => {
                if (this.hidden.size > 0)
                  this.hidden.clear();
                else
                  series.forEach(s => this.hidden.add(s.name));
                this.buildKey();
                this.draw();
              }
            },
               'all / none');
        entries.push(all);
      }
      this.key.replaceChildren(...entries);
    }

    /// The spec with the axes as the reader set them.
    specNow() {
      const spec = {...this.spec};
      for (const axis of ['x', 'y']) {
        if (spec[axis] && this.logs[axis] !== undefined && spec[axis].logChoice)
          spec[axis] = {...spec[axis], log: this.logs[axis]};
      }
      return spec;
    }

    draw() {
      const spec = this.specNow();
      const {option, x, y} = charts.optionOf(spec, this.hidden, this.width());
      option.tooltip.formatter = params => this.tip(spec, params, x, y);
      this.chart.resize({width: this.width(), height: this.height()});
      // A tip that is open would look for the series that stood here before.
      this.chart.dispatchAction({type: 'hideTip'});
      this.chart.setOption(option, {replaceMerge: ['series', 'xAxis', 'yAxis'], lazyUpdate: false});
      this.option = option;
      this.by = {x, y};
    }

    /// What stands at the pointer: a node, so that no name is read as markup.
    tip(spec, params, x, y) {
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
          const i = this.index(p);
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
          if (Array.isArray(params) && !this.near(p.axisValue, v[0] / x.by)) continue;
          const band = s.band && s.band[p.dataIndex] && s.band[p.dataIndex][0] === v[0] ?
              ` (${say(s.band[p.dataIndex][1], spec.y.unit)} to ${
                  say(s.band[p.dataIndex][2], spec.y.unit)})` :
              '';
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
            const i = this.index(p);
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
    index(p) {
      const [kind, at] = String(p.seriesId).split(':');
      return kind === 'line' ? Number(at) : null;
    }
    /// Whether a line has a point where the pointer is, and not only somewhere else.
    near(pointer, x) {
      const a = this.chart.convertToPixel({xAxisIndex: 0}, pointer),
            b = this.chart.convertToPixel({xAxisIndex: 0}, x);
      return Math.abs(a - b) < Math.max(24, 0.04 * this.width());
    }

    zoom(factor) {
      let start = 0, end = 100;
      if (factor > 0) {
        const now = this.chart.getOption().dataZoom[0];
        const middle = (now.start + now.end) / 2,
              half = Math.min(50, Math.max(0.5, (now.end - now.start) / 2 * factor));
        start = Math.max(0, middle - half);
        end = Math.min(100, middle + half);
      }
      this.chart.dispatchAction({type: 'dataZoom', start, end});
    }

    onKey(event) {
      const zoom = {'+': 0.6, '=': 0.6, '-': 1 / 0.6, '0': 0}[event.key];
      if (zoom !== undefined && this.option.dataZoom) {
        this.zoom(zoom);
        event.preventDefault();
        return;
      }
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [
                      1, 0
                    ]}[event.key];
      if (event.key === 'Escape') {
        this.chart.dispatchAction({type: 'hideTip'});
        return;
      }
      if (!move) return;
      event.preventDefault();
      const lines = this.option.series.map((s, k) => ({k, id: s.id, n: s.data ? s.data.length : 0}))
                        .filter(s => String(s.id).startsWith('line:') && s.n > 0);
      if (lines.length === 0) return;
      let [s, i] = this.at || [0, -1];
      s = Math.min(lines.length - 1, Math.max(0, s + move[0]));
      const step = event.shiftKey ? 10 : 1;
      i = Math.min(lines[s].n - 1, Math.max(0, i + move[1] * step));
      this.at = [s, i];
      this.chart.dispatchAction({type: 'showTip', seriesIndex: lines[s].k, dataIndex: i});
      this.live.textContent = this.words(Number(lines[s].id.split(':')[1]), i);
    }
    words(i, k) {
      const spec = this.spec;
      if (spec.kind === 'heat') {
        const [c, r, v] = spec.heat.cells[k];
        return `${spec.heat.rowName} ${spec.heat.rows[r]}, ${spec.heat.columnName} ${
            spec.heat.columns[c]}: ${say(v, spec.heat.unit)}`;
      }
      const s = spec.series[i];
      if (spec.kind === 'bars')
        return `${spec.categories[k]}, ${s.name}: ${say(s.values[k], spec.y.unit)}`;
      const v = s.values[k];
      return `${s.names ? s.names[k] : s.name}: ${spec.x.name} ${say(v[0], spec.x.unit)}, ${
          spec.y.name} ${say(v[1], spec.y.unit)}`;
    }

    fillTable() {
      if (!this.data.open) return;
      const table = tableOf(...dataOf(this.spec));
      while (this.data.children.length > 1) this.data.lastChild.remove();
      this.data.append(table);
    }

    resize() {
      if (this.lastWidth === this.width()) return;
      this.lastWidth = this.width();
      this.draw();
    }
    redraw() {
      this.build();
    }
    dispose() {
      this.observer.disconnect();
      this.chart.dispose();
      this.node.remove();
      cards.splice(cards.indexOf(this), 1);
    }
  }

  function redrawAll() {
    for (const card of cards) {
      card.buildKey();
      card.draw();
      card.chart.getZr().flush();
    }
  }

  /// A button that goes through the themes, and everything that has to follow a change of them.
  function themeSwitch(button) {
    const words = {auto: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark'};
    let now = 'auto';
    const show = () => {
      if (now === 'auto')
        delete document.documentElement.dataset.theme;
      else
        document.documentElement.dataset.theme = now;
      button.textContent = words[now];
      redrawAll();
    };
    button.addEventListener('click', () => {
      now = {auto: 'light', light: 'dark', dark: 'auto'}[now];
      show();
    });
    window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
    window.addEventListener('beforeprint', () => {
      charts.setPrinting(true);
      document.documentElement.classList.add('printing');
      redrawAll();
    });
    window.addEventListener('afterprint', () => {
      charts.setPrinting(false);
      document.documentElement.classList.remove('printing');
      redrawAll();
    });
    show();
  }

  return {
    mount: (host, options) => new Card(host, options),
    el,
    tableOf,
    themeSwitch,
    redrawAll,
    all: () => cards,
    scale,
    named
  };
})();
