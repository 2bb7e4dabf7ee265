/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* The router against its definition, and counting of tokens. */
#include <math.h>

#include "tests/c_api/check.h"

enum { T = 7, H = 24, E = 8, K = 3 };
static const moebius_device kCpu = {MOEBIUS_CPU, 0};

/* The K best of a row; ties go to the lower id. */
static void choose(const double* scores, int* ids) {
  int taken[E] = {0};
  for (int k = 0; k < K; ++k) {
    int best = -1;
    for (int e = 0; e < E; ++e) {
      if (!taken[e] && (best < 0 || scores[e] > scores[best])) {
        best = e;
      }
    }
    taken[best] = 1;
    ids[k] = best;
  }
}

static void check_routing(int32_t scoring, int renormalize, int has_correction, int32_t ids_dtype) {
  static float hidden[T * H], gate[E * H], bias[E], correction[E], logits[T * E], weights[T * K];
  static float scale[E];
  int64_t ids[T * K]; /* room for i32, too */
  fill(hidden, T * H, 1);
  fill(gate, E * H, 2);
  fill(bias, E, 3);
  fill(correction, E, 4);
  fill(scale, E, 6);
  const moebius_tensor tg = matrix_of(gate, MOEBIUS_F32, E, H),
                       tb = vector_of(bias, MOEBIUS_F32, E);
  const moebius_tensor tc = vector_of(correction, MOEBIUS_F32, E),
                       ts = vector_of(scale, MOEBIUS_F32, E);
  moebius_router_weights given = {.struct_size = sizeof(given),
                                  .gate = &tg,
                                  .bias = &tb,
                                  .correction_bias = has_correction ? &tc : NULL,
                                  .expert_scale = &ts};
  const moebius_router_config config = {.struct_size = sizeof(config),
                                        .num_experts = E,
                                        .topk = K,
                                        .scoring = scoring,
                                        .renormalize = renormalize,
                                        .routed_scaling_factor = 2.5f};
  moebius_router router = NULL;
  CHECK_OK(moebius_router_create(&config, &given, kCpu, &router));
  const moebius_tensor th = matrix_of(hidden, MOEBIUS_F32, T, H);
  const moebius_tensor tl = matrix_of(logits, MOEBIUS_F32, T, E);
  const moebius_tensor ti = matrix_of(ids, ids_dtype, T, K);
  const moebius_tensor tw = matrix_of(weights, MOEBIUS_F32, T, K);
  for (int round = 0; round < 2; ++round) { /* the second after an update */
    CHECK_OK(moebius_router_logits(router, &th, &tl, NULL));
    CHECK_OK(moebius_router_select(router, &tl, &ti, &tw, NULL));
    for (int t = 0; t < T; ++t) {
      double scores[E], choice[E], sum = 0, sum_exp = 0;
      int expected[K];
      for (int e = 0; e < E; ++e) {
        double logit = (double)bias[e];
        for (int h = 0; h < H; ++h) {
          logit += (double)hidden[t * H + h] * (double)gate[e * H + h];
        }
        CHECK_NEAR(logits[t * E + e], logit, 1e-5);
        scores[e] = scoring == MOEBIUS_SIGMOID   ? 1 / (1 + exp(-logit))
                    : scoring == MOEBIUS_SOFTMAX ? exp(logit)
                                                 : sqrt(log(1 + exp(logit)));
        sum_exp += exp(logit);
      }
      for (int e = 0; e < E; ++e) {
        scores[e] /= scoring == MOEBIUS_SOFTMAX ? sum_exp : 1;
        choice[e] = scores[e] + (has_correction ? (double)correction[e] : 0);
      }
      choose(choice, expected);
      for (int k = 0; k < K; ++k) {
        sum += scores[expected[k]];
      }
      for (int k = 0; k < K; ++k) {
        const int64_t id =
            ids_dtype == MOEBIUS_I64 ? ids[t * K + k] : (int64_t)((int32_t*)ids)[t * K + k];
        CHECK_EQ(id, expected[k]);
        const double weight = 2.5 * scores[expected[k]] / (renormalize ? sum : 1);
        CHECK_NEAR(weights[t * K + k], weight * (double)scale[expected[k]], 1e-5);
      }
    }
    fill(gate, E * H, 5); /* copied before, so only the update counts */
    CHECK_OK(moebius_router_update(router, &given, NULL));
  }
  CHECK_OK(moebius_router_destroy(router));
}

