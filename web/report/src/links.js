// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The section of bytes that each rank sends to each other rank.
import { heatMap } from './charts.js';
import { figure, foldedTable, index, note, section } from './dom.js';
import { format } from './format.js';
import { at, has, numRanks } from './run.js';

const kTitle = 'Bytes per link';

const totals = () =>
  note('A call sends ', figure('/parallel/intra_node_bytes', 'bytes'), ' within nodes and ',
    figure('/parallel/inter_node_bytes', 'bytes'), ' between them.');

const copies = () =>
  has('/parallel/copies')
    ? note(figure('/parallel/copies'), ' rows go to ranks for ', figure('/parallel/selections'),
      ' selections, ', figure('/parallel/copies_per_selection', 'decimals'), ' each; ',
      figure('/parallel/node_copies'), ' between nodes.')
    : null;

const perRank = () =>
  foldedTable('Bytes sent per rank', ['rank', 'node', 'within its node', 'to other nodes'],
    at('/parallel/per_rank').map((row, i) => {
      const base = `/parallel/per_rank/${i}`;
      return [
        figure(`${base}/rank`), figure(`${base}/node`), figure(`${base}/intra_node_bytes`, 'bytes'),
        figure(`${base}/inter_node_bytes`, 'bytes'),
      ];
    }), 200);

export function linkSection() {
  if (numRanks === 1) {
    return section('links', kTitle, note('One rank has no links.'));
  }
  const matrix = at('/parallel/link_bytes');
  if (!matrix) {
    return section('links', kTitle, copies(),
      note('GPUs stored the rows in each other\'s memory, and their bytes are not counted.'));
  }
  const names = [...Array(numRanks).keys()].map((r) => `rank ${r}`);
  return section(
    'links',
    kTitle,
    totals(),
    copies(),
    heatMap({
      label: 'Heat map of bytes from each rank (rows) to each rank (columns)',
      columns: names,
      rows: names,
      cells: matrix.flatMap((row, from) => row.map((bytes, to) => [to, from, bytes ?? 0])),
      unit: 'bytes',
      xName: 'from a row to a column',
      tooltip: ([to, from, bytes]) => `rank ${from} to rank ${to}: ${format(bytes, 'bytes')}`,
    }),
    foldedTable('Bytes from a rank (row) to a rank (column)', ['from', ...names.map(index)],
      matrix.map((row, from) => [
        index(names[from]),
        ...row.map((_, to) => figure(`/parallel/link_bytes/${from}/${to}`, 'bytes')),
      ])),
    perRank(),
  );
}
