// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Elements. Whatever comes from the JSON is shown by figure(), which says where it is from, so that a
// test can compare; text is only ever set as text.
import { format } from './format.js';
import { at } from './run.js';

// Children are nodes, strings, nothing, or lists of them.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// The value at a JSON pointer, as text in a unit of format.js.
export function figure(pointer, unit) {
  const value = at(pointer);
  const element = el(typeof value === 'number' ? 'data' : 'span', { 'data-path': pointer });
  if (typeof value === 'number') {
    element.value = String(value);
  }
  const text = format(value, unit);
  const digits = typeof value === 'number' ? text.split(' ', 1)[0] : text;
  element.append(digits);
  if (digits !== text) {
    element.append(el('small', {}, text.slice(digits.length)));
  }
  return element;
}

// What counts places, such as a column per local expert; not a figure.
export const index = (text) => el('span', { class: 'index' }, String(text));

// head: texts or nodes. rows: arrays of nodes, the first of which names the row.
export function table(caption, head, rows) {
  return el(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el(
      'table',
      {},
      el('caption', {}, caption),
      el('thead', {}, el('tr', {}, head.map((cell) => el('th', { scope: 'col' }, cell)))),
      el(
        'tbody',
        {},
        rows.map(([first, ...rest]) =>
          el('tr', {}, el('th', { scope: 'row' }, first), rest.map((cell) => el('td', {}, cell)))),
      ),
    ),
  );
}

// A table that may be long: closed at first beyond `limit` cells.
export function foldedTable(caption, head, rows, limit = 80) {
  const details = el('details', {}, el('summary', {}, caption), table(caption, head, rows));
  details.open = rows.length * head.length <= limit;
  return details;
}

// [name, css variable] pairs.
export const legend = (entries) =>
  el(
    'ul',
    { class: 'legend' },
    entries.map(([name, variable]) =>
      el('li', {}, el('span', { class: 'swatch', style: `background: var(${variable})` }), name)),
  );

export function section(id, title, ...children) {
  const heading = el('h2', { id: `${id}-title` }, title);
  return el('section', { id, 'aria-labelledby': `${id}-title` }, heading, children);
}

export const note = (...children) => el('p', { class: 'note' }, children);
