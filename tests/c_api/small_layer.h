/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* A layer from tensors, with a router, routed experts and shared ones, and its definition. */
#ifndef MOEBIUS_TESTS_C_API_SMALL_LAYER_H_
#define MOEBIUS_TESTS_C_API_SMALL_LAYER_H_

#include "tests/c_api/check.h"

enum { SL_T = 10, SL_H = 32, SL_I = 16, SL_E = 8, SL_K = 2, SL_SHARED = 8, SL_RANKS = 4 };

/* All weights of the layer, and the description of one rank's share of it. */
typedef struct small_layer {
  float gate[SL_E * SL_H], w1[SL_E * 2 * SL_I * SL_H], w2[SL_E * SL_H * SL_I];
  float shared_w1[2 * SL_SHARED * SL_H], shared_w2[SL_H * SL_SHARED];
  moebius_tensor t_gate, t_w1, t_w2, t_shared_w1, t_shared_w2;
  moebius_router_config router_config;
  moebius_router_weights router;
  moebius_expert_weights experts, shared;
  moebius_layer_weights weights;
} small_layer;

/* The share of `rank`: experts [rank * SL_E / num_ranks, ...).  Sizes must divide. */
void make_small_layer(small_layer* s, int rank, int num_ranks);

/* A call's tensors. */
typedef struct small_call {
  float hidden[SL_T * SL_H], output[SL_T * SL_H];
  moebius_tensor t_hidden, t_output;
  moebius_layer_input input;
} small_call;
void make_small_call(small_call* c, uint32_t seed);

/* Room for the layer and the call of one of SL_RANKS ranks of the test that runs. */
small_layer* layer_of(int rank);
small_call* call_of(int rank);

/* output = the definition of the layer for c->hidden.  With `factor` the shared experts are instead
 * hidden times it. */
void check_small_output(const small_layer* s, const small_call* c, double factor);

#endif
