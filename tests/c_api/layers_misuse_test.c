/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that are refused, and arguments that their calls refuse. */
#include "tests/c_api/small_layer.h"

static void check_refused_options(const small_layer* s) {
  moebius_group group = NULL, other_group = NULL;
  moebius_transports transports = NULL;
  moebius_layer untouched = UNTOUCHED;
  moebius_kernel_options kernel = {.struct_size = sizeof(kernel)};
  CHECK_OK(moebius_make_thread_groups(1, NULL, &group));
  CHECK_OK(moebius_make_thread_groups(1, NULL, &other_group));
  CHECK_OK(moebius_transports_create(other_group, &transports));
#define REFUSES(change)                                                              \
  do {                                                                               \
    moebius_layer_options bad = {.struct_size = sizeof(bad), .kernel = &kernel};     \
    kernel = (moebius_kernel_options){.struct_size = sizeof(kernel)};                \
    change;                                                                          \
    CHECK_INVALID(moebius_layer_create(&s->weights, &bad, group, NULL, &untouched)); \
  } while (0)
  REFUSES(bad.format = 2);
  REFUSES(bad.format = -1);
  REFUSES(bad.experts = "teleport");
  REFUSES(bad.lends_weights = 2);
  REFUSES(bad.computes_in_f64 = -1);
  REFUSES(bad.backend = "teleport");
  REFUSES(bad.tp_size = -1);
  REFUSES(bad.tp_size = 2);
  REFUSES(bad.no_expert_parallel = 3);
  REFUSES(bad.max_num_tokens = -1);
  REFUSES(bad.transports = transports); /* of another group */
  REFUSES(bad.transports = (moebius_transports)group);
  REFUSES(bad.monolithic = 2);
  REFUSES(bad.comm_sms = -2);
  REFUSES(bad.capacity = -2);
  REFUSES(bad.sums_per_rank = 2);
  REFUSES(bad.sequence_parallel = 2);
  REFUSES(bad.workspaces = (moebius_workspaces)group);
  REFUSES(kernel.chunk_tokens = -1);
  REFUSES(kernel.microbatches = -1);
  REFUSES(kernel.min_microbatch_tokens = -2);
  REFUSES(kernel.combine_parts = -1);
  REFUSES(kernel.early_rows = -2);
  REFUSES(kernel.struct_size = 9);
  REFUSES(bad.struct_size = 9);
#undef REFUSES
  const moebius_layer_options without_group = {.struct_size = sizeof(without_group),
                                               .transports = transports};
  CHECK_INVALID(moebius_layer_create(&s->weights, &without_group, NULL, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK_OK(moebius_group_destroy(other_group));
  CHECK_OK(moebius_group_barrier(group));
  CHECK_OK(moebius_group_destroy(group));
}

static void check_refused_weights(const small_layer* s) {
  moebius_layer untouched = UNTOUCHED;
  moebius_router_config config = s->router_config;
  moebius_expert_weights experts = s->experts, shared = s->shared;
  moebius_tensor flat = vector_of((void*)(uintptr_t)s->w1, MOEBIUS_F32, 64);
#define REFUSES(change)                                                      \
  do {                                                                       \
    moebius_layer_weights bad = s->weights;                                  \
    config = s->router_config;                                               \
    experts = s->experts;                                                    \
    shared = s->shared;                                                      \
    bad.router_config = &config;                                             \
    bad.experts = &experts;                                                  \
    bad.shared = &shared;                                                    \
    change;                                                                  \
    CHECK_INVALID(moebius_layer_create(&bad, NULL, NULL, NULL, &untouched)); \
  } while (0)
  REFUSES(bad.router_config = NULL);
  REFUSES(config.num_experts = SL_E + 1);
  REFUSES(config.topk = 0);
  REFUSES(bad.experts = NULL);
  REFUSES(experts.w1 = NULL);
  REFUSES(experts.w1 = &flat);
  REFUSES(experts.w2 = &s->t_w1);
  REFUSES(bad.hidden = SL_H + 1);
  REFUSES(bad.intermediate = -3);
  REFUSES(bad.in_dtype = MOEBIUS_I8);
  REFUSES(shared.w1 = NULL);
  REFUSES(shared.w2 = &flat);
  REFUSES(bad.apply_router_weight_on_input = 2);
  REFUSES(bad.shared_gate = &s->t_w1);
#undef REFUSES
  CHECK(untouched == UNTOUCHED);
}

void test_layers_misuse(void) {
  static small_layer s;
  static small_call c;
  moebius_layer layer = NULL, untouched = UNTOUCHED;
  moebius_call call = UNTOUCHED;
  moebius_workspaces other = NULL;
  moebius_layer_info info = {.struct_size = sizeof(info)};
  int64_t load[SL_E], bytes = 0;
  make_small_layer(&s, 0, 1);
  make_small_call(&c, 9);
  CHECK_OK(moebius_workspaces_create(&other));
  check_refused_options(&s);
  check_refused_weights(&s);
  CHECK_INVALID(moebius_layer_create(NULL, NULL, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_layer_create(&s.weights, NULL, NULL, NULL, NULL));
  CHECK(untouched == UNTOUCHED);
  const moebius_layer_weights weights = s.weights;
  CHECK_STRUCT_SIZES(moebius_layer_weights, weights,
                     (moebius_layer_destroy(layer), layer = NULL,
                      moebius_layer_create(given, NULL, NULL, NULL, &layer)));
  const moebius_layer_options options = {.struct_size = sizeof(options)};
  CHECK_STRUCT_SIZES(moebius_layer_options, options,
                     (moebius_layer_destroy(layer), layer = NULL,
                      moebius_layer_create(&weights, given, NULL, NULL, &layer)));
  const moebius_layer_input input = c.input;
  CHECK_STRUCT_SIZES(moebius_layer_input, input,
                     moebius_layer_forward(layer, given, &c.t_output, NULL));
  const moebius_kernel_options kernel = {.struct_size = sizeof(kernel)};
  CHECK_STRUCT_SIZES(
      moebius_kernel_options, kernel,
      (c.input.kernel = given, moebius_layer_forward(layer, &c.input, &c.t_output, NULL)));
  c.input.kernel = NULL;
  CHECK_FILLED_STRUCT(moebius_layer_info, moebius_layer_get_info(layer, given));

  for (int i = 0; i < SL_T * SL_H; ++i) {
    c.output[i] = 55;
  }
  const moebius_tensor constant = read_only(c.t_output);
  const moebius_tensor shorter = matrix_of(c.output, MOEBIUS_F32, SL_T - 1, SL_H);
  const moebius_tensor ids = matrix_of(c.output, MOEBIUS_I32, SL_T, SL_H);
  CHECK_INVALID(moebius_layer_forward(layer, NULL, &c.t_output, NULL));
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, NULL, NULL));
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &constant, NULL));
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &shorter, NULL));
  CHECK_INVALID(moebius_layer_forward(layer, &c.input, &ids, NULL));
