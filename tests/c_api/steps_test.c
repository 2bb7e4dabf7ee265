/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are driven in steps: the bits of a forward, two calls in flight, a call given up. */
#include "tests/c_api/small_layer.h"

enum { R = 4 };

/* Two layers of a rank, which share their transports and workspaces. */
typedef struct pair {
  small_layer tensors;
  small_call calls[2];
  moebius_layer layers[2];
} pair;

static void make_pair(pair* p, moebius_group group, int rank) {
  moebius_transports transports = NULL;
  moebius_workspaces workspaces = NULL;
  make_small_layer(&p->tensors, rank, R);
  CHECK_OK(moebius_transports_create(group, &transports));
  CHECK_OK(moebius_workspaces_create(&workspaces));
  const moebius_layer_options options = {
      .struct_size = sizeof(options), .transports = transports, .workspaces = workspaces};
  for (int i = 0; i < 2; ++i) {
    make_small_call(&p->calls[i], (uint32_t)(10 * rank + i));
    p->calls[i].input.microbatch = i;
    CHECK_OK(moebius_layer_create(&p->tensors.weights, &options, group, NULL, &p->layers[i]));
  }
  /* The layers keep both. */
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK_OK(moebius_workspaces_destroy(workspaces));
}

static void destroy_pair(pair* p) {
  CHECK_OK(moebius_layer_destroy(p->layers[0]));
  CHECK_OK(moebius_layer_destroy(p->layers[1]));
}

static void in_flight(moebius_group* group, int rank, void* user) {
  static pair pairs[R];
  static float expected[R][2][SL_T * SL_H];
  pair* const p = &pairs[rank];
  moebius_call calls[2] = {NULL, NULL}, third = UNTOUCHED;
  int32_t has_more[2] = {1, 1}, num_steps = 0;
  (void)user;
  make_pair(p, *group, rank);
  for (int i = 0; i < 2; ++i) {
    small_call* const c = &p->calls[i];
    CHECK_OK(moebius_layer_forward(p->layers[i], &c->input, &c->t_output, NULL));
    check_small_output(&p->tensors, c, 0);
    memcpy(expected[rank][i], c->output, sizeof(c->output));
    memset(c->output, 0, sizeof(c->output));
    CHECK_OK(moebius_layer_start(p->layers[i], &c->input, &c->t_output, NULL, &calls[i]));
  }
  /* A layer has one call at a time. */
  CHECK_INVALID(
      moebius_layer_start(p->layers[0], &p->calls[0].input, &p->calls[0].t_output, NULL, &third));
  CHECK_INVALID(
      moebius_layer_forward(p->layers[0], &p->calls[0].input, &p->calls[0].t_output, NULL));
  CHECK(third == UNTOUCHED);
  while (has_more[0] || has_more[1]) {
    for (int i = 0; i < 2; ++i) {
      CHECK_OK(moebius_call_step(calls[i], &has_more[i]));
      ++num_steps;
    }
  }
  CHECK(num_steps >= 6); /* each stops after dispatch and after combine */
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(memcmp(p->calls[i].output, expected[rank][i], sizeof(expected[rank][i])), 0);
    has_more[i] = 1;
    CHECK_OK(moebius_call_step(calls[i], &has_more[i])); /* it is over, and stays so */
    CHECK_EQ(has_more[i], 0);
    CHECK_OK(moebius_call_destroy(calls[i]));
    CHECK_INVALID(moebius_call_step(calls[i], &has_more[i]));
  }
  destroy_pair(p);
}

