/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/c_api/small_layer.h"

#include <math.h>

small_layer* layer_of(int rank) {
  static small_layer layers[SL_RANKS];
  return &layers[rank];
}
small_call* call_of(int rank) {
  static small_call calls[SL_RANKS];
  return &calls[rank];
}

void make_small_layer(small_layer* s, int rank, int num_ranks) {
  const int num_local = SL_E / num_ranks;
  memset(s, 0, sizeof(*s));
  fill(s->gate, SL_E * SL_H, 1);
  fill(s->w1, SL_E * 2 * SL_I * SL_H, 2);
  fill(s->w2, SL_E * SL_H * SL_I, 3);
  fill(s->shared_w1, 2 * SL_SHARED * SL_H, 4);
  fill(s->shared_w2, SL_H * SL_SHARED, 5);
  s->t_gate = matrix_of(s->gate, MOEBIUS_F32, SL_E, SL_H);
  s->t_w1 = cube_of(s->w1 + (ptrdiff_t)rank * num_local * 2 * SL_I * SL_H, MOEBIUS_F32, num_local,
                    2 * SL_I, SL_H);
  s->t_w2 = cube_of(s->w2 + (ptrdiff_t)rank * num_local * SL_H * SL_I, MOEBIUS_F32, num_local, SL_H,
                    SL_I);
  s->t_shared_w1 = cube_of(s->shared_w1, MOEBIUS_F32, 1, 2 * SL_SHARED, SL_H);
  s->t_shared_w2 = cube_of(s->shared_w2, MOEBIUS_F32, 1, SL_H, SL_SHARED);
  s->router_config = (moebius_router_config){
      .struct_size = sizeof(s->router_config), .num_experts = SL_E, .topk = SL_K, .renormalize = 1};
  s->router = (moebius_router_weights){.struct_size = sizeof(s->router), .gate = &s->t_gate};
  s->experts =
      (moebius_expert_weights){.struct_size = sizeof(s->experts), .w1 = &s->t_w1, .w2 = &s->t_w2};
  s->shared = (moebius_expert_weights){
      .struct_size = sizeof(s->shared), .w1 = &s->t_shared_w1, .w2 = &s->t_shared_w2};
  s->weights = (moebius_layer_weights){.struct_size = sizeof(s->weights),
                                       .router_config = &s->router_config,
                                       .router = &s->router,
                                       .in_dtype = MOEBIUS_F32,
                                       .experts = &s->experts,
                                       .shared = &s->shared};
}

void make_small_call(small_call* c, uint32_t seed) {
  memset(c, 0, sizeof(*c));
  fill(c->hidden, SL_T * SL_H, seed);
  c->t_hidden = matrix_of(c->hidden, MOEBIUS_F32, SL_T, SL_H);
  c->t_output = matrix_of(c->output, MOEBIUS_F32, SL_T, SL_H);
  c->input = (moebius_layer_input){.struct_size = sizeof(c->input), .hidden = &c->t_hidden};
}

void check_small_output(const small_layer* s, const small_call* c, double factor) {
  const experts_values experts = {s->w1, s->w2, SL_H, SL_I};
  const experts_values shared = {s->shared_w1, s->shared_w2, SL_H, SL_SHARED};
  for (int t = 0; t < SL_T; ++t) {
    const float* const x = c->hidden + t * SL_H;
    double score[SL_E], sum = 0, expected[SL_H] = {0};
    int chosen[SL_K];
    for (int e = 0; e < SL_E; ++e) {
      double logit = 0;
      for (int h = 0; h < SL_H; ++h) {
        logit += (double)x[h] * (double)s->gate[e * SL_H + h];
      }
      score[e] = exp(logit);
    }
    for (int k = 0; k < SL_K; ++k) {
      chosen[k] = -1;
      for (int e = 0; e < SL_E; ++e) {
        if ((k == 0 || e != chosen[0]) && (chosen[k] < 0 || score[e] > score[chosen[k]])) {
          chosen[k] = e;
        }
      }
      sum += score[chosen[k]];
    }
    for (int k = 0; k < SL_K; ++k) {
      add_expert(&experts, chosen[k], x, score[chosen[k]] / sum, expected);
    }
    if (factor == 0) {
      add_expert(&shared, 0, x, 1, expected);
    }
    for (int h = 0; h < SL_H; ++h) {
      CHECK_NEAR(c->output[t * SL_H + h], expected[h] + factor * (double)x[h], 1e-3);
    }
  }
}
