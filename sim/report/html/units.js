'use strict';
// Numbers with units as displayed on kvsim's pages. Values are in base units (B, s, tok/s, …); the
// most readable unit is chosen by size. `window.kvsimUnits`; has no dependencies.
//   say(3.5e9, 'B')          "3.26 GiB"
//   number(12345.6)          "12,346"
//   scale('B', 3.5e9)        {by: 1073741824, unit: 'GiB'}: an axis up to there is drawn in GiB
// Units that are not in the table ("tokens", "tok/s", "entries") are printed unchanged after the
// number; "share" is a fraction of 1 and is printed in %.
window.kvsimUnits = (() => {
  const kLadders = {
    B: [['B', 1], ['KiB', 2 ** 10], ['MiB', 2 ** 20], ['GiB', 2 ** 30], ['TiB', 2 ** 40]],
    s: [['ns', 1e-9], ['µs', 1e-6], ['ms', 1e-3], ['s', 1]],
    FLOP: [['FLOP', 1], ['MFLOP', 1e6], ['GFLOP', 1e9], ['TFLOP', 1e12], ['PFLOP', 1e15]],
    'FLOP/s':
        [['FLOP/s', 1], ['MFLOP/s', 1e6], ['GFLOP/s', 1e9], ['TFLOP/s', 1e12], ['PFLOP/s', 1e15]],
    'B/s': [['B/s', 1], ['MB/s', 1e6], ['GB/s', 1e9], ['TB/s', 1e12]],
    share: [['%', 0.01]],
  };
  const kManyDigits = 1000;  // no decimals at and above this value

  /// Four significant digits with thousands separators; an exponent below 1e-4 and at or above 1e15.
  function number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toExponential(2);
    if (size >= kManyDigits) return Math.round(value).toLocaleString('en-US');
    return String(Number(value.toPrecision(4)));
  }

  /// The divisor and the resulting unit for values up to `largest`.
  function scale(unit, largest) {
    const ladder = kLadders[unit];
    if (!ladder) return {by: 1, unit: unit || ''};
    let best = ladder[0];
    for (const rung of ladder) {
      if (Math.abs(largest) >= rung[1] * 0.9995) best = rung;
    }
    return {by: best[1], unit: best[0]};
  }

  function say(value, unit) {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    if (value === 0 && unit === 's') return '0 s';
    const {by, unit: name} = scale(unit, value);
    return number(value / by) + (name ? ' ' + name : '');
  }

  /// An axis's name with its unit: "peak HBM (GiB)"; unchanged if the name already contains the
  /// unit.
  function named(name, unit) {
    const said = unit === '%' || (unit && unit.length > 2) ? name.includes(unit) : !unit;
    return said ? name : `${name} (${unit})`;
  }

  return {number, scale, say, named};
})();
