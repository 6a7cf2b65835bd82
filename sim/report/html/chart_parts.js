'use strict';
// Parts of all kinds of charts: colours, line styles, axes, levels, bands, crosses.
// `window.kvsimChartParts`; needs units.js.
window.kvsimChartParts = (() => {
  const {number, scale, named} = window.kvsimUnits;

  // The order of the gnuplot figures (Okabe and Ito, without yellow), and the same hues light
  // enough for a dark background.
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
    // cividis: uniform in lightness, also for colour-blind readers
    light: ['#00224e', '#35456c', '#666970', '#948e77', '#c8b866', '#fee838'],
    dark: ['#12305f', '#46577f', '#747880', '#a29b84', '#d3c171', '#fee838'],
  };
  let printing = false;

  /// Whether the page is dark now: the reader's choice, else the system's; printed pages are light.
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

  /// All colours except those of the data, from the style sheet.
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

  /// The style of the i-th line; the first 210 are all different.
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

  /// A part's fill, lightened if it would be hard to see on a dark background.
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
  /// All numbers on an axis, 0 for x and 1 for y.
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

  /// `text` in lines of at most `columns` characters, broken at spaces if possible. ECharts would
  /// split an emoji in two, and Chromium crashes when it reads half a character back.
  function brokenText(text, columns) {
    const lines = [];
    let line = [];
    for (const word of String(text).split(' ')) {
      const rest = [...word];
      if (line.length > 0 && line.length + 1 + rest.length > columns) {
        lines.push(line);
        line = [];
      }
      while (rest.length > columns) lines.push(rest.splice(0, columns));
      line = line.length > 0 ? [...line, ' ', ...rest] : rest;
    }
    return [...lines, line].map(l => l.join('')).join('\n');
  }
  /// `text` cut to `columns` characters.
  function cutText(text, columns) {
    const all = [...String(text)];
    return all.length <= columns ? all.join('') : all.slice(0, Math.max(1, columns - 1)).join('') + '…';
  }

  /// The stride at which about `wanted` of `n` points have a mark.
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
                                    position: 'end',
                                    color: look.text,
                                    fontSize: 12,
                                    fontFamily: look.font
                                  },
                                  // Horizontal, above its line: a vertical label would cross other
                                  // lines.
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

  /// The shaded band around a line.
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
        offset: label.offset,
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

  return {
    kCross,
    kHatches,
    kHeat,
    dark,
    setPrinting,
    isPrinting,
    tones,
    lineStyle,
    styleOf,
    fillOf,
    largest,
    numbersOn,
    axisOption,
    brokenText,
    cutText,
    markedEvery,
    baseOption,
    levelLines,
    bandSeries,
    crossOf
  };
})();
