/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Layers from tensors: alone, over ranks with every backend, with parts of the caller's. */
#include "tests/c_api/small_layer.h"

enum { R = 4 };

static void forward(moebius_layer layer, small_call* c) {
  memset(c->output, 0, sizeof(c->output));
  CHECK_OK(moebius_layer_forward(layer, &c->input, &c->t_output, NULL));
}

static void check_alone(void) {
  static small_layer s;
  static small_call c;
  moebius_layer layer = NULL;
  moebius_workspaces workspaces = NULL;
  int64_t bytes = -1;
  make_small_layer(&s, 0, 1);
  make_small_call(&c, 9);
  CHECK_OK(moebius_workspaces_create(&workspaces));
  const moebius_layer_options options = {.struct_size = sizeof(options), .workspaces = workspaces};
  CHECK_OK(moebius_layer_create(&s.weights, &options, NULL, NULL, &layer));
  CHECK_OK(moebius_workspaces_bytes(workspaces, &bytes));
  CHECK_EQ(bytes, 0);
  forward(layer, &c);
  check_small_output(&s, &c, 0);
  CHECK_OK(moebius_workspaces_bytes(workspaces, &bytes));
  CHECK(bytes > 0);
  CHECK_OK(moebius_workspaces_trim(workspaces));
  CHECK_OK(moebius_workspaces_bytes(workspaces, &bytes));
  CHECK_EQ(bytes, 0);
  CHECK_OK(moebius_layer_check(layer));

  /* Options of one call, and rows of a wider matrix. */
  const moebius_kernel_options chunks = {.struct_size = sizeof(chunks), .chunk_tokens = 3};
  c.input.kernel = &chunks;
  c.input.microbatch = 1;
  forward(layer, &c);
  check_small_output(&s, &c, 0);
  static float wide[SL_T * (SL_H + 5)];
  for (int t = 0; t < SL_T; ++t) {
    memcpy(wide + t * (SL_H + 5), c.hidden + t * SL_H, SL_H * sizeof(float));
  }
  c.t_hidden.data = wide;
  c.t_hidden.strides[0] = SL_H + 5;
  c.t_hidden.strides[1] = 1;
  forward(layer, &c);
  check_small_output(&s, &c, 0);

  /* The output may be the input. */
  make_small_call(&c, 9);
  memcpy(c.output, c.hidden, sizeof(c.output));
  c.t_hidden.data = c.output;
  CHECK_OK(moebius_layer_forward(layer, &c.input, &c.t_output, NULL));
  check_small_output(&s, &c, 0);

  /* New weights. */
  make_small_call(&c, 9);
  fill(s.w1, SL_E * 2 * SL_I * SL_H, 42);
  fill(s.shared_w2, SL_H * SL_SHARED, 43);
  fill(s.gate, SL_E * SL_H, 44);
  CHECK_OK(moebius_layer_update(layer, &s.weights, NULL));
  forward(layer, &c);
  check_small_output(&s, &c, 0);
  const moebius_layer_weights none = {.struct_size = sizeof(none)};
  CHECK_OK(moebius_layer_update(layer, &none, NULL));
  forward(layer, &c);
  check_small_output(&s, &c, 0);
  CHECK_FAILS(MOEBIUS_UNSUPPORTED, moebius_layer_set_dead(layer, 1, 1));
  CHECK_OK(moebius_layer_destroy(layer));
  CHECK_OK(moebius_workspaces_destroy(workspaces));
}

/* All tokens go to experts 5 and 1, half each. */
static int32_t route(void* user,
                     const moebius_tensor* hidden,
                     const moebius_tensor* ids,
                     const moebius_tensor* weights,
                     void* stream) {
  CHECK(stream == NULL);
  CHECK_EQ(hidden->shape[0], SL_T);
  CHECK_EQ(hidden->shape[1], SL_H);
  CHECK_EQ(ids->dtype, MOEBIUS_I32);
  CHECK_EQ(ids->shape[1], SL_K);
  for (int t = 0; t < SL_T; ++t) {
    ((int32_t*)ids->data)[t * SL_K] = 5;
    ((int32_t*)ids->data)[t * SL_K + 1] = 1;
    ((float*)weights->data)[t * SL_K] = 0.5f;
    ((float*)weights->data)[t * SL_K + 1] = 0.5f;
  }
  return *(int32_t*)user;
}

