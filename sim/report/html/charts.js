'use strict';
// Charts of kvsim's pages: colours, line styles, and the ECharts options of each kind of chart.
// `window.kvsimCharts`; needs units.js. cards.js puts a chart on a page with its keys, axes'
// switches, table and keyboard; most callers want `kvsimCards.mount` and only the spec below.
//
// A spec says what is drawn, in base units:
//   kind     'lines' | 'area' (stacked) | 'points' | 'bars' (stacked, lying) | 'heat'
//   x, y     {name, unit, log: drawn so at first, logChoice: the reader may switch}
//   series   [{name, values: [[x, y], …], style: place in the palette (default: its index),
//              band: [[x, low, high], …]      lines: where cases lie about the line
//              ends: [{x, y, text}]           lines: a cross, where memory runs out
//              open: [{x, y, text}]           lines: an open mark
//              names: [text a point]          points: what the point is called
//              join: true                     points: a thin line through them (a front)
//              fill, hatch                    area and bars: colour and pattern of the part
//              values: [number a category]}]  bars
//              faint: true                    points: small and grey
//              front: true                    points: a dashed grey line, no marks
//   levels   [{name, value}]                  a line across at that height (HBM)
//   plumbs   [{name, value}]                  a line from top to bottom (a bound that is to be
//   kept) roofs    [{name, values: [[x, y], …]}]    thin grey lines behind everything categories
//   [text]                        bars: what each bar is; beside it, of each bar, details, ends,
//   headings, limits           what stands under it, at its end, whether it is a
//                                             heading without a bar, and its own limit
//   heat     {rows: [text], columns: [text], cells: [[column, row, value]], unit, rowName,
//             columnName, valueName}
window.kvsimCharts = (() => {
  const {say, number, scale, named} = window.kvsimUnits;

  // The gnuplot figures' order (Okabe and Ito, without the yellow), and the same hues light enough
  // for a dark ground.
  const kColours = {
    light: ['#0072B2', '#D55E00', '#009E73', '#000000', '#CC79A7', '#E69F00', '#56B4E9'],
    dark: ['#4FA3E0', '#F2803A', '#2CC29A', '#F2F2F2', '#E79CC6', '#F2B632', '#A6DAF7'],
  };
  const kDashes = ['solid', [12, 5], [3, 4], [12, 4, 3, 4], [7, 3]];
  const kPentagon = 'path://M50,0 L98,35 L79,91 L21,91 L2,35 Z';
  const kMarks =
      ['circle', 'rect', 'triangle', 'diamond', 'path://M0,0 L100,0 L50,90 Z', kPentagon];
  const kCross =
      'path://M12,0 L50,38 L88,0 L100,12 L62,50 L100,88 L88,100 L50,62 L12,100 L0,88 L38,50 L0,12 Z';
  const kHatches = [
    null,
    {rotation: Math.PI / 4, dashArrayX: [1, 0], dashArrayY: [2, 5]},
    {rotation: -Math.PI / 4, dashArrayX: [1, 0], dashArrayY: [2, 5]},
    {dashArrayX: [1, 0], dashArrayY: [2, 5]},
    {rotation: Math.PI / 2, dashArrayX: [1, 0], dashArrayY: [2, 5]},
    {dashArrayX: [[3, 5], [0, 4, 3, 1]], dashArrayY: [3, 3]},
  ];
  const kHeat = {
    // cividis, even in lightness and to colour-blind readers
    light: ['#00224e', '#35456c', '#666970', '#948e77', '#c8b866', '#fee838'],
    dark: ['#12305f', '#46577f', '#747880', '#a29b84', '#d3c171', '#fee838'],
  };
  let printing = false;

  /// Whether the page is dark now: the reader's choice, else the system's; paper is white.
  function dark() {
    if (printing) return false;
    const chosen = document.documentElement.dataset.theme;
    if (chosen === 'dark' || chosen === 'light') return chosen === 'dark';
    return window.matchMedia('(prefers-color-scheme: dark)').matches;
  }
  function setPrinting(on) {
    printing = on;
  }
  function isPrinting() {
    return printing;
  }

  /// Colours of everything but the data, from the style sheet.
  function tones() {
    const style = getComputedStyle(document.documentElement);
    const of = name => style.getPropertyValue(name).trim();
    return {
      text: of('--ink'),
      soft: of('--ink-soft'),
      grid: of('--rule'),
      ground: of('--ground'),
      card: of('--card'),
      alarm: of('--alarm'),
      accent: of('--accent'),
      font: of('--font')
    };
  }

  /// How the i-th line is drawn: no two of the first 210 alike.
  function lineStyle(i) {
    const colours = kColours[dark() ? 'dark' : 'light'];
    return {
      colour: colours[i % colours.length],
      dash: kDashes[i % kDashes.length],
      mark: kMarks[i % kMarks.length]
    };
  }
  function styleOf(spec, i) {
    const series = spec.series[i];
    return lineStyle(series.style === undefined ? i : series.style);
  }

  /// A part's fill, lifted off a dark ground where it would be lost there.
  function fillOf(series, i) {
    const given = series.fill || lineStyle(i).colour;
    if (!dark()) return given;
    const lifted = {
      '#333333': '#8A8A8A',
      '#000000': '#F2F2F2',
      '#BBBBBB': '#5C6670',
      '#0072B2': '#2F86C9',
      '#56B4E9': '#A6DAF7',
      '#E8F1F8': '#2C3B49',
      '#777777': '#A0A0A0',
      '#FFFFFF': '#22282E'
    };
    return lifted[given.toUpperCase()] || given;
  }

  function largest(values) {
    let most = 0;
    for (const v of values) {
      if (Number.isFinite(v) && Math.abs(v) > most) most = Math.abs(v);
    }
    return most;
  }
  /// All numbers that stand on an axis, 0 for x and 1 for y.
  function* numbersOn(spec, axis) {
    for (const s of spec.series || []) {
      for (const v of s.values || []) yield Array.isArray(v) ? v[axis] : v;
      for (const e of [...(s.ends || []), ...(s.open || [])]) yield axis === 0 ? e.x : e.y;
      for (const b of s.band || []) {
        if (axis === 1) yield b[2];
      }
    }
    for (const roof of spec.roofs || [])
      for (const v of roof.values) yield v[axis];
    for (const level of (axis === 1 ? spec.levels : spec.plumbs) || []) yield level.value;
  }

  function axisOption(axis, over, look) {
    const {by, unit} = scale(axis.unit, largest(over));
    return {
      by,
      unit,
      option: {
        type: axis.log ? 'log' : 'value',
        name: named(axis.name, unit),
        nameLocation: 'middle',
        scale: axis.fromZero === false,
        nameTextStyle: {color: look.soft, fontFamily: look.font, fontSize: 13},
        nameTruncate: {maxWidth: look.room, ellipsis: '…'},
        axisLine: {show: true, lineStyle: {color: look.soft}},
        axisTick: {show: true, lineStyle: {color: look.soft}},
        axisLabel: {
          color: look.soft,
          fontFamily: look.font,
          fontSize: 12,
          hideOverlap: true,
          formatter: number
        },
        splitLine: {lineStyle: {color: look.grid}},
        minorTick: {show: false},
        min: axis.min === undefined ? undefined : axis.min / by,
        max: axis.max === undefined ? undefined : axis.max / by,
        axisPointer: {label: {show: false}},
      },
    };
  }

  /// Of many points about `wanted` carry a mark, first and last among them.
  function markedEvery(n, wanted) {
    return Math.max(1, Math.ceil((n - 1) / wanted));
  }

  function baseOption(look, narrow) {
    return {
      animation: false,
      backgroundColor: 'transparent',
      textStyle: {fontFamily: look.font, color: look.text},
      grid: {
        left: narrow ? 52 : 72,
        right: narrow ? 14 : 28,
        top: 18,
        bottom: printing ? 56 : 92,
        containLabel: false
      },
      dataZoom: [
        {
          type: 'inside',
          xAxisIndex: 0,
          filterMode: 'none',
          zoomOnMouseWheel: 'ctrl',
          preventDefaultMouseMove: false
        },
        {
          type: 'slider',
          show: !printing,
          xAxisIndex: 0,
          filterMode: 'none',
          bottom: 8,
          height: 20,
          showDetail: false,
          brushSelect: false,
          borderColor: look.grid,
          fillerColor: 'rgba(86,140,190,0.22)',
          handleStyle: {color: look.card, borderColor: look.soft},
          moveHandleSize: 0,
          showDataShadow: false,
          backgroundColor: 'transparent'
        },
      ],
      tooltip: {
        confine: true,
        backgroundColor: look.card,
        borderColor: look.soft,
        padding: 0,
        extraCssText: 'box-shadow:none',
        textStyle: {color: look.text, fontFamily: look.font, fontSize: 13},
        axisPointer: {type: 'line', lineStyle: {color: look.soft, type: 'dashed'}}
      },
    };
  }

  function levelLines(spec, by, look, xBy) {
    const plumbs =
        (spec.plumbs || []).map(plumb => ({
                                  xAxis: plumb.value / xBy,
                                  label: {
                                    formatter: () => plumb.name,
                                    position: 'insideEndTop',
                                    color: look.text,
                                    fontSize: 12,
                                    fontFamily: look.font
                                  },
                                  lineStyle: {color: look.alarm, type: 'dashed', width: 1.5}
                                }));
    if ((!spec.levels || spec.levels.length === 0) && plumbs.length === 0) return undefined;
    return {
      silent: true,
      symbol: 'none',
      animation: false,
      data: [
        ...plumbs,
        ...(spec.levels || []).map(level => ({
                                     yAxis: level.value / by,
                                     name: level.name,
                                     label: {
                                       formatter: () => level.name,
                                       position: 'insideStartTop',
                                       color: look.text,
                                       fontSize: 12,
                                       fontFamily: look.font
                                     },
                                     lineStyle: {color: look.alarm, type: 'solid', width: 1.5},
                                   }))
      ],
    };
  }

  /// The shaded strip about a line.
  function bandSeries(series, id, colour, sx, sy, z) {
    const points = series.band.map(([x, low, high]) => [x / sx, low / sy, high / sy]);
    return {
      id,
      type: 'custom',
      silent: true,
      z,
      data: points,
      encode: {x: 0, y: [1, 2]},
      clip: true,
      tooltip: {show: false},
      renderItem(params, api) {
        if (params.dataIndex !== 0 && params.dataIndexInside !== 0) return null;
        const edge = points.map(p => api.coord([p[0], p[2]]));
        for (let i = points.length - 1; i >= 0; --i)
          edge.push(api.coord([points[i][0], points[i][1]]));
        return {
          type: 'polygon',
          shape: {points: edge},
          style: {fill: colour, opacity: 0.14},
          silent: true
        };
      },
    };
  }

  function crossOf(item, id, name, sx, sy, style, symbol, size, label) {
    return {
      label: label ? {
        show: true,
        formatter: () => label.text,
        position: label.position,
        color: label.colour,
        fontSize: 12,
        fontFamily: label.font,
        textBorderWidth: 3,
        textBorderColor: label.around
      } :
                     undefined,
      labelLayout: label ? {hideOverlap: true, moveOverlap: 'shiftY'} : undefined,
      id,
      name,
      type: 'scatter',
      z: 6,
      symbol,
      symbolSize: size,
      data: [[item.x / sx, item.y / sy]],
      itemStyle: style,
      clip: false,
      tooltip: {trigger: 'item'},
    };
  }

  function linesOption(spec, hidden, look, narrow) {
    const option = baseOption(look, narrow);
    const x = axisOption(spec.x, numbersOn(spec, 0), look);
    const y = axisOption(spec.y, numbersOn(spec, 1), look);
    option.xAxis = {...x.option, nameGap: 28, scale: true};
    option.yAxis = {...y.option, nameGap: narrow ? 38 : 52};
    option.tooltip.trigger = 'axis';
    option.series = [];
    const anchor = {
      id: 'levels',
      type: 'line',
      data: [],
      silent: true,
      markLine: levelLines(spec, y.by, look, x.by)
    };
    option.series.push(anchor);
    (spec.roofs || []).forEach((roof, i) => option.series.push({
      id: `roof:${i}`,
      name: roof.name,
      type: 'line',
      silent: true,
      symbol: 'none',
      z: 1,
      tooltip: {show: false},
      data: roof.values.map(v => [v[0] / x.by, v[1] / y.by]),
      lineStyle: {color: look.soft, width: 1.5}
    }));
    const all = [...numbersOn(spec, 0)].filter(Number.isFinite);
    const least = Math.min(...all), most = Math.max(...all);
    const leftmost = least + 0.08 * (most - least);  // where a label under a cross has no room
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      const {colour, dash, mark} = styleOf(spec, i);
      if (s.band && s.band.length > 1)
        option.series.push(bandSeries(s, `band:${i}`, colour, x.by, y.by, 1));
      const every = markedEvery(s.values.length, narrow ? 5 : 9);
      option.series.push({
        id: `line:${i}`,
        name: s.name,
        type: 'line',
        z: 4,
        showAllSymbol: true,
        step: s.step ? 'end' : undefined,
        data: s.values.map((v, k) => ({
                             value: [v[0] / x.by, v[1] === null ? null : v[1] / y.by],
                             symbol: s.values.length < 3 || (k + i) % every === 0 ? mark : 'none'
                           })),
        symbolSize: 7,
        lineStyle: {color: colour, width: 2, type: dash},
        itemStyle: {color: colour},
        emphasis: {disabled: true},
      });
      (s.open || [])
          .forEach(
              (e, k) => option.series.push(crossOf(
                  e, `open:${i}:${k}`, s.name, x.by, y.by,
                  {color: look.card, borderColor: colour, borderWidth: 2}, mark, 9)));
      (s.ends || [])
          .forEach(
              (e, k) => option.series.push(crossOf(
                  e, `end:${i}:${k}`, s.name, x.by, y.by,
                  {color: colour, borderColor: look.card, borderWidth: 1}, kCross, 14,
                  narrow ? null : {
                    text: `OOM ${say(e.x, spec.x.unit)}`,
                    position: e.x < leftmost ? 'right' :
                        e.y === 0            ? 'top' :
                                               'bottom',
                    colour: look.text,
                    around: look.card,
                    font: look.font
                  })));
    });
    return {option, x, y};
  }

  function areaOption(spec, hidden, look, narrow) {
    const option = baseOption(look, narrow);
    const shown = spec.series.filter(s => !hidden.has(s.name));
    const n = spec.series.length > 0 ? spec.series[0].values.length : 0;
    const tops = [];
    for (let k = 0; k < n; ++k)
      tops.push(shown.reduce((sum, s) => sum + (s.values[k] ? s.values[k][1] : 0), 0));
    const x = axisOption(spec.x, numbersOn(spec, 0), look);
    const y = axisOption(
        {...spec.y, log: false}, [...tops, ...(spec.levels || []).map(l => l.value)], look);
    const first = n > 0 ? spec.series[0].values[0][0] : 0,
          last = n > 0 ? spec.series[0].values[n - 1][0] : 1;
    option.xAxis =
        {...x.option, nameGap: 28, max: 'dataMax', min: first < 0.05 * last ? 0 : 'dataMin'};
    option.xAxis.axisLabel = {
      ...option.xAxis.axisLabel,
      showMaxLabel: false,
      showMinLabel: first < 0.05 * last
    };
    option.yAxis = {...y.option, nameGap: narrow ? 38 : 52};
    option.tooltip.trigger = 'axis';
    option.series = [{
      id: 'levels',
      type: 'line',
      data: [],
      silent: true,
      markLine: levelLines(spec, y.by, look, x.by)
    }];
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      const fill = fillOf(s, i);
      option.series.push({
        id: `line:${i}`,
        name: s.name,
        type: 'line',
        stack: 'all',
        step: s.step ? 'end' : undefined,
        symbol: 'none',
        z: 3,
        data: s.values.map(v => [v[0] / x.by, v[1] / y.by]),
        lineStyle: {width: 0.6, color: look.card},
        areaStyle: {color: fill, opacity: 1},
        itemStyle: {color: fill, decal: kHatches[s.hatch] || undefined},
        emphasis: {disabled: true},
      });
    });
    return {option, x, y};
  }

  function pointsOption(spec, hidden, look, narrow) {
    const option = baseOption(look, narrow);
    const x = axisOption(spec.x, numbersOn(spec, 0), look);
    const y = axisOption(spec.y, numbersOn(spec, 1), look);
    option.xAxis = {...x.option, nameGap: 28};
    option.yAxis = {...y.option, nameGap: narrow ? 38 : 52};
    option.tooltip.trigger = 'item';
    option.series = [{
      id: 'levels',
      type: 'line',
      data: [],
      silent: true,
      markLine: levelLines(spec, y.by, look, x.by)
    }];
    (spec.roofs || []).forEach((roof, i) => option.series.push({
      id: `roof:${i}`,
      name: roof.name,
      type: 'line',
      silent: true,
      symbol: 'none',
      z: 1,
      data: roof.values.map(v => [v[0] / x.by, v[1] / y.by]),
      lineStyle: {color: look.soft, width: 1.5},
      endLabel: {
        show: !narrow,
        formatter: () => roof.name,
        color: look.text,
        fontSize: 12,
        offset: [-8, -10],
        align: 'right'
      }
    }));
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      const {colour, dash, mark} = styleOf(spec, i);
      const data = s.values.map(v => [v[0] / x.by, v[1] / y.by]);
      if (s.join) {
        option.series.push({
          id: `join:${i}`,
          name: s.name,
          type: 'line',
          silent: true,
          symbol: 'none',
          z: 2,
          data,
          lineStyle: {
            color: s.front || s.faint ? look.soft : colour,
            opacity: s.faint ? 0.4 : 1,
            width: s.front ? 2 : 1.2,
            type: s.front ? 'dashed' :
                s.faint   ? 'solid' :
                            dash
          }
        });
        if (s.front) return;
      }
      option.series.push({
        id: `line:${i}`,
        name: s.name,
        type: 'scatter',
        z: 4,
        symbol: s.faint ? 'circle' : mark,
        symbolSize: s.faint ? 6 : 11,
        data,
        itemStyle: {
          color: s.faint ? look.soft : colour,
          opacity: s.faint ? 0.5 : 1,
          borderColor: look.card,
          borderWidth: 1
        }
      });
    });
    return {option, x, y};
  }

  function barLabelRoom(width) {
    return Math.round(Math.min((width < 560 ? 0.36 : 0.26) * width, 240));
  }
  /// Pixels that a chart of bars needs at `width`: a row takes as many lines as the longest label.
  function barsHeight(spec, width) {
    const perLine = Math.max(8, Math.floor(barLabelRoom(width) / 6.6));
    const longest =
        Math.max(...spec.categories.map(text => Math.ceil(String(text).length * 1.15 / perLine)));
    return 86 + Math.max(2, spec.categories.length) * Math.max(30, 15 * longest + 5);
  }

  function barsOption(spec, hidden, look, narrow, width) {
    const option = baseOption(look, narrow);
    delete option.dataZoom;
    const shown = spec.series.filter(s => !hidden.has(s.name) && !s.beside);
    const totals =
        spec.categories.map((_, k) => shown.reduce((sum, s) => sum + (s.values[k] || 0), 0));
    const ends = spec.ends || [], limits = spec.limits || [];
    const over = spec.y.max !== undefined ?
        [spec.y.max] :
        [...totals, ...limits, ...(spec.levels || []).map(l => l.value)];
    const x = axisOption(spec.y, over, look);
    const room = barLabelRoom(width);
    if (x.option.max !== undefined) {  // a round end
      const step = 10 ** Math.floor(Math.log10(x.option.max)) / 2;
      x.option.max = Math.ceil(x.option.max / step) * step;
    }
    const atEnd = !narrow && ends.some(text => text);
    option.grid = {left: room + 14, right: atEnd ? 170 : narrow ? 22 : 40, top: 28, bottom: 52};
    option.xAxis = {...x.option, nameGap: 30};
    const heading = i => Boolean(spec.headings && spec.headings[i]);
    option.yAxis = {
      type: 'category',
      inverse: true,
      data: spec.categories.map((_, i) => i),
      axisLine: {lineStyle: {color: look.soft}},
      axisTick: {show: false},
      axisLabel: {
        color: i => heading(Number(i)) ? look.accent : look.text,
        fontFamily: look.font,
        fontSize: 12,
        width: room,
        overflow: 'break',
        lineHeight: 14,
        interval: 0,
        formatter: i => spec.categories[i]
      }
    };
    option.tooltip.trigger = 'axis';
    option.tooltip.axisPointer = {type: 'shadow', shadowStyle: {color: 'rgba(128,128,128,0.12)'}};
    option.series = [];
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      option.series.push({
        id: `line:${i}`,
        name: s.name,
        type: 'bar',
        stack: s.beside ? undefined : 'all',
        barMaxWidth: s.beside ? 7 : 24,
        data: s.values.map(v => (v || 0) / x.by),
        itemStyle: {
          color: fillOf(s, i),
          borderColor: look.soft,
          borderWidth: 0.5,
          decal: kHatches[s.hatch] || undefined
        },
        emphasis: {disabled: true},
        clip: true,
      });
    });
    if (atEnd) {
      const most = x.option.max;
      option.series.push({
        id: 'ends',
        type: 'custom',
        silent: true,
        clip: false,
        tooltip: {show: false},
        z: 5,
        data: ends.map(
            (text, i) =>
                [Math.min(
                     Math.max(totals[i], limits[i] || 0) / x.by,
                     most === undefined ? Infinity : most),
                 i]),
        encode: {x: 0, y: 1},
        renderItem(params, api) {
          const text = ends[params.dataIndex];
          if (!text) return null;
          const [left, middle] = api.coord([api.value(0), api.value(1)]);
          return {
            type: 'text',
            silent: true,
            style: {
              text,
              x: left + 6,
              y: middle,
              verticalAlign: 'middle',
              fill: look.text,
              font: `12px ${look.font}`,
              width: Math.max(110, width - left - 14),
              overflow: 'break',
              lineHeight: 13
            }
          };
        }
      });
    }
    if (option.series.length > 0) {
      const lines = (spec.levels || []).map(level => ({
                                              xAxis: level.value / x.by,
                                              label: {
                                                formatter: () => level.name,
                                                position: 'start',
                                                color: look.text,
                                                fontSize: 12,
                                                fontFamily: look.font
                                              }
                                            }));
      option.series[0].markLine = lines.length === 0 ? undefined : {
        silent: true,
        symbol: 'none',
        animation: false,
        lineStyle: {color: look.alarm, type: 'solid', width: 1.5},
        data: lines
      };
    }
    if (limits.some(v => v > 0)) {
      option.series.push({
        id: 'limits',
        type: 'custom',
        silent: true,
        tooltip: {show: false},
        z: 6,
        data: limits.map((v, i) => [v === null ? NaN : v / x.by, i]),
        encode: {x: 0, y: 1},
        renderItem(params, api) {
          if (!(limits[params.dataIndex] > 0)) return null;
          const [left, middle] = api.coord([api.value(0), api.value(1)]);
          return {
            type: 'line',
            shape: {x1: left, x2: left, y1: middle - 13, y2: middle + 13},
            style: {stroke: look.alarm, lineWidth: 2}
          };
        }
      });
    }
    return {option, x, y: x};
  }

  function heatOption(spec, hidden, look, narrow) {
    const {rows, columns, cells, unit, rowName, columnName, valueName} = spec.heat;
    const option = baseOption(look, narrow);
    delete option.dataZoom;
    const values = cells.map(c => c[2]).filter(Number.isFinite);
    const {by, unit: word} = scale(unit, largest(values));
    let low = Math.min(...values), high = Math.max(...values);
    if (!(high > low)) {
      low = 0;
      high = high > 0 ? high : by;
    }
    const axis = (name, data, gap) => ({
      type: 'category',
      data,
      name,
      nameLocation: 'middle',
      nameGap: gap,
      splitArea: {show: false},
      nameTextStyle: {color: look.soft, fontSize: 13, fontFamily: look.font},
      axisLine: {lineStyle: {color: look.soft}},
      axisTick: {show: false},
      axisLabel: {color: look.soft, fontSize: 12, fontFamily: look.font, hideOverlap: true}
    });
    const widest = Math.max(...rows.map(r => String(r).length));
    const left = Math.min(narrow ? 130 : 220, 40 + 7 * widest);
    option.grid = {left, right: narrow ? 14 : 28, top: 14, bottom: 112};
    option.xAxis = axis(columnName, columns, 26);
    option.yAxis = {...axis(rowName, rows, left - 16), inverse: true};
    option.yAxis.axisLabel = {...option.yAxis.axisLabel, width: left - 36, overflow: 'truncate'};
    option.tooltip.trigger = 'item';
    option.visualMap = {
      min: low / by,
      max: high / by,
      calculable: true,
      orient: 'horizontal',
      left: 'center',
      bottom: 2,
      inRange: {color: kHeat[dark() ? 'dark' : 'light']},
      precision: 1,
      itemHeight: narrow ? 120 : 200,
      itemWidth: 14,
      text: [`${named(valueName, word)}: more`, 'fewer'],
      textStyle: {color: look.soft, fontSize: 12, fontFamily: look.font},
      formatter: number
    };
    option.series = [{
      id: 'line:0',
      type: 'heatmap',
      data: cells.map(c => [c[0], c[1], c[2] / by]),
      itemStyle: {borderColor: look.card, borderWidth: cells.length > 1024 ? 0 : 1},
      emphasis: {itemStyle: {borderColor: look.alarm, borderWidth: 2}}
    }];
    return {option, x: {by: 1, unit: ''}, y: {by, unit: word}};
  }

  const kKinds = {
    lines: linesOption,
    area: areaOption,
    points: pointsOption,
    bars: barsOption,
    heat: heatOption
  };

  /// ECharts' option of a spec without the series named in `hidden` (a Set), at `width` pixels, and
  /// what x and y values were divided by. The caller adds tooltip.formatter.
  function optionOf(spec, hidden, width) {
    const look = {...tones(), room: width - 90};
    const made = kKinds[spec.kind](spec, hidden, look, width < 560, width);
    // Standing names have the chart's height, not its width.
    const standing = made.option.yAxis.nameTruncate;
    if (standing) made.option.yAxis.nameTruncate = {...standing, maxWidth: 260};
    return made;
  }

  return {
    optionOf,
    barsHeight,
    lineStyle,
    styleOf,
    fillOf,
    dark,
    setPrinting,
    isPrinting,
    tones,
    kHatches,
    say,
    number
  };
})();
