'use strict';
// Charts of categories: horizontal bars and heat maps. `window.kvsimBarCharts`; needs units.js,
// chart_parts.js.
window.kvsimBarCharts = (() => {
  const {number, scale, named} = window.kvsimUnits;
  const {kHatches, kHeat, dark, fillOf, largest, axisOption, baseOption, brokenText, cutText} =
      window.kvsimChartParts;
  const kCharacter = 6.6;  // pixels, for 12-pixel text

  function barLabelRoom(width) {
    return Math.round(Math.min((width < 560 ? 0.36 : 0.26) * width, 240));
  }
  /// The height in pixels of a bar chart at `width`: each row has as many lines as the longest
  /// label.
  function barsHeight(spec, width) {
    const perLine = Math.max(8, Math.floor(barLabelRoom(width) / kCharacter));
    const lines = spec.categories.map(text => Math.ceil(String(text).length * 1.15 / perLine));
    const longest = Math.min(3, Math.max(...lines));
    return 86 + Math.max(2, spec.categories.length) * Math.max(30, 15 * longest + 5);
  }

  function barsOption(spec, hidden, look, narrow, width) {
    const option = baseOption(look, narrow);
    delete option.dataZoom;
    const shown = spec.series.filter(s => !hidden.has(s.name) && !s.beside);
    const totals =
        spec.categories.map((_, k) => shown.reduce((sum, s) => sum + (s.values[k] || 0), 0));
    const ends = spec.ends || [], limits = spec.limits || [], ranges = spec.ranges || [];
    const over = spec.y.max !== undefined ?
        [spec.y.max] :
        [
          ...totals, ...limits, ...(spec.levels || []).map(l => l.value),
          ...ranges.filter(Boolean).map(r => r[1])
        ];
    const x = axisOption(spec.y, over, look);
    const room = barLabelRoom(width);
    if (x.option.max !== undefined) {  // round up
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
        lineHeight: 14,
        interval: 0,
        formatter: i =>
            brokenText(spec.categories[i], Math.max(8, Math.floor(room / kCharacter)))
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
        data: s.values.map(v => v ? v / x.by : '-'),
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
                     Math.max(totals[i], limits[i] || 0, ranges[i] ? ranges[i][1] : 0) / x.by,
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
              text: brokenText(text, Math.floor(Math.max(110, width - left - 14) / kCharacter)),
              x: left + 8,  // so that it does not touch a level at the bar's end
              y: middle,
              verticalAlign: 'middle',
              fill: look.text,
              font: `12px ${look.font}`,
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
    if (ranges.some(Boolean)) {
      option.series.push({
        id: 'ranges',
        type: 'custom',
        silent: true,
        tooltip: {show: false},
        z: 6,
        data: ranges.map((r, i) => [r ? r[0] / x.by : NaN, r ? r[1] / x.by : NaN, i]),
        encode: {x: [0, 1], y: 2},
        renderItem(params, api) {
          if (!ranges[params.dataIndex]) return null;
          const [left, middle] = api.coord([api.value(0), api.value(2)]);
          const [right] = api.coord([api.value(1), api.value(2)]);
          const d = `M${left},${middle - 5} V${middle + 5} M${left},${middle} H${right} M${right},${
              middle - 5} V${middle + 5}`;
          // Background colour under text colour, so that it is visible on every bar.
          return {
            type: 'group',
            children: [[look.card, 5], [look.text, 2]].map(([stroke, lineWidth]) => ({
              type: 'path', silent: true, shape: {pathData: d}, style: {stroke, lineWidth, fill: 'none'}
            }))
          };
        }
      });
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
    option.yAxis.axisLabel = {
      ...option.yAxis.axisLabel,
      formatter: text => cutText(text, Math.floor((left - 36) / kCharacter))
    };
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

  return {barsHeight, barsOption, heatOption};
})();
