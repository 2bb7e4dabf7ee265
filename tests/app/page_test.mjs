// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// node page_test.mjs COMMAND MODULES WORK: opens pages of `moebius run --report` in a headless Chromium. It
// exits with 77, which means skipped, where the command has no page or there is no browser.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';

const [command, modules, work] = process.argv.slice(2);
const chromiumPath = process.env.MOEBIUS_CHROMIUM ?? '/usr/bin/chromium';
const maxPageBytes = 1e6;

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

function moebius(args, environment = {}) {
  const done = spawnSync(command, args, { encoding: 'utf8', env: { ...process.env, ...environment } });
  assert.equal(done.status, 0, `moebius ${args.join(' ')}: ${done.stderr}`);
  return done.stdout;
}

if (/^report_page +no$/m.test(moebius(['info']))) {
  skip('the command was built without the page (Node.js or the npm registry was missing)');
}
if (!existsSync(chromiumPath)) {
  skip(`there is no ${chromiumPath} (tools/install_deps.sh)`);
}
const { chromium } = createRequire(join(modules, 'any'))('playwright-core');

rmSync(work, { recursive: true, force: true });
mkdirSync(work, { recursive: true });
let browser;
before(async () => {
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync'];
  browser = await chromium.launch({ executablePath: chromiumPath, args });
});
after(() => browser?.close());

function model(preset, folder = preset, quant = 'none') {
  const path = join(work, folder);
  if (!existsSync(join(path, 'config.json'))) {
    mkdirSync(path, { recursive: true });
    moebius(['make-model', '--preset', preset, '--quant', quant, '--output', path]);
  }
  return path;
}

// Runs a layer and opens its page. The test fails if the page logs, throws or asks a network for anything.
async function open(name, args, environment, options = {}) {
  const html = join(work, `${name}.html`);
  const json = join(work, `${name}.json`);
  moebius(['run', '--repeat', '2', '--report', html, '--json', json, ...args], environment);
  assert.ok(statSync(html).size < maxPageBytes, `${statSync(html).size} bytes`);
  const page = await browser.newPage({ viewport: { width: 1100, height: 900 }, ...options });
  const troubles = [];
  page.on('console', (message) => troubles.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (error) => troubles.push(error.stack));
  page.on('dialog', (dialog) => troubles.push(`dialog: ${dialog.message()}`) && dialog.dismiss());
  const address = pathToFileURL(html).href;
  page.on('request', (request) => {
    if (request.url() !== address && !request.url().startsWith('data:')) {
      troubles.push(`request: ${request.url()}`);
    }
  });
  await page.goto(address);
  await page.waitForSelector('html[data-drawn]', { state: 'attached', timeout: 20000 });
  await page.screenshot({ path: join(work, `${name}.png`), fullPage: true });
  return { page, troubles, run: JSON.parse(readFileSync(json, 'utf8')) };
}

const at = (json, pointer) => pointer.split('/').slice(1).reduce((value, key) => value?.[key], json);

// Returns the JSON pointers of all numbers below one pointer.
function numbersBelow(json, pointer) {
  const value = at(json, pointer);
  if (typeof value === 'number') {
    return [pointer];
  }
  return value === null || typeof value !== 'object'
    ? []
    : Object.keys(value).flatMap((key) => numbersBelow(json, `${pointer}/${key}`));
}

const factors = {
  '': 1, '%': 1e-2, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, '\u00b5s': 1, ms: 1e3, s: 1e6,
  MFLOP: 1e6, GFLOP: 1e9, TFLOP: 1e12, 'GFLOP/s': 1, 'TFLOP/s': 1e3, 'GB/s': 1, 'tokens/s': 1,
};

// Expects that a text such as "12.3 ms" is the value 12345.6 us, to its last digit.
function expectShown(text, value, pointer) {
  const [, digits, decimals, exponent, unit] =
    /^(\d+(?:\.(\d+))?(?:e([-+]\d+))?) ?(\D*)$/.exec(text) ?? assert.fail(`${pointer}: ${text}`);
  assert.ok(unit in factors, `${pointer}: unit of ${text}`);
  const last = 10 ** (Number(exponent ?? 0) - (decimals ?? '').length) * factors[unit];
  const difference = Math.abs(Number(digits) * factors[unit] - value);
  assert.ok(difference <= 0.5000001 * last, `${pointer}: ${text}, expected ${value}`);
}

