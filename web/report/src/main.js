// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
import { drawCharts } from './charts.js';
import { linkSection } from './links.js';
import { loadSection } from './load.js';
import { overlapSection } from './overlap.js';
import { rooflineSection } from './roofline.js';
import { at } from './run.js';
import { stageSection } from './stages.js';
import { foot, head } from './summary.js';

document.title = `moebius run: ${at('/model/family')}, layer ${at('/model/layer')}`;
document
  .getElementById('page')
  .append(head(), stageSection(), rooflineSection(), loadSection(), linkSection(), overlapSection(), foot());
drawCharts();
document.documentElement.dataset.drawn = 'yes';
