// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The section of the roofline: the call and its stages compared with what the machine can do at best.
import { chart, color, valueAxis } from './charts.js';
import { figure, legend, note, section, table } from './dom.js';
import { format } from './format.js';
import { at, has, numRanks } from './run.js';

const kTitle = 'Against the roofline';

// Returns the whole call first, then the stages that multiply.
const points = () =>
  [{ name: 'call', base: '/roofline', us: '/time/call_us', variable: '--text', side: 'bottom' }].concat(
    at('/roofline/stages').map(({ stage }, i) => ({
      name: stage,
      base: `/roofline/stages/${i}`,
      us: `/roofline/stages/${i}/us`,
      variable: `--stage-${stage}`,
      side: ['top', 'left', 'right'][i],
    })),
  );

function plot() {
  const peak = at('/roofline/peak_gflops');
  const read = at('/roofline/read_gb_per_s');
  const placed = points().map((point) => {
    const flops = at(`${point.base}/flops`);
    const bytes = at(`${point.base}/bytes`);
    return { ...point, at: [flops / bytes, flops / at(point.us) / 1e3] };
  }).filter((point) => point.at.every((x) => Number.isFinite(x) && x > 0));
  const ridge = peak / read;
  const xs = [...placed.map((point) => point.at[0]), ridge];
  const left = 10 ** Math.floor(Math.log10(Math.min(...xs) / 2));
  const right = 10 ** Math.ceil(Math.log10(Math.max(...xs) * 2));
  const power = (value) => (value >= 1 ? String(value) : value.toPrecision(1));
  return chart({
    label: 'Operations per second over operations per byte read, below the roofline of the machine',
    height: 340,
    option: () => ({
      grid: { left: 78, right: 24, top: 16, bottom: 46 },
      tooltip: {
        formatter: ({ seriesName, data }) =>
          Array.isArray(data) && seriesName !== 'roofline'
            ? `${seriesName}: ${format(data[1], 'gflops')} at ${data[0].toPrecision(3)} FLOP/B`
            : '',
      },
      xAxis: valueAxis('plain', {
        type: 'log', min: left, max: right, name: 'FLOP per byte of weights', nameLocation: 'middle', nameGap: 28,
        nameTextStyle: { color: color('--muted') },
        axisLabel: { color: color('--muted'), formatter: power },
        axisLine: { lineStyle: { color: color('--line') } },
      }),
      yAxis: valueAxis('gflops', { type: 'log' }),
      series: [
        {
          name: 'roofline',
          type: 'line',
          data: [[left, left * read], [ridge, peak], [right, peak]],
          symbol: 'none',
          lineStyle: { color: color('--muted'), width: 2 },
          silent: true,
        },
        ...placed.map((point) => ({
          name: point.name,
          type: 'scatter',
          symbolSize: point.name === 'call' ? 16 : 12,
          data: [point.at],
          itemStyle: { color: color(point.variable), borderColor: color('--card'), borderWidth: 1.5, opacity: 1 },
          label: { show: true, formatter: '{a}', position: point.side, color: color('--text') },
        })),
      ],
    }),
  });
}

export function rooflineSection() {
  if (!has('/roofline/roofline_us')) {
    return section('roofline', kTitle, note('Not measured',
      has('/roofline/missing') ? [': ', figure('/roofline/missing')] : ' in this run', '.'));
  }
  return section(
    'roofline',
    kTitle,
    note('Measured after the calls, by all ranks at once: ', figure('/roofline/peak_gflops', 'gflops'), ' (',
      figure('/roofline/peak'), ') and ', figure('/roofline/read_gb_per_s', 'gigabytesPerSecond'),
      ' read from memory. The call computes for at least ', figure('/roofline/compute_us', 'micros'),
      ' and reads its weights for at least ', figure('/roofline/read_us', 'micros'), ', so it cannot take less than ',
      figure('/roofline/roofline_us', 'micros'), '; it took ', figure('/roofline/times_roofline', 'decimals'),
      ' times that.'),
    legend([['roofline', '--muted'], ...points().map(({ name, variable }) => [name, variable])]),
    plot(),
    table('Bounds', ['', 'operations', 'weights', 'computing', 'reading', 'roofline', 'time', '\u00d7 roofline'],
      points().map(({ name, base, us }) => [
        name,
        figure(`${base}/flops`, 'operations'),
        figure(`${base}/bytes`, 'bytes'),
        figure(`${base}/compute_us`, 'micros'),
        figure(`${base}/read_us`, 'micros'),
        figure(`${base}/roofline_us`, 'micros'),
        figure(us, 'micros'),
        figure(`${base}/times_roofline`, 'decimals'),
      ])),
    note('Weights that fit into the caches are read faster than memory, so a small layer may be above the roofline.',
      numRanks > 1 ? ' So may a stage: ranks need not be in it at the same time.' : ''),
  );
}