async function expectFigures({ page, run }) {
  const embedded = await page.evaluate(() => JSON.parse(document.getElementById('run').textContent));
  assert.deepEqual(embedded, run);
  const shown = await page.$$eval('[data-path]', (elements) =>
    elements.map((e) => ({ path: e.dataset.path, text: e.textContent, value: e.value })));
  for (const { path, text, value } of shown) {
    const expected = at(run, path);
    if (typeof expected === 'number') {
      assert.equal(value, String(expected), path);
      expectShown(text, expected, path);
    } else {
      assert.ok(expected === null || typeof expected === 'string', `${path}: ${expected}`);
      assert.equal(text, expected ?? '-', path);
    }
  }
  // Other digits only count places, or are part of a word (all2all).
  const stray = await page.evaluate(() => {
    const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const { parentElement, data } = walker.currentNode;
      if (/(?<![a-z])\d/.test(data) && !parentElement.closest('[data-path], .index, svg, pre')) {
        found.push(data);
      }
    }
    return found;
  });
  assert.deepEqual(stray, []);
  // The page shows every number of these sections.
  const paths = new Set(shown.map(({ path }) => path));
  const stages = run.time.stages.map(({ stage }) => stage);
  const loads = run.parallel ? ['/parallel/per_rank', '/parallel/expert_rows'] : ['/load/per_expert'];
  for (const part of ['/time/stages', '/roofline', '/overlap', '/parallel/link_bytes', ...loads]) {
    for (const pointer of numbersBelow(run, part)) {
      const stage = /\/per_rank\/\d+\/(router|prepare|experts|finalize|shared)$/.exec(pointer)?.[1];
      if (stage === undefined || stages.includes(stage)) {
        assert.ok(paths.has(pointer), `${pointer} is not on the page`);
      }
    }
  }
  for (const pointer of ['/time/call_us', '/throughput/gflops', '/memory/peak_bytes', '/model/directory']) {
    assert.ok(paths.has(pointer), `${pointer} is not on the page`);
  }
}

