'use strict';
// Puts accessible charts on a page: they can be read without a mouse, without colours and with a
// screen reader. `window.kvsimCards`; needs units.js, charts.js, card_parts.js, card_tips.js and
// `echarts`.
//   const card = kvsimCards.mount(host, {
//     id: 'memory', title: 'Peak memory versus length', text: 'what to see in the chart',
//     level: 3,                          // of its heading; default 3
//     choices: [{name: 'point', options: ['a', 'b']}],   // selects above the chart; optional
//     make: chosen => spec,              // from the chosen indices: a spec of charts.js, plus
//   });                                  //   spec.text, spec.note if they depend on the choice
//   card.redraw();                       // after the data used by `make` has changed
//   card.dispose();
// A card has a heading, a key whose entries are buttons (they show and hide a line), axis switches,
// zoom buttons, the chart, and the data as a table. The chart can have the focus: left and right move
// along a line, including its open marks and crosses, Home and End to its ends, up and down to the
// next line; + and - zoom, 0 resets. A live region announces the current point.
window.kvsimCards = (() => {
  const {named, scale} = window.kvsimUnits;
  const charts = window.kvsimCharts;
  const {el, swatch, tableOf, dataOf} = window.kvsimCardParts;
  const {tipOf, stopsOf} = window.kvsimCardTips;
  const cards = [];
  const kPaperWidth = 660;  // pixels; A4 and letter between usual margins

  class Card {
    constructor(host, options) {
      this.options = options;
      this.hidden = new Set();
      this.chosen = (options.choices || []).map(choice => choice.first || 0);
      this.logs = {};
      this.at = null;  // [series, point] of the keyboard position
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
             'Left and right arrows move between points, including open marks and crosses. Home and End move to the first and last point of a line. Up and down select another line. Plus and minus zoom; 0 resets the zoom. A table below has the same data.'),
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

    /// Makes the spec again and draws all of it.
    build() {
      const previous = this.spec;
      this.spec = this.options.make(this.chosen);
      if (previous && previous.kind !== this.spec.kind) this.logs = {};
      this.text.textContent = this.spec.text || this.options.text || '';
      const ticks =
          (this.spec.limits || []).some(v => v > 0) ? `Red ticks: ${this.spec.limitName}.` : '';
      const ranges =
          (this.spec.ranges || []).some(Boolean) ? `Lines over bars: ${this.spec.rangeName}.` : '';
      const note = [ticks, ranges, this.spec.note].filter(Boolean).join(' ');
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

    /// The spec with the axis scales that the reader selected.
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
      option.tooltip.formatter = params => tipOf(spec, params, x, y, (a, b) => this.near(a, b));
      this.chart.resize({width: this.width(), height: this.height()});
      // An open tip would look for the previous series.
      this.chart.dispatchAction({type: 'hideTip'});
      this.chart.setOption(option, {replaceMerge: ['series', 'xAxis', 'yAxis'], lazyUpdate: false});
      this.option = option;
      this.by = {x, y};
    }

    /// Whether a line has a point close to the pointer.
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
      if (event.key === 'Escape') {
        this.chart.dispatchAction({type: 'hideTip'});
        return;
      }
      const along = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key] || 0;
      const across = {ArrowUp: -1, ArrowDown: 1}[event.key] || 0;
      if (along === 0 && across === 0) return;
      event.preventDefault();
      const lines = stopsOf(this.spec, this.option.series);
      if (lines.length === 0) return;
      let [s, i] = this.at || [0, -1];
      const former = lines[s] && lines[s][i];
      s = Math.min(lines.length - 1, Math.max(0, s + across));
      // Nearest to the previous position: lines may have points at different x values.
      if (across !== 0 && former) {
        const distance = stop => Math.abs(stop.x - former.x) + (stop.order === former.order ? 0 : 1e-9);
        i = lines[s].reduce((best, stop, k) => distance(stop) < distance(lines[s][best]) ? k : best, 0);
      }
      i = Math.min(lines[s].length - 1, Math.max(0, i + along * (event.shiftKey ? 10 : 1)));
      this.at = [s, i];
      const stop = lines[s][i];
      this.chart.dispatchAction(
          {type: 'showTip', seriesIndex: stop.seriesIndex, dataIndex: stop.dataIndex});
      this.live.textContent = stop.words();
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

  /// A button that cycles through the themes and redraws on each change.
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