/* Logits 3 and 4 are near each other, and 1 is not; 1 is all that is left for the third place. */
static void check_sparse_mixer(void) {
  float logits[3] = {3, 1, 4}, weights[3];
  int32_t ids[3];
  const moebius_router_config config = {.struct_size = sizeof(config),
                                        .num_experts = 3,
                                        .topk = 3,
                                        .scoring = MOEBIUS_SPARSE_MIXER,
                                        .mixer_epsilon = 0.25f};
  moebius_router router = NULL;
  CHECK_OK(moebius_router_create(&config, NULL, kCpu, &router));
  const moebius_tensor tl = matrix_of(logits, MOEBIUS_F32, 1, 3);
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, 1, 3);
  const moebius_tensor tw = matrix_of(weights, MOEBIUS_F32, 1, 3);
  CHECK_OK(moebius_router_select(router, &tl, &ti, &tw, NULL));
  CHECK_EQ(ids[0], 2);
  CHECK_EQ(ids[1], 0);
  CHECK_EQ(ids[2], 1);
  CHECK_NEAR(weights[0], 1 / (1 + exp(-1.0)), 1e-6);
  CHECK_NEAR(weights[1], 1, 1e-6);
  CHECK_NEAR(weights[2], 1, 1e-6);
  CHECK_OK(moebius_router_destroy(router));
}

static void check_counts(void) {
  int32_t ids[5 * 2] = {0, 3, -1, 2, 3, 3, 1, -1, 0, 2};
  int32_t map[4] = {-1, 0, -1, 1}, counts[4] = {9, 9, 9, 9};
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, 5, 2);
  const moebius_tensor tm = vector_of(map, MOEBIUS_I32, 4);
  const moebius_tensor all = vector_of(counts, MOEBIUS_I32, 4);
  const moebius_tensor two = vector_of(counts, MOEBIUS_I32, 2);
  CHECK_OK(moebius_count_expert_tokens(&ti, NULL, &all, NULL));
  CHECK_EQ(counts[0], 2);
  CHECK_EQ(counts[1], 1);
  CHECK_EQ(counts[2], 2);
  CHECK_EQ(counts[3], 3);
  CHECK_OK(moebius_count_expert_tokens(&ti, &tm, &two, NULL));
  CHECK_EQ(counts[0], 1);
  CHECK_EQ(counts[1], 3);
  counts[0] = 55;
  CHECK_INVALID(moebius_count_expert_tokens(NULL, NULL, &all, NULL));
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, NULL, NULL));
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, &two, NULL)); /* an id beyond L */
  ids[0] = 4;
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, &all, NULL));
  CHECK_INVALID(moebius_count_expert_tokens(&ti, &tm, &two, NULL));
  ids[0] = INT32_MIN;
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, &all, NULL));
  ids[0] = 0;
  map[0] = 7;
  CHECK_INVALID(moebius_count_expert_tokens(&ti, &tm, &two, NULL));
  const moebius_tensor constant = read_only(all);
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, &constant, NULL));
  /* Counts in memory that is read as ids would be places to count at. */
  map[0] = -1;
  const moebius_tensor among_ids = vector_of(ids, MOEBIUS_I32, 4);
  const moebius_tensor in_map = vector_of(map + 2, MOEBIUS_I32, 2);
  CHECK_INVALID(moebius_count_expert_tokens(&ti, NULL, &among_ids, NULL));
  CHECK_INVALID(moebius_count_expert_tokens(&ti, &tm, &in_map, NULL));
  CHECK_EQ(counts[0], 55);
}