// Counts the marks that the charts of a section draw: filled shapes with an area, without the legend of a
// heat map and without clip paths.
const marksOf = (page, section) =>
  page.$$eval(`#${section} .chart`, (charts) => charts.map((chart) =>
    [...chart.querySelectorAll('svg path')].filter((path) => {
      const fill = path.getAttribute('fill');
      const { width, height } = path.getBBox();
      return !path.closest('clipPath') && /^(#|rgb)/.test(fill) && fill !== 'rgb(0,0,0)' && width * height > 0;
    }).length));

async function expectMarks({ page, run }) {
  const positive = (values) => values.filter((value) => value > 0).length;
  const stages = run.time.stages.map(({ stage }) => stage);
  const ranks = run.parallel?.per_rank;
  const times = ranks ? ranks.flatMap((rank) => stages.map((stage) => rank[stage]))
    : run.time.stages.map(({ us }) => us);
  const expected = {
    stages: [positive(times) + (ranks?.length ?? 1)], // plus one for the end of each call
    roofline: run.roofline.stages ? [1 + run.roofline.stages.length] : [],
    load: ranks ? [run.parallel.expert_rows.flat().length, positive(ranks.map(({ rows }) => rows))]
      : [run.load.per_expert.length],
    links: ranks ? [ranks.length ** 2] : [],
    overlap: ranks
      ? [positive(run.overlap.per_rank.flatMap((r) => [r.hidden_us, r.travel_us - r.hidden_us]))]
      : [],
  };
  for (const [section, marks] of Object.entries(expected)) {
    assert.deepEqual(await marksOf(page, section), marks, section);
  }
}

async function expectAccessible({ page }) {
  const faults = await page.evaluate(() => [
    document.documentElement.lang ? '' : 'no language',
    document.querySelectorAll('h1').length === 1 ? '' : 'not one h1',
    ...[...document.querySelectorAll('.chart')].map((c) =>
      (c.getAttribute('role') === 'img' && c.getAttribute('aria-label') ? '' : 'a chart without words')),
    ...[...document.querySelectorAll('.chart')].map((c) =>
      (c.closest('section').querySelector('table') ? '' : `no table beside ${c.ariaLabel}`)),
    ...[...document.querySelectorAll('table')].map((t) => (t.caption ? '' : 'a table without caption')),
  ].filter((fault) => fault));
  assert.deepEqual(faults, []);
}

// Expects that a roofline is the longer of computing and reading, for the call and for each stage.
function expectRoofline({ run: { roofline, time, throughput, memory } }) {
  assert.equal(roofline.flops, throughput.flops);
  assert.equal(roofline.bytes, memory.touched_bytes);
  const near = (actual, expected) => assert.ok(Math.abs(actual - expected) <= 1e-9 * expected, `${actual}, ${expected}`);
  for (const part of [{ ...roofline, us: time.call_us }, ...roofline.stages]) {
    near(part.compute_us, part.flops / roofline.peak_gflops / 1e3);
    near(part.read_us, part.bytes / roofline.read_gb_per_s / 1e3);
    near(part.roofline_us, Math.max(part.compute_us, part.read_us));
    near(part.times_roofline, part.us / part.roofline_us);
  }
  const sum = (key) => roofline.stages.reduce((total, stage) => total + stage[key], 0);
  assert.equal(sum('flops'), roofline.flops);
  assert.equal(sum('bytes'), roofline.bytes);
}

async function check(opened) {
  expectRoofline(opened);
  await expectFigures(opened);
  await expectMarks(opened);
  await expectAccessible(opened);
  assert.deepEqual(opened.troubles, []);
  await opened.page.close();
}

test('one rank', async () => {
  await check(await open('one_rank', ['--model', model('tiny'), '--check']));
});

test('four ranks with micro-batches over a slow link, dark', async () => {
  const args = ['--model', model('tiny'), '--ranks', '4', '--all2all', 'low_latency', '--tokens', '256',
    '--microbatches', '2'];
  const slow = { MOEBIUS_LINK_MB_PER_S: '500', MOEBIUS_LINK_LATENCY_US: '500' };
  const opened = await open('four_ranks', args, slow, { colorScheme: 'dark' });
  assert.equal(opened.run.parallel.microbatches, 2);
  assert.ok(opened.run.overlap.hidden_us > 0);
  const [back, bar] = await opened.page.evaluate(() => [
    getComputedStyle(document.body).backgroundColor,
    document.querySelector('#stages svg path[fill^="#"]').getAttribute('fill'),
  ]);
  assert.equal(back, 'rgb(16, 20, 27)');
  await opened.page.emulateMedia({ colorScheme: 'light' });  // makes the charts draw anew
  await opened.page.waitForFunction(
    (dark) => document.querySelector('#stages svg path[fill^="#"]').getAttribute('fill') !== dark, bar);
  await check(opened);
});

test('two nodes, narrow', async () => {
  const args = ['--model', model('tiny'), '--ranks', '4', '--ranks-per-node', '2', '--all2all',
    'high_throughput', '--tokens', '128'];
  const opened = await open('two_nodes', args, {}, { viewport: { width: 360, height: 800 } });
  const { inter_node_bytes: between, intra_node_bytes: within, link_bytes: links } = opened.run.parallel;
  assert.ok(between > 0);
  assert.equal(links.flat().reduce((sum, bytes) => sum + bytes), between + within);
  assert.equal(await opened.page.evaluate(() => document.documentElement.scrollWidth), 360);
  await check(opened);
});

test('shared experts, fp8, an output file', async () => {
  const args = ['--model', model('tiny-deepseek-v3', 'fp8', 'fp8'), '--output', join(work, 'y.safetensors')];
  const opened = await open('shared_experts', args);
  assert.ok(opened.run.roofline.stages.some(({ stage }) => stage === 'shared'));
  await check(opened);
});

test('a path that looks like markup', async () => {
  const name = `${'long '.repeat(30)}"it's" &lt; </script><script>alert(1)</script><!-- @RUN@ \u20ac \\`;
  const opened = await open('path', ['--model', model('tiny', name)]);
  assert.equal(opened.run.model.directory, join(work, name));
  await check(opened);
});
