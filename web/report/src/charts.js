// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Charts as SVG, in the colours of style.css. They are drawn anew when the colours change, and on paper.
import { BarChart, HeatmapChart, LineChart, ScatterChart } from 'echarts/charts';
import { GridComponent, TooltipComponent, VisualMapContinuousComponent } from 'echarts/components';
import * as echarts from 'echarts/core';
import { SVGRenderer } from 'echarts/renderers';
import { el } from './dom.js';
import { format } from './format.js';

echarts.use([
  BarChart,
  GridComponent,
  HeatmapChart,
  LineChart,
  ScatterChart,
  SVGRenderer,
  TooltipComponent,
  VisualMapContinuousComponent,
]);

const kPaperWidth = 680; // pixels, the width of A4 within its margins
const charts = [];

export const color = (variable) =>
  getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

const withDefaults = (option) => ({
  animation: false,
  textStyle: { fontFamily: color('--font'), color: color('--text') },
  ...option,
  tooltip: {
    confine: true,
    backgroundColor: color('--card'),
    borderColor: color('--line'),
    textStyle: { color: color('--text'), fontSize: 13 },
    ...option.tooltip,
  },
});

// Makes a chart. label: describes the chart for those who cannot see it. option(): makes the option of
// ECharts anew at each drawing.
export function chart({ label, height, option }) {
  const element = el('div', { class: 'chart', role: 'img', 'aria-label': label });
  element.style.height = `${height}px`;
  charts.push({ element, option });
  return element;
}

// Draws all charts. Called once the elements are in the page.
export function drawCharts() {
  const root = document.documentElement;
  const isOnPaper = () => root.classList.contains('paper');
  const resize = ({ instance }) => instance.resize({ width: isOnPaper() ? kPaperWidth : 'auto' });
  const draw = () => {
    for (const entry of charts) {
      resize(entry);
      entry.instance.setOption(withDefaults(entry.option()), true);
    }
  };
  for (const entry of charts) {
    entry.instance = echarts.init(entry.element, null, { renderer: 'svg' });
    new ResizeObserver(() => resize(entry)).observe(entry.element);
  }
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  for (const [event, paper] of [['beforeprint', true], ['afterprint', false]]) {
    addEventListener(event, () => {
      root.classList.toggle('paper', paper);
      draw();
    });
  }
}

export const valueAxis = (unit, more = {}) => ({
  type: 'value',
  axisLabel: { color: color('--muted'), hideOverlap: true, formatter: (value) => (value === 0 ? '0' : format(value, unit)) },
  splitLine: { lineStyle: { color: color('--line') } },
  splitNumber: 4,
  ...more,
});

export const categoryAxis = (data, more = {}) => ({
  type: 'category',
  data,
  axisLabel: { color: color('--muted') },
  axisLine: { lineStyle: { color: color('--line') } },
  axisTick: { show: false },
  ...more,
});

// Makes the rows of the y axis run from the top down.
export const rowAxis = (labels, more = {}) => categoryAxis(labels, { inverse: true, ...more });
export const heightOf = (numRows) => 60 + Math.max(2, numRows) * (numRows > 24 ? 16 : 30);

// Bars from the left, a row for each label; tooltips name a row's values.
export const rowBars = (labels, unit, series) => ({
  grid: { left: 70, right: 24, top: 8, bottom: 30 },
  tooltip: { trigger: 'axis', axisPointer: { type: 'shadow' }, valueFormatter: (value) => format(value, unit) },
  xAxis: valueAxis(unit),
  yAxis: rowAxis(labels),
  series,
});

// cells: [column, row, value]. A value of 0 has a colour of its own.
export function heatMap({ label, columns, rows, cells, unit, tooltip, xName, yName }) {
  const max = Math.max(1, ...cells.map(([, , value]) => value));
  const showsValues = columns.length <= 16 && rows.length <= 32 && unit !== 'bytes'
    || columns.length <= 8;
  return chart({
    label,
    height: heightOf(rows.length) + 66,
    option: () => ({
      grid: { left: 70, right: 12, top: 8, bottom: 84 },
      tooltip: { formatter: ({ data }) => tooltip(data) },
      xAxis: categoryAxis(columns, { name: xName, nameLocation: 'middle', nameGap: 28,
        nameTextStyle: { color: color('--muted') } }),
      yAxis: rowAxis(rows, { name: yName }),
      visualMap: {
        type: 'continuous',
        min: 0,
        max,
        orient: 'horizontal',
        left: 'center',
        bottom: 0,
        itemHeight: 180,
        itemWidth: 12,
        formatter: (value) => format(Math.round(value), unit),
        text: [format(max, unit), format(0, unit)],
        textStyle: { color: color('--muted') },
        inRange: { color: ['--heat-0', '--heat-1', '--heat-2', '--heat-3'].map(color) },
      },
      series: [{
        type: 'heatmap',
        data: cells.map((cell) => ({
          value: cell,
          label: { color: color(cell[2] > max * 0.55 ? '--heat-ink-full' : '--heat-ink') },
        })),
        label: { show: showsValues, formatter: ({ value }) => format(value[2], unit), fontSize: 11 },
        itemStyle: { borderColor: color('--card'), borderWidth: 1 },
        emphasis: { itemStyle: { borderColor: color('--text') } },
      }],
    }),
  });
}