static void check_misuse(void) {
  static float gate[E * H], hidden[T * H], logits[T * E], weights[T * K];
  static int32_t ids[T * K];
  moebius_tensor tg = matrix_of(gate, MOEBIUS_F32, E, H);
  const moebius_router_weights given = {.struct_size = sizeof(given), .gate = &tg};
  const moebius_router_config good = {.struct_size = sizeof(good), .num_experts = E, .topk = K};
  moebius_router router = NULL, untouched = UNTOUCHED;
  moebius_workspaces other = NULL;
  fill(gate, E * H, 1);
  CHECK_OK(moebius_workspaces_create(&other));
  CHECK_INVALID(moebius_router_create(NULL, &given, kCpu, &untouched));
  CHECK_INVALID(moebius_router_create(&good, &given, kCpu, NULL));
  CHECK_INVALID(moebius_router_create(&good, &given, (moebius_device){3, 0}, &untouched));
  moebius_router_config bad[11];
  for (int i = 0; i < 11; ++i) {
    bad[i] = good;
  }
  bad[0].num_experts = 0;
  bad[1].num_experts = -8;
  bad[2].topk = 0;
  bad[3].topk = E + 1;
  bad[4].scoring = 4;
  bad[5].scoring = -1;
  bad[6].num_groups = 3; /* no divisor */
  bad[7].num_groups = -2;
  bad[8].renormalize = 2;
  bad[9].num_experts = E + 1; /* not the gate's */
  bad[10].num_experts = INT64_MAX;
  for (int i = 0; i < 11; ++i) {
    CHECK_INVALID(moebius_router_create(&bad[i], &given, kCpu, &untouched));
  }
  gate[5] = NAN;
  CHECK_INVALID(moebius_router_create(&good, &given, kCpu, &untouched));
  gate[5] = 0;
  CHECK(untouched == UNTOUCHED);
  CHECK_STRUCT_SIZES(moebius_router_config, good,
                     (moebius_router_destroy(router), router = NULL,
                      moebius_router_create(given, NULL, kCpu, &router)));
  CHECK_OK(moebius_router_destroy(router));
  const moebius_router_weights with_gate = given;
  CHECK_STRUCT_SIZES(moebius_router_weights, with_gate,
                     (moebius_router_destroy(router), router = NULL,
                      moebius_router_create(&good, given, kCpu, &router)));

  const moebius_tensor th = matrix_of(hidden, MOEBIUS_F32, T, H);
  const moebius_tensor tl = matrix_of(logits, MOEBIUS_F32, T, E);
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I32, T, K);
  const moebius_tensor tw = matrix_of(weights, MOEBIUS_F32, T, K);
  const moebius_tensor constants[] = {read_only(tl), read_only(ti), read_only(tw)};
  CHECK_INVALID(moebius_router_logits(router, NULL, &tl, NULL));
  CHECK_INVALID(moebius_router_logits(router, &th, NULL, NULL));
  CHECK_INVALID(moebius_router_logits(router, &tl, &tl, NULL));
  CHECK_INVALID(moebius_router_logits(router, &th, &th, NULL));
  CHECK_INVALID(moebius_router_logits(router, &th, &constants[0], NULL));
  CHECK_INVALID(moebius_router_select(router, NULL, &ti, &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, NULL, &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, &ti, NULL, NULL));
  CHECK_INVALID(moebius_router_select(router, &th, &ti, &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, &tw, &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, &constants[1], &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, &ti, &constants[2], NULL));
  const moebius_tensor in_weights = matrix_of(weights, MOEBIUS_I32, T, K);
  const moebius_tensor in_logits = matrix_of(logits, MOEBIUS_F32, T, K);
  const moebius_tensor in_hidden = matrix_of(hidden, MOEBIUS_F32, T, E);
  CHECK_INVALID(moebius_router_select(router, &tl, &in_weights, &tw, NULL));
  CHECK_INVALID(moebius_router_select(router, &tl, &ti, &in_logits, NULL));
  CHECK_INVALID(moebius_router_logits(router, &th, &in_hidden, NULL));
  CHECK_INVALID(moebius_router_update(router, NULL, NULL));
  const moebius_router_weights nothing = {.struct_size = sizeof(nothing)};
  CHECK_INVALID(moebius_router_update(router, &nothing, NULL));
  CHECK_BAD_HANDLES(moebius_router, other, moebius_router_logits(handle, &th, &tl, NULL));
  CHECK_BAD_HANDLES(moebius_router, other, moebius_router_select(handle, &tl, &ti, &tw, NULL));
  CHECK_BAD_HANDLES(moebius_router, other, moebius_router_update(handle, &given, NULL));
  CHECK_BAD_OPTIONAL(moebius_router, other, moebius_router_destroy(handle));
  CHECK_OK(moebius_router_logits(router, &th, &tl, NULL));
  CHECK_OK(moebius_router_destroy(router));

  /* Without a gate the caller brings logits. */
  CHECK_OK(moebius_router_create(&good, NULL, kCpu, &router));
  CHECK_INVALID(moebius_router_logits(router, &th, &tl, NULL));
  CHECK_OK(moebius_router_select(router, &tl, &ti, &tw, NULL));
  CHECK_OK(moebius_router_destroy(router));
  CHECK_OK(moebius_router_destroy(NULL));
  CHECK_OK(moebius_workspaces_destroy(other));
}

void test_router(void) {
  check_routing(MOEBIUS_SOFTMAX, 0, 0, MOEBIUS_I32);
  check_routing(MOEBIUS_SOFTMAX, 1, 0, MOEBIUS_I64);
  check_routing(MOEBIUS_SIGMOID, 1, 1, MOEBIUS_I32);
  check_routing(MOEBIUS_SQRT_SOFTPLUS, 0, 0, MOEBIUS_I64);
  check_sparse_mixer();
  check_counts();
  check_misuse();
}