/* Shared experts that double. */
static int32_t share(void* user,
                     const moebius_tensor* hidden,
                     const moebius_tensor* output,
                     void* stream) {
  CHECK(stream == NULL);
  for (int i = 0; i < SL_T * SL_H; ++i) {
    ((float*)output->data)[i] = 2 * ((float*)hidden->data)[i];
  }
  return *(int32_t*)user;
}

static void check_parts(void) {
  static small_layer s;
  static small_call c;
  static float given[SL_T * SL_H];
  int32_t routing_answer = 0, shared_answer = 0;
  moebius_layer layer = NULL;
  moebius_error_info error = {.struct_size = sizeof(error)};
  make_small_layer(&s, 0, 1);
  make_small_call(&c, 9);
  s.weights.shared = NULL;
  moebius_layer_options options = {.struct_size = sizeof(options),
                                   .shared_experts = share,
                                   .shared_experts_user = &shared_answer};
  CHECK_OK(moebius_layer_create(&s.weights, &options, NULL, NULL, &layer));
  forward(layer, &c);
  check_small_output(&s, &c, 2);
  shared_answer = 3;
  CHECK_FAILS(MOEBIUS_ERROR, moebius_layer_forward(layer, &c.input, &c.t_output, NULL));
  CHECK_OK(moebius_last_error(&error));
  CHECK(strstr(error.message, "3") != NULL);
  shared_answer = 0;
  forward(layer, &c);
  check_small_output(&s, &c, 2);
  CHECK_OK(moebius_layer_destroy(layer));

  /* The caller's routing, and the same ids brought by the call. */
  s.weights.router = NULL;
  options = (moebius_layer_options){
      .struct_size = sizeof(options), .routing = route, .routing_user = &routing_answer};
  CHECK_OK(moebius_layer_create(&s.weights, &options, NULL, NULL, &layer));
  forward(layer, &c);
  memcpy(given, c.output, sizeof(given));
  const experts_values experts = {s.w1, s.w2, SL_H, SL_I};
  for (int t = 0; t < SL_T; ++t) {
    double expected[SL_H] = {0};
    for (int e = 1; e < 6; e += 4) {
      add_expert(&experts, e, c.hidden + t * SL_H, 0.5, expected);
    }
    for (int h = 0; h < SL_H; ++h) {
      CHECK_NEAR(c.output[t * SL_H + h], expected[h], 1e-3);
    }
  }
  routing_answer = -1;
  CHECK_FAILS(MOEBIUS_ERROR, moebius_layer_forward(layer, &c.input, &c.t_output, NULL));
  CHECK_OK(moebius_layer_destroy(layer));
  CHECK_OK(moebius_layer_create(&s.weights, NULL, NULL, NULL, &layer));
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &c.t_output, NULL)); /* who routes? */
  static int64_t ids[SL_T * SL_K];
  static float weights[SL_T * SL_K];
  for (int t = 0; t < SL_T; ++t) {
    ids[t * SL_K] = 5;
    ids[t * SL_K + 1] = 1;
    weights[t * SL_K] = weights[t * SL_K + 1] = 0.5f;
  }
  const moebius_tensor ti = matrix_of(ids, MOEBIUS_I64, SL_T, SL_K);
  const moebius_tensor tw = matrix_of(weights, MOEBIUS_F32, SL_T, SL_K);
  c.input.topk_ids = &ti;
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &c.t_output, NULL)); /* without weights */
  c.input.topk_weights = &tw;
  forward(layer, &c);
  CHECK_EQ(memcmp(c.output, given, sizeof(given)), 0);
  ids[7] = SL_E;
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &c.t_output, NULL));
  CHECK_OK(moebius_layer_destroy(layer));
}