/* Rank 1 gives its call up after a step; nobody waits for it. */
static void given_up(moebius_group* group, int rank, void* user) {
  static pair pairs[R];
  pair* const p = &pairs[rank];
  small_call* const c = &p->calls[0];
  moebius_call call = NULL;
  int32_t has_more = 1;
  moebius_status status = MOEBIUS_OK;
  moebius_error_info error = {.struct_size = sizeof(error)};
  (void)user;
  make_pair(p, *group, rank);
  CHECK_OK(moebius_layer_start(p->layers[0], &c->input, &c->t_output, NULL, &call));
  CHECK_OK(moebius_call_destroy(call)); /* before a step: silently */
  CHECK_OK(moebius_layer_start(p->layers[0], &c->input, &c->t_output, NULL, &call));
  if (rank == 1) {
    CHECK_OK(moebius_call_step(call, &has_more));
    CHECK_EQ(has_more, 1);
    CHECK_OK(moebius_call_destroy(call));
    destroy_pair(p);
    return;
  }
  while (has_more && status == MOEBIUS_OK) {
    status = moebius_call_step(call, &has_more);
  }
  CHECK_EQ(status, MOEBIUS_COMM_ERROR);
  CHECK_OK(moebius_last_error(&error));
  CHECK_EQ(error.rank, rank);
  CHECK_EQ(error.peer, 1);
  /* The layer may go before its call. */
  destroy_pair(p);
  CHECK_OK(moebius_call_step(call, &has_more));
  CHECK_EQ(has_more, 0);
  CHECK_OK(moebius_call_destroy(call));
}

/* Workspaces that are trimmed under a call, and a layer that goes before it. */
static void check_alone(void) {
  static small_layer s;
  static small_call c;
  moebius_workspaces workspaces = NULL;
  moebius_layer layer = NULL;
  moebius_call call = NULL, untouched = UNTOUCHED;
  int32_t has_more = 7;
  make_small_layer(&s, 0, 1);
  make_small_call(&c, 3);
  CHECK_OK(moebius_workspaces_create(&workspaces));
  const moebius_layer_options options = {.struct_size = sizeof(options), .workspaces = workspaces};
  CHECK_OK(moebius_layer_create(&s.weights, &options, NULL, NULL, &layer));
  CHECK_INVALID(moebius_layer_start(layer, NULL, &c.t_output, NULL, &untouched));
  CHECK_INVALID(moebius_layer_start(layer, &c.input, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_layer_start(layer, &c.input, &c.t_output, NULL, NULL));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_layer_start(layer, &c.input, &c.t_output, NULL, &call));
  CHECK_INVALID(moebius_call_step(call, NULL));
  CHECK_BAD_HANDLES(moebius_call, layer, moebius_call_step(handle, &has_more));
  CHECK_BAD_OPTIONAL(moebius_call, layer, moebius_call_destroy(handle));
  CHECK_EQ(has_more, 7);
  CHECK_OK(moebius_layer_destroy(layer));
  do {
    CHECK_OK(moebius_call_step(call, &has_more));
    CHECK_OK(moebius_workspaces_trim(workspaces));
  } while (has_more);
  check_small_output(&s, &c, 0);
  CHECK_OK(moebius_call_destroy(call));
  CHECK_OK(moebius_call_destroy(NULL));
  CHECK_OK(moebius_workspaces_destroy(workspaces));
}

/* The same over ranks, where calls stop with tensors in the workspaces. */
static void trimmed(moebius_group* group, int rank, void* user) {
  small_layer* const s = layer_of(rank);
  small_call* const c = call_of(rank);
  moebius_workspaces workspaces = NULL;
  moebius_layer layer = NULL;
  moebius_call call = NULL;
  int32_t has_more = 1;
  (void)user;
  make_small_layer(s, rank, R);
  make_small_call(c, (uint32_t)rank);
  CHECK_OK(moebius_workspaces_create(&workspaces));
  const moebius_layer_options options = {.struct_size = sizeof(options), .workspaces = workspaces};
  CHECK_OK(moebius_layer_create(&s->weights, &options, *group, NULL, &layer));
  CHECK_OK(moebius_layer_start(layer, &c->input, &c->t_output, NULL, &call));
  while (has_more) {
    CHECK_OK(moebius_call_step(call, &has_more));
    CHECK_OK(moebius_workspaces_trim(workspaces));
  }
  check_small_output(s, c, 0);
  CHECK_OK(moebius_call_destroy(call));
  CHECK_OK(moebius_workspaces_destroy(workspaces));
  CHECK_OK(moebius_layer_destroy(layer));
}

void test_steps(void) {
  check_alone();
  run_ranks(R, NULL, in_flight, NULL);
  run_ranks(R, NULL, given_up, NULL);
  run_ranks(R, NULL, trimmed, NULL);
}
