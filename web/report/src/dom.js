// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes elements of the page. figure() shows every value of the JSON and notes its pointer, so that a test can
// compare it. Text is only ever set as text.
import { format } from './format.js';
import { at } from './run.js';

// Makes an element. Children are nodes, strings, nothing, or lists of them.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Shows the value at a JSON pointer, as text in a unit of format.js.
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

// Shows a number that is no figure but counts places, such as that of a column per local expert.
export const index = (text) => el('span', { class: 'index' }, String(text));

// Makes a table. head: texts or nodes. rows: arrays of nodes, of which the first names the row.
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

// Makes a table that may be long. With more than `limit` cells it is closed at first.
export function foldedTable(caption, head, rows, limit = 80) {
  const details = el('details', {}, el('summary', {}, caption), table(caption, head, rows));
  details.open = rows.length * head.length <= limit;
  return details;
}

// Makes a legend of [name, css variable] pairs.
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
