// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The section of times per stage and rank.
import { chart, color, heightOf, rowBars } from './charts.js';
import { el, figure, foldedTable, legend, note, section } from './dom.js';
import { format } from './format.js';
import { at, has, numRanks, ranks, stages } from './run.js';

const variable = (stage) => `--stage-${stage}`;

function bars() {
  const values = stages.map((stage) => ranks.map((rank) => at(rank.stage(stage))));
  const calls = ranks.map((rank) => at(rank.call));
  return chart({
    label: 'Bars of time per stage, one bar per rank, with a mark where the call ends',
    height: heightOf(ranks.length),
    option: () => rowBars(ranks.map((rank) => rank.label), 'micros', [
      ...stages.map((stage, s) => ({
        name: stage,
        type: 'bar',
        stack: 'stages',
        barMaxWidth: 22,
        data: values[s],
        itemStyle: { color: color(variable(stage)) },
      })),
      {
        name: 'call',
        type: 'scatter',
        symbol: 'rect',
        symbolSize: [3, ranks.length > 24 ? 12 : 24],
        data: calls.map((us, i) => [us, i]),
        itemStyle: { color: color('--text') },
        tooltip: { valueFormatter: (us) => format(Array.isArray(us) ? us[0] : us, 'micros') },
        encode: { tooltip: 0 },
      },
    ]),
  });
}

const stageTable = () =>
  foldedTable(numRanks > 1 ? 'Time per stage, of the slowest rank' : 'Time per stage', ['stage', 'time', 'share of the call'],
    stages.map((name, i) => [
      figure(`/time/stages/${i}/stage`),
      figure(`/time/stages/${i}/us`, 'micros'),
      figure(`/time/stages/${i}/share`, 'percent'),
    ]));

const rankTable = () =>
  foldedTable('Time per rank', ['rank', ...stages, 'call', 'waited'],
    ranks.map((rank) => [
      figure(`${rank.base}/rank`),
      ...stages.map((stage) => figure(rank.stage(stage), 'micros')),
      figure(rank.call, 'micros'),
      figure(`${rank.base}/waited_us`, 'micros'),
    ]), 200);

export function stageSection() {
  return section(
    'stages',
    'Time per stage',
    legend([...stages.map((stage) => [stage, variable(stage)]), ['end of the call', '--text']]),
    bars(),
    el('div', { class: 'tables' }, stageTable(), has('/parallel/per_rank') ? rankTable() : null),
    note(
      'Medians of the timed calls. ',
      numRanks > 1 ? 'A stage counts the time it waits for other ranks. ' : '',
      at('/implementation/device') === 'cpu'
        ? 'What lies between the stages is in the call alone.'
        : 'Stages are timed on the GPU in calls of their own, where streams overlap, so they may add up to more than the call.',
    ),
  );
}
