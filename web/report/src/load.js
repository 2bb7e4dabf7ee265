// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The section of the load of experts and ranks.
import { chart, color, heatMap, heightOf, rowAxis, valueAxis } from './charts.js';
import { el, figure, foldedTable, index, note, section } from './dom.js';
import { at, has } from './run.js';

const kExpertsPerRow = 32; // of the map of one rank

// Draws the experts of one rank in rows of kExpertsPerRow, and those of several ranks in a row per rank.
function expertMap() {
  const counts = at('/parallel/expert_rows');
  if (counts === undefined) {
    const loads = at('/load/per_expert');
    const width = Math.min(kExpertsPerRow, loads.length);
    const firsts = loads.map((_, i) => i).filter((i) => i % width === 0);
    return heatMap({
      label: 'Heat map of rows per expert',
      columns: [...Array(width).keys()].map((c) => `+${c}`),
      rows: firsts.map(String),
      cells: loads.map((rows, e) => [e % width, Math.floor(e / width), rows]),
      xName: 'expert',
      tooltip: ([c, r, rows]) => `expert ${r * width + c}: ${rows} rows`,
    });
  }
  const distributed = at('/parallel/placement') === 'distributed';
  const firsts = counts.map((_, r) => counts.slice(0, r).reduce((sum, row) => sum + row.length, 0));
  return heatMap({
    label: 'Heat map of rows per rank and local expert',
    columns: [...Array(Math.max(...counts.map((row) => row.length))).keys()].map(String),
    rows: counts.map((_, r) => `rank ${r}`),
    cells: counts.flatMap((row, r) => row.map((rows, l) => [l, r, rows])),
    xName: 'local expert',
    tooltip: ([l, r, rows]) =>
      `rank ${r}, ${distributed ? `expert ${firsts[r] + l}` : `its part of expert ${l}`}: ${rows} rows`,
  });
}

function rankBars() {
  const rows = at('/parallel/per_rank');
  const bar = (name, key, variable) => ({
    name, type: 'bar', barMaxWidth: 14, data: rows.map((row) => row[key]), itemStyle: { color: color(variable) },
  });
  return chart({
    label: 'Bars of rows computed per rank',
    height: heightOf(rows.length),
    option: () => ({
      grid: { left: 70, right: 24, top: 8, bottom: 30 },
      tooltip: { trigger: 'axis', axisPointer: { type: 'shadow' } },
      xAxis: valueAxis('plain', { minInterval: 1 }),
      yAxis: rowAxis(rows.map((row) => `rank ${row.rank}`)),
      series: [bar('rows', 'rows', '--accent')],
    }),
  });
}

function expertTable() {
  const counts = at('/parallel/expert_rows');
  if (counts === undefined) {
    const loads = at('/load/per_expert');
    const width = Math.min(kExpertsPerRow / 2, loads.length);
    const firsts = loads.map((_, i) => i).filter((i) => i % width === 0);
    return foldedTable('Rows per expert',
      [el('span', {}, 'expert'), ...Array(width).keys()].map((c) => (c instanceof Node ? c : index(`+${c}`))),
      firsts.map((first) => [
        index(first),
        ...loads.slice(first, first + width).map((_, i) => figure(`/load/per_expert/${first + i}`)),
      ]));
  }
  const widest = Math.max(...counts.map((row) => row.length));
  return foldedTable('Rows per rank and local expert',
    ['rank', ...[...Array(widest).keys()].map(index)],
    counts.map((row, r) => [
      index(r),
      ...[...Array(widest).keys()].map((l) => (l < row.length ? figure(`/parallel/expert_rows/${r}/${l}`) : '')),
    ]));
}

const rankTable = () =>
  foldedTable('Load per rank', ['rank', 'node', 'tokens brought', 'rows', 'local experts', 'fullest', 'mean'],
    at('/parallel/per_rank').map((row, i) => {
      const base = `/parallel/per_rank/${i}`;
      return [
        figure(`${base}/rank`), figure(`${base}/node`), figure(`${base}/tokens`), figure(`${base}/rows`),
        figure(`${base}/num_experts`), figure(`${base}/max_expert_rows`),
        figure(`${base}/mean_expert_rows`, 'decimals'),
      ];
    }), 200);

export function loadSection() {
  const perRank = has('/parallel/per_rank');
  return section(
    'load',
    'Load',
    note(figure('/load/rows'), ' rows (a token and one of its experts); per expert at most ',
      figure('/load/max'), ', mean ', figure('/load/mean', 'decimals'), ', ratio ',
      figure('/load/max_over_mean', 'decimals'), '; ', figure('/load/idle'), ' of ',
      figure('/load/num_experts'), ' experts idle.'),
    expertMap(),
    expertTable(),
    perRank
      ? [
        el('h3', {}, 'Rows per rank'),
        note('At most ', figure('/parallel/max_rows'), ', mean ', figure('/parallel/mean_rows', 'decimals'),
          ', ratio ', figure('/parallel/imbalance', 'decimals'), '.'),
        rankBars(),
        rankTable(),
      ]
      : null,
  );
}