static void in_group(moebius_group* group, int rank, void* user) {
  small_layer* const s = layer_of(rank);
  small_call* const c = call_of(rank);
  const moebius_layer_options* const given = user;
  moebius_layer_options options = *given;
  moebius_transports transports = NULL;
  moebius_layer first = NULL, second = NULL;
  int64_t load[SL_E] = {0}, local[SL_E / R] = {0}, selected = 0, received = 0;
  make_small_layer(s, rank, R);
  make_small_call(c, (uint32_t)(20 + rank));
  CHECK_OK(moebius_transports_create(*group, &transports));
  options.transports = transports;
  CHECK_OK(moebius_layer_create(&s->weights, &options, *group, NULL, &first));
  CHECK_OK(moebius_layer_create(&s->weights, &options, *group, NULL, &second));
  for (int round = 0; round < 2; ++round) {
    forward(first, c);
    check_small_output(s, c, 0);
    forward(second, c);
    check_small_output(s, c, 0);
  }
  CHECK_OK(moebius_layer_expert_load(first, 0, load, SL_E));
  CHECK_OK(moebius_layer_expert_load(first, 1, local, SL_E / R));
  for (int e = 0; e < SL_E; ++e) {
    selected += load[e];
  }
  CHECK_EQ(selected, SL_T * SL_K);
  int64_t all[R][SL_E / R];
  CHECK_OK(moebius_group_all_gather(*group, local, sizeof(local), all));
  for (int r = 0; r < R; ++r) {
    for (int e = 0; e < SL_E / R; ++e) {
      received += all[r][e];
    }
  }
  CHECK_EQ(received, R * SL_T * SL_K);
  /* A bad call of one rank is refused before anything is sent. */
  moebius_layer_input bad = c->input;
  bad.hidden = NULL;
  CHECK_INVALID(moebius_layer_forward(first, &bad, &c->t_output, NULL));
  CHECK_OK(moebius_group_barrier(*group));
  CHECK_OK(moebius_layer_destroy(first));
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK_OK(moebius_layer_destroy(second));
}

/* Low latency goes on without rank 3, whose experts then add nothing. */
static void without_a_rank(moebius_group* group, int rank, void* user) {
  small_layer* const s = layer_of(rank);
  small_call* const c = call_of(rank);
  const moebius_layer_options options = {.struct_size = sizeof(options), .format = MOEBIUS_BATCHED};
  moebius_layer layer = NULL;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  (void)user;
  make_small_layer(s, rank, R);
  make_small_call(c, (uint32_t)(20 + rank));
  CHECK_OK(moebius_layer_create(&s->weights, &options, *group, NULL, &layer));
  CHECK_OK(moebius_layer_get_info(layer, &info));
  CHECK_TEXT(info.backend, "low_latency");
  forward(layer, c);
  check_small_output(s, c, 0);
  if (rank != 3) {
    CHECK_OK(moebius_layer_set_dead(layer, 3, 1));
    CHECK_INVALID(moebius_layer_set_dead(layer, R, 1));
    CHECK_INVALID(moebius_layer_set_dead(layer, 3, 2));
    forward(layer, c);
    memset(s->w2 + 3 * SL_E / R * SL_H * SL_I, 0, sizeof(float) * SL_E / R * SL_H * SL_I);
    check_small_output(s, c, 0);
  }
  CHECK_OK(moebius_layer_destroy(layer));
}

void test_layers(void) {
  check_alone();
  check_parts();
  moebius_layer_options options = {.struct_size = sizeof(options)};
  run_ranks(R, NULL, in_group, &options);
  options.backend = "allgather_reducescatter";
  run_ranks(R, NULL, in_group, &options);
  options.backend = "low_latency";
  options.format = MOEBIUS_BATCHED;
  run_ranks(R, NULL, in_group, &options);
  run_ranks(R, NULL, without_a_rank, NULL);
}
