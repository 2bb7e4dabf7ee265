/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/c_api/experts_model.h"

void make_model(model* m) {
  memset(m, 0, sizeof(*m));
  fill(m->w1, L * 2 * I * H, 1);
  fill(m->w2, L * H * I, 2);
  fill(m->hidden, T * H, 3);
  fill(m->topk_weights, T * K, 4);
  for (uint32_t i = 0; i < T * K; ++i) {
    m->ids[i] = pick(i, E + 1) - 1; /* some are masked */
    m->wide_ids[i] = m->ids[i];
  }
  m->map[0] = 0;
  m->map[1] = -1;
  m->map[2] = 2;
  m->map[3] = 1;
  m->t_w1 = cube_of(m->w1, MOEBIUS_F32, L, 2 * I, H);
  m->t_w2 = cube_of(m->w2, MOEBIUS_F32, L, H, I);
  m->t_hidden = matrix_of(m->hidden, MOEBIUS_F32, T, H);
  m->t_weights = matrix_of(m->topk_weights, MOEBIUS_F32, T, K);
  m->t_ids = matrix_of(m->ids, MOEBIUS_I32, T, K);
  m->t_wide_ids = matrix_of(m->wide_ids, MOEBIUS_I64, T, K);
  m->t_map = vector_of(m->map, MOEBIUS_I32, E);
  m->t_output = matrix_of(m->output, MOEBIUS_F32, T, H);
  m->weights =
      (moebius_expert_weights){.struct_size = sizeof(m->weights), .w1 = &m->t_w1, .w2 = &m->t_w2};
  m->options = (moebius_experts_options){
      .struct_size = sizeof(m->options), .num_experts = E, .topk = K, .in_dtype = MOEBIUS_F32};
}

void check_output(const model* m) {
  const experts_values experts = {m->w1, m->w2, H, I};
  for (int t = 0; t < T; ++t) {
    double expected[H] = {0};
    for (int k = 0; k < K; ++k) {
      const int id = m->ids[t * K + k];
      if (id >= 0 && m->map[id] >= 0) {
        const int e = m->map[id];
        add_expert(&experts, e, m->hidden + t * H, (double)m->topk_weights[t * K + k], expected);
      }
    }
    for (int h = 0; h < H; ++h) {
      CHECK_NEAR(m->output[t * H + h], expected[h], 1e-4);
    }
  }
}
