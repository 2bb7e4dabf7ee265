// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The run's figures: the JSON of `moebius run --json`, addressed by JSON pointers.

const data = JSON.parse(document.getElementById('run').textContent);

// Returns the value at a pointer, or undefined where there is none.
export function at(pointer) {
  let value = data;
  for (const key of pointer.split('/').slice(1)) {
    value = value?.[key];
  }
  return value;
}

export const has = (pointer) => at(pointer) !== undefined;

export const stages = at('/time/stages').map((row) => row.stage);
export const numRanks = at('/parallel/ranks') ?? 1;

// Returns an entry per rank, {label, call, stage: pointers}. A run on one rank has no table of ranks.
export const ranks = (at('/parallel/per_rank') ?? [null]).map((row, i) => {
  const base = `/parallel/per_rank/${i}`;
  if (row === null) {
    return {
      label: 'rank 0',
      call: '/time/call_us',
      stage: (name) => `/time/stages/${stages.indexOf(name)}/us`,
    };
  }
  return { label: `rank ${row.rank}`, base, call: `${base}/call_us`, stage: (name) => `${base}/${name}` };
});