#define REFUSES(change)                                                        \
  do {                                                                         \
    moebius_layer_input bad = c.input;                                         \
    change;                                                                    \
    CHECK_INVALID(moebius_layer_forward(layer, &bad, &c.t_output, NULL));      \
    CHECK_INVALID(moebius_layer_start(layer, &bad, &c.t_output, NULL, &call)); \
  } while (0)
  REFUSES(bad.hidden = NULL);
  REFUSES(bad.hidden = &s.t_gate);
  REFUSES(bad.topk_weights = &s.t_gate);
  REFUSES(bad.lora_ids = &s.t_gate);
  REFUSES(bad.microbatch = -1);
  REFUSES(bad.microbatch = INT32_MAX);
#undef REFUSES
  CHECK(call == UNTOUCHED);
  for (int i = 0; i < SL_T * SL_H; ++i) {
    CHECK(c.output[i] == 55);
  }
  CHECK_INVALID(moebius_layer_update(layer, NULL, NULL));
  moebius_expert_weights wrong = s.experts;
  wrong.w1 = &s.t_w2;
  moebius_layer_weights update = {.struct_size = sizeof(update), .experts = &wrong};
  CHECK_INVALID(moebius_layer_update(layer, &update, NULL));
#define L_HANDLES(call) CHECK_BAD_HANDLES(moebius_layer, other, call)
  L_HANDLES(moebius_layer_get_info(handle, &info));
  L_HANDLES(moebius_layer_forward(handle, &c.input, &c.t_output, NULL));
  L_HANDLES(moebius_layer_start(handle, &c.input, &c.t_output, NULL, &call));
  L_HANDLES(moebius_layer_update(handle, &weights, NULL));
  L_HANDLES(moebius_layer_set_dead(handle, 0, 1));
  L_HANDLES(moebius_layer_check(handle));
  L_HANDLES(moebius_layer_expert_load(handle, 0, load, SL_E));
#undef L_HANDLES
  CHECK_BAD_OPTIONAL(moebius_layer, other, moebius_layer_destroy(handle));
  CHECK_BAD_HANDLES(moebius_workspaces, layer, moebius_workspaces_bytes(handle, &bytes));
  CHECK_BAD_HANDLES(moebius_workspaces, layer, moebius_workspaces_trim(handle));
  CHECK_BAD_OPTIONAL(moebius_workspaces, layer, moebius_workspaces_destroy(handle));
  CHECK_INVALID(moebius_workspaces_create(NULL));
  CHECK_INVALID(moebius_workspaces_bytes(other, NULL));
  /* After all that it computes. */
  memset(c.output, 0, sizeof(c.output));
  CHECK_OK(moebius_layer_forward(layer, &c.input, &c.t_output, NULL));
  check_small_output(&s, &c, 0);
  CHECK_OK(moebius_layer_destroy(layer));
  CHECK_OK(moebius_workspaces_destroy(other));
}
