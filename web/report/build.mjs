// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// node build.mjs MODULES OUTPUT: writes the page as one file, in which @RUN@ stands where the figures go.
// MODULES is the node_modules folder that npm ci filled; it need not be beside this file.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const [modules, output] = process.argv.slice(2).map((path) => resolve(path));
const here = dirname(fileURLToPath(import.meta.url));
const read = (...parts) => readFileSync(join(...parts), 'utf8');
const esbuild = createRequire(join(modules, 'any'))('esbuild');

const shared = {
  bundle: true,
  minify: true,
  write: false,
  charset: 'ascii',
  legalComments: 'none', // all licences are in the notices below
  nodePaths: [modules],
  logLevel: 'warning',
  target: ['chrome100', 'firefox100', 'safari15'],
};
const bundled = (path, format) =>
  esbuild.buildSync({ ...shared, format, entryPoints: [join(here, path)] }).outputFiles[0].text;

// The licences of these packages ask that their notices stay with them.
const notices = [
  ['echarts', 'NOTICE', 'LICENSE', 'licenses/LICENSE-d3'],
  ['zrender', 'LICENSE'],
  ['tslib', 'LICENSE.txt'],
]
  .map(([name, ...files]) => {
    const { version } = JSON.parse(read(modules, name, 'package.json'));
    const texts = files.map((file) => read(modules, name, file).trim());
    return [`==== ${name} ${version}`, ...texts].join('\n\n');
  })
  .join('\n\n');

const parts = {
  STYLE: bundled('style.css'),
  NOTICES: notices,
  SCRIPT: bundled('src/main.js', 'iife'),
};
let page = read(here, 'template.html');
for (const [name, text] of Object.entries(parts)) {
  if (/<\/(script|style)|<!--/i.test(text)) {
    throw new Error(`${name} would end its element`);
  }
  page = page.replace(`@${name}@`, () => text.trim());
}
if (page.split('@RUN@').length !== 2) {
  throw new Error('@RUN@ must be there once');
}
writeFileSync(output, page);
