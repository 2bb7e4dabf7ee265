/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* A few small experts and their input. */
#ifndef MOEBIUS_TESTS_C_API_EXPERTS_MODEL_H_
#define MOEBIUS_TESTS_C_API_EXPERTS_MODEL_H_

#include "tests/c_api/check.h"

enum { T = 9, H = 32, I = 16, E = 4, L = 3, K = 2, ROWS = 5 };

/* L local experts of E; expert 1 lives elsewhere. */
typedef struct model {
  float w1[L * 2 * I * H], w2[L * H * I];
  float hidden[T * H], topk_weights[T * K], output[T * H];
  int32_t ids[T * K];
  int64_t wide_ids[T * K];
  int32_t map[E];
  moebius_tensor t_w1, t_w2, t_hidden, t_weights, t_ids, t_wide_ids, t_map, t_output;
  moebius_expert_weights weights;
  moebius_experts_options options;
} model;

void make_model(model* m);
void check_output(const model* m);

#endif
