// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The head of the page: what was run, and the figures that matter most.
import { el, figure } from './dom.js';
import { at, has } from './run.js';

const tile = (name, value, ...more) =>
  el('div', { class: 'tile' }, el('dt', {}, name), el('dd', {}, value), el('dd', { class: 'more' }, more));

const fact = (name, ...parts) => [el('dt', {}, name), el('dd', {}, parts)];

function checkBadge() {
  if (!has('/check')) {
    return null;
  }
  const passed = at('/check/passed');
  return el(
    'p',
    { class: `badge ${passed ? 'good' : 'bad'}` },
    'check ', figure('/check/result'), ': relative error ', figure('/check/error', 'small'),
    ', tolerance ', figure('/check/tolerance', 'small'),
  );
}

function tiles() {
  const all = [
    tile(at('/time/graph') ? 'replay of a call' : 'call', figure('/time/call_us', 'micros'),
      'median of ', figure('/time/repeat')),
    tile('throughput', figure('/throughput/tokens_per_second', 'tokensPerSecond')),
    tile('products', figure('/throughput/gflops', 'gflops'),
      figure('/throughput/flops', 'operations'), ' per call'),
    tile('weights', figure('/throughput/weight_gb_per_s', 'gigabytesPerSecond'),
      figure('/memory/touched_bytes', 'bytes'), ' touched of ', figure('/memory/weight_bytes', 'bytes')),
  ];
  if (has('/roofline/times_roofline')) {
    all.push(tile('over the roofline', el('span', {}, figure('/roofline/times_roofline', 'decimals'), ' \u00d7'),
      'the machine\u2019s bound is ', figure('/roofline/roofline_us', 'micros')));
  }
  if (at('/overlap/hidden_share') !== undefined && at('/overlap/hidden_share') !== null) {
    all.push(tile('travel hidden', figure('/overlap/hidden_share', 'percent'),
      figure('/overlap/hidden_us', 'micros'), ' of ', figure('/overlap/travel_us', 'micros')));
  }
  if (has('/parallel/waited_us')) {
    all.push(tile('waited for ranks', figure('/parallel/waited_us', 'micros'),
      figure('/parallel/waited_share', 'percent'), ' of the call'));
  }
  all.push(tile('peak memory', figure('/memory/peak_bytes', 'bytes'),
    figure('/memory/peak_over_weights', 'decimals'), ' \u00d7 weights'));
  return el('dl', { class: 'tiles' }, all);
}

function shape() {
  const parts = [
    'hidden ', figure('/model/hidden'), ', ', figure('/model/num_experts'), ' experts of ',
    figure('/model/intermediate'), ', top-', figure('/model/topk'),
  ];
  if (at('/model/num_shared_experts') > 0) {
    parts.push(', ', figure('/model/num_shared_experts'), ' shared of ',
      figure('/model/shared_intermediate'), ' in all');
  }
  return parts;
}

function input() {
  const parts = [figure('/input/tokens'), ' tokens ', figure('/input/dtype'), ', '];
  if (at('/input/tensor') !== null) {
    return [...parts, figure('/input/tensor'), ' of ', figure('/input/source')];
  }
  return [...parts, figure('/input/source'), ' with seed ', figure('/input/seed')];
}

function implementations() {
  const named = ['router', 'prepare', 'experts', 'quant'].filter((stage) => has(`/implementation/${stage}`));
  const parts = named.flatMap((stage) => [`${stage} `, figure(`/implementation/${stage}`), ', ']);
  return [
    ...parts, figure('/implementation/format'), ' rows, ',
    ...(at('/implementation/device') === 'cpu'
      ? [figure('/implementation/threads'), at('/implementation/threads') === 1 ? ' thread' : ' threads',
        has('/parallel') ? ' per rank' : '']
      : [figure('/implementation/device')]),
  ];
}

function parallel() {
  return [
    figure('/parallel/ranks'), ' ranks (', figure('/parallel/group'), '), tp ', figure('/parallel/tp'),
    ', dp ', figure('/parallel/dp'), ', experts ', figure('/parallel/placement'), ', all2all ',
    figure('/parallel/all2all'), at('/parallel/monolithic') ? ', monolithic' : '',
    '; ', figure('/parallel/microbatches'), ' of ', figure('/parallel/asked_microbatches'), ' micro-batches',
  ];
}

export function head() {
  return el(
    'header',
    {},
    el('p', { class: 'eyebrow' }, 'moebius ', figure('/moebius/command')),
    el('h1', {}, figure('/model/family'), ', layer ', figure('/model/layer')),
    el('p', { class: 'path' }, figure('/model/directory')),
    checkBadge(),
    tiles(),
    el(
      'dl',
      { class: 'facts' },
      fact('layer', figure('/model/layer'), ' of ', figure('/model/num_layers'), ', ', figure('/model/block')),
      fact('shape', shape()),
      fact('quantization', figure('/quantization/checkpoint'), ' checkpoint; ', figure('/quantization/computed')),
      fact('input', input()),
      fact('implementation', implementations()),
      has('/parallel') ? fact('parallel', parallel()) : [],
      fact('machine', figure('/moebius/cpu')),
      has('/output') ? fact('output', figure('/output/file'), ', tensor ', figure('/output/tensor')) : [],
    ),
  );
}

export function foot() {
  return el(
    'footer',
    {},
    el('details', {}, el('summary', {}, 'All figures as JSON'),
      el('pre', { class: 'json', tabindex: '0' }, document.getElementById('run').textContent.trim())),
    el('p', { class: 'note' }, 'Written by moebius ', figure('/moebius/version'), ', commit ',
      figure('/moebius/commit'), '. Charts by Apache ECharts; its licence and notices are in the source of ',
      'this page, which asks no other place for anything.'),
    el('details', {}, el('summary', {}, 'Licences'),
      el('pre', { class: 'licences', tabindex: '0' }, document.getElementById('notices').textContent.trim())),
  );
}
