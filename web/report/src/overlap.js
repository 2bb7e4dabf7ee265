// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The section of overlap: how much of the time in which rows travel is hidden behind computation.
import { chart, color, heightOf, rowBars } from './charts.js';
import { figure, foldedTable, legend, note, section } from './dom.js';
import { at, has, numRanks } from './run.js';

const kTitle = 'Overlap of travel and computation';

function bars() {
  const rows = at('/overlap/per_rank');
  const hidden = rows.map((row) => row.hidden_us);
  const seen = rows.map((row) => Math.max(0, row.travel_us - row.hidden_us));
  const bar = (name, data, variable) => ({
    name, data, type: 'bar', stack: 'travel', barMaxWidth: 22, itemStyle: { color: color(variable) },
  });
  return chart({
    label: 'Bars of the time that rows travelled, per rank: hidden, and waited for',
    height: heightOf(rows.length),
    option: () => rowBars(rows.map((row) => `rank ${row.rank}`), 'micros',
      [bar('hidden', hidden, '--good'), bar('not hidden', seen, '--bad')]),
  });
}

export function overlapSection() {
  if (!has('/overlap/per_rank')) {
    return section('overlap', kTitle, note(numRanks > 1
      ? 'This run has no figures of it.'
      : 'Nothing travels on one rank.'));
  }
  const base = (i) => `/overlap/per_rank/${i}`;
  return section(
    'overlap',
    kTitle,
    note('On the slowest rank rows travelled for ', figure('/overlap/travel_us', 'micros'), ', of which ',
      figure('/overlap/hidden_us', 'micros'), ' (', figure('/overlap/hidden_share', 'percent'),
      ') were hidden: the rank computed meanwhile. Its host waited for ', figure('/overlap/waited_us', 'micros'),
      '. Rows that have arrived unseen still count as travelling.'),
    legend([['hidden', '--good'], ['not hidden', '--bad']]),
    bars(),
    foldedTable('Overlap per rank', ['rank', 'travel', 'hidden', 'share'],
      at('/overlap/per_rank').map((row, i) => [
        figure(`${base(i)}/rank`),
        figure(`${base(i)}/travel_us`, 'micros'),
        figure(`${base(i)}/hidden_us`, 'micros'),
        figure(`${base(i)}/hidden_share`, 'percent'),
      ]), 200),
  );
}
