'use strict';
// Charts of kvsim's pages: colours, line styles, and the ECharts options of each kind of chart.
// `window.kvsimCharts`; needs units.js, chart_parts.js, chart_bars.js. cards.js puts a chart on a
// page with its key, axis switches, table and keyboard control; most callers need only
// `kvsimCards.mount` and the spec below.
// A spec describes a chart, in base units:
//   kind     'lines' | 'area' (stacked) | 'points' | 'bars' (stacked, horizontal) | 'heat'
//   x, y     {name, unit, log: logarithmic at first, logChoice: the reader may switch}
//   series   [{name, values: [[x, y], …], style: index in the palette (default: its index),
//              marks: false                   lines: drawn across, no value was run at any x
//              band: [[x, low, high], …]      lines: interval around the line
//              ends: [{x, y, text}]           lines: a cross where memory runs out
//              open: [{x, y, text}]           lines: an open mark
//              names: [one text per point]    points: the names of the points
//              join: true                     points: a thin line through them (a front)
//              fill, hatch                    area and bars: colour and pattern of the part
//              values: [one per category]}]   bars
//              faint: true                    points: small and grey
//              front: true                    points: a dashed grey line, no marks
//   levels   [{name, value}]                  a horizontal line at that height (HBM)
//   plumbs   [{name, value}]                  a vertical line (a bound to meet)
//   roofs    [{name, values: [[x, y], …]}]    thin grey lines behind everything
//   categories [text]                         bars: the name of each bar; also one per bar:
//   details, ends, headings, limits, ranges   the text under the name, the text at its end, whether
//                                             it is a heading without a bar, its limit, [low, high]
//   heat     {rows: [text], columns: [text], cells: [[column, row, value]], unit, rowName,
//             columnName, valueName}
window.kvsimCharts = (() => {
  const {say, number} = window.kvsimUnits;
  const parts = window.kvsimChartParts;
  const {barsHeight, barsOption, heatOption} = window.kvsimBarCharts;
  const {
    kCross,
    kHatches,
    tones,
    styleOf,
    fillOf,
    numbersOn,
    axisOption,
    markedEvery,
    baseOption,
    levelLines,
    bandSeries,
    crossOf
  } = parts;

  const kMostNested = 1000;  // with more marks, rings are not computed

  /// The ring of each mark `series:point`: the number of marks of earlier series at its place.
  /// Marks at the same place are drawn around each other. `shown`: [{series, point, x, y}] in axis
  /// units.
  function ringsOf(shown, option, narrow) {
    const rings = new Map();
    if (shown.length > kMostNested) return rings;
    const touch = [7 / (narrow ? 260 : 560), 7 / 240];  // 7 pixels relative to a plot's width and
                                                        // height
    const across = sharesOf(shown.map(m => m.x), option.xAxis), up = sharesOf(shown.map(m => m.y), option.yAxis);
    shown.forEach((a, m) => {
      const inside = shown.filter((b, n) => b.series < a.series && Math.abs(across[n] - across[m]) < touch[0] &&
                                            Math.abs(up[n] - up[m]) < touch[1]);
      rings.set(`${a.series}:${a.point}`, Math.min(new Set(inside.map(b => b.series)).size, 4));
    });
    return rings;
  }

  /// `values` as shares of the axis that they are drawn on.
  function sharesOf(values, axis) {
    const scaled = values.map(v => axis.type === 'log' ? Math.log(Math.max(v, Number.MIN_VALUE)) : v);
    const there = scaled.filter(Number.isFinite);
    const least = axis.scale || axis.type === 'log' ? Math.min(...there) : Math.min(0, ...there);
    const span = Math.max(...there) - least || 1;
    return scaled.map(v => (v - least) / span);
  }

  /// Ends a logarithmic axis at 1, 2 or 5 times a power of ten near its values; by default it would
  /// end at whole decades.
  function fitLog(axis, values) {
    const there = values.filter(v => Number.isFinite(v) && v > 0);
    if (axis.type !== 'log' || there.length === 0) return;
    const nice = decade => [1, 2, 5, 10].map(digit => digit * decade);
    const least = Math.min(...there), most = Math.max(...there);
    const below = nice(10 ** Math.floor(Math.log10(least))).filter(v => v <= least);
    const above = nice(10 ** Math.floor(Math.log10(most))).filter(v => v >= most);
    if (axis.min === undefined) axis.min = below[below.length - 1];
    if (axis.max === undefined) axis.max = above[0];
  }

  /// A hollow mark around marks of `size` pixels.
  function ringLook(ring, colour, size) {
    return {symbolSize: size + 5 * ring, itemStyle: {color: 'transparent', borderColor: colour, borderWidth: 2}};
  }

  function linesOption(spec, hidden, look, narrow) {
    const option = baseOption(look, narrow);
    const x = axisOption(spec.x, numbersOn(spec, 0), look);
    const y = axisOption(spec.y, numbersOn(spec, 1), look);
    option.xAxis = {...x.option, nameGap: 28, scale: true};
    option.yAxis = {...y.option, nameGap: narrow ? 38 : 52};
    fitLog(option.xAxis, [...numbersOn(spec, 0)].map(v => v / x.by));
    if ((spec.plumbs || []).length > 0) option.grid.top = 32;
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
    const leftmost = least + 0.08 * (most - least);  // left of it, a label does not fit under a
                                                     // cross
    const isMarked = (s, i, k) => s.marks !== false &&
        (s.values.length < 3 || (k + i) % markedEvery(s.values.length, narrow ? 5 : 9) === 0);
    const shown = [];
    spec.series.forEach((s, i) => s.values.forEach((v, k) => {
      if (!hidden.has(s.name) && v[1] !== null && isMarked(s, i, k))
        shown.push({series: i, point: k, x: v[0] / x.by, y: v[1] / y.by});
    }));
    const rings = ringsOf(shown, option, narrow);
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      const {colour, dash, mark} = styleOf(spec, i);
      if (s.band && s.band.length > 1)
        option.series.push(bandSeries(s, `band:${i}`, colour, x.by, y.by, 1));
      option.series.push({
        id: `line:${i}`,
        name: s.name,
        type: 'line',
        z: 4,
        showAllSymbol: true,
        step: s.step ? 'end' : undefined,
        data: s.values.map((v, k) => {
          const ring = rings.get(`${i}:${k}`);
          const value = [v[0] / x.by, v[1] === null ? null : v[1] / y.by];
          if (ring === undefined) return {value, symbol: isMarked(s, i, k) ? mark : 'none'};
          return {value, symbol: mark, ...(ring > 0 ? ringLook(ring, colour, 7) : {})};
        }),
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
                    offset: e.x < leftmost ? [2, e.y === 0 ? -10 : 12] : [0, 0],
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
    const shown = [];
    spec.series.forEach((s, i) => s.values.forEach((v, k) => {
      if (!hidden.has(s.name) && !s.front && !s.faint)
        shown.push({series: i, point: k, x: v[0] / x.by, y: v[1] / y.by});
    }));
    const rings = ringsOf(shown, option, narrow);
    spec.series.forEach((s, i) => {
      if (hidden.has(s.name)) return;
      const {colour, dash, mark} = styleOf(spec, i);
      const data = s.values.map((v, k) => {
        const value = [v[0] / x.by, v[1] / y.by];
        const ring = rings.get(`${i}:${k}`);
        return ring ? {value, ...ringLook(ring, colour, 11)} : value;
      });
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

  const kKinds = {
    lines: linesOption,
    area: areaOption,
    points: pointsOption,
    bars: barsOption,
    heat: heatOption
  };

  /// The ECharts option of a spec without the series named in `hidden` (a Set), at `width` pixels,
  /// and the divisors of x and y values. The caller adds tooltip.formatter.
  function optionOf(spec, hidden, width) {
    const look = {...tones(), room: width - 90};
    const made = kKinds[spec.kind](spec, hidden, look, width < 560, width);
    // Vertical names are limited by the chart's height, not its width.
    const standing = made.option.yAxis.nameTruncate;
    if (standing) made.option.yAxis.nameTruncate = {...standing, maxWidth: 260};
    return made;
  }

  return {...parts, optionOf, barsHeight, say, number};
})();
