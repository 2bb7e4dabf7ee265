// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Formats numbers as the printed report does (src/app/report/report.cc).

// Writes the value in the largest unit in which it is at least 1.
function scaled(value, units) {
  let unit = 0;
  while (unit + 1 < units.length && value >= 1000) {
    value /= 1000;
    ++unit;
  }
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

const formats = {
  plain: (value) => String(value),
  decimals: (value) => value.toFixed(2),
  small: (value) => value.toExponential(2),
  percent: (value) => `${(value * 100).toFixed(1)} %`,
  bytes: (value) => (value < 1000 ? `${value} B` : scaled(value / 1e3, ['kB', 'MB', 'GB', 'TB'])),
  micros: (value) => scaled(value, ['\u00b5s', 'ms', 's']),
  operations: (value) => scaled(value / 1e6, ['MFLOP', 'GFLOP', 'TFLOP']),
  gflops: (value) => scaled(value, ['GFLOP/s', 'TFLOP/s']),
  gigabytesPerSecond: (value) => `${value.toFixed(2)} GB/s`,
  tokensPerSecond: (value) => `${value.toFixed(0)} tokens/s`,
};

export function format(value, unit = 'plain') {
  if (value === null || value === undefined) {
    return '-';
  }
  return typeof value === 'number' ? formats[unit](value) : String(value);
}
