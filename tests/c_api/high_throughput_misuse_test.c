/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that dispatch and combine for high throughput refuse. */
#include "tests/c_api/tokens.h"

static void drop_managed(void** managed) {
  moebius_array array = NULL;
  if (*managed != NULL) {
    CHECK_OK(moebius_array_from_dlpack(*managed, 0, -1, &array));
    CHECK_OK(moebius_array_destroy(array));
    *managed = NULL;
  }
}

/* What is refused before anything is sent; the transport of one rank then still works. */
void test_high_throughput_misuse(void) {
  static tokens my;
  moebius_group group = NULL, stranger = NULL;
  moebius_high_throughput transport = NULL, nothing = UNTOUCHED;
  moebius_high_throughput_options options = {.struct_size = sizeof(options), .num_experts = E};
  moebius_transports transports = NULL;
  moebius_workspaces other = NULL;
  moebius_result result = NULL, untouched = UNTOUCHED;
  moebius_pending pending = UNTOUCHED;
  moebius_transport_statistics statistics = {.struct_size = sizeof(statistics)};
  int64_t bytes = 0;
  void* event = NULL;
  CHECK_OK(moebius_workspaces_create(&other));
  CHECK_OK(moebius_make_thread_groups(1, NULL, &group));
  CHECK_OK(moebius_make_thread_groups(1, NULL, &stranger));
  CHECK_OK(moebius_transports_create(stranger, &transports));
  make_tokens(&my, 0);

  CHECK_INVALID(moebius_transports_create(group, NULL));
  CHECK_INVALID(moebius_transports_bytes(transports, NULL));
  CHECK_INVALID(moebius_high_throughput_create(group, NULL, &nothing));
  CHECK_INVALID(moebius_high_throughput_create(group, &options, NULL));
  options.num_experts = 0;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.num_experts = -1;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.num_experts = INT64_MAX;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.num_experts = E;
  options.dispatch_sms = -2;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.dispatch_sms = 3;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.dispatch_sms = 0;
  options.transports = transports; /* of another group */
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.transports = (moebius_transports)group;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  options.transports = NULL;
  int32_t rank_of[E] = {0, 0, 0, 1};
  moebius_placement placement = {
      .struct_size = sizeof(placement), .rank_of = rank_of, .num_experts = E};
  options.placement = &placement;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing)); /* a rank too many */
  rank_of[3] = -1;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  rank_of[3] = 0;
  placement.num_experts = E - 1;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  placement.num_experts = 0;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  placement.num_experts = E;
  placement.rank_of = NULL;
  CHECK_INVALID(moebius_high_throughput_create(group, &options, &nothing));
  placement.rank_of = rank_of;
  const moebius_placement placed = placement;
  CHECK_STRUCT_SIZES(
      moebius_placement, placed,
      (options.placement = given, moebius_high_throughput_create(group, &options, &transport)));
  options.placement = NULL;
  CHECK(nothing == UNTOUCHED);
  const moebius_high_throughput_options good = options;
  CHECK_STRUCT_SIZES(moebius_high_throughput_options, good,
                     (moebius_high_throughput_destroy(transport), transport = NULL,
                      moebius_high_throughput_create(group, given, &transport)));

  moebius_layout_input ids = {.struct_size = sizeof(ids)};
  CHECK_INVALID(moebius_high_throughput_layout(transport, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_layout(transport, &ids, NULL, &untouched));
  ids.topk_ids = &my.t_x;
  CHECK_INVALID(moebius_high_throughput_layout(transport, &ids, NULL, &untouched));
  ids.topk_ids = &my.t_ids;
  CHECK_INVALID(moebius_high_throughput_layout(transport, &ids, NULL, NULL));
  const moebius_tensor among_ids = vector_of(my.ids, MOEBIUS_I32, E);
  ids.tokens_per_expert_into = &among_ids;
  CHECK_INVALID(moebius_high_throughput_layout(transport, &ids, NULL, &untouched));
  ids.tokens_per_expert_into = NULL;
  CHECK_INVALID(moebius_high_throughput_dispatch(transport, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_dispatch(transport, &my.input, NULL, NULL));
  CHECK_INVALID(moebius_high_throughput_dispatch_start(transport, NULL, NULL, &pending));
  CHECK_INVALID(moebius_high_throughput_dispatch_start(transport, &my.input, NULL, NULL));
  const moebius_tensor shorter = matrix_of(my.x, MOEBIUS_F32, T - 1, H);
  const moebius_tensor constant = read_only(my.t_x);
  const moebius_tensor* others[2] = {&shorter, &my.t_tags};
  const moebius_tensor* holes[2] = {&my.t_x, NULL};
  const moebius_tensor* constants[2] = {&constant, &my.t_tags};
#define REFUSES(change)                                                                     \
  do {                                                                                      \
    moebius_dispatch_input bad = my.input;                                                  \
    change;                                                                                 \
    CHECK_INVALID(moebius_high_throughput_dispatch(transport, &bad, NULL, &untouched));     \
    CHECK_INVALID(moebius_high_throughput_dispatch_start(transport, &bad, NULL, &pending)); \
  } while (0)
  REFUSES(bad.payloads = NULL);
  REFUSES(bad.payloads = holes);
  REFUSES(bad.payloads = others);
  REFUSES(bad.num_payloads = -1);
  REFUSES(bad.topk_ids = NULL);
  REFUSES(bad.topk_ids = &my.t_x);
  REFUSES(bad.topk_weights = &my.t_ids);
  REFUSES(bad.expert_alignment = -1);
  REFUSES(bad.layout = (moebius_result)transport);
  REFUSES(bad.previous_cuda_event = &my);
  REFUSES(bad.lists_counts = 2);
  REFUSES(bad.expert_counts_into = (int64_t*)&my); /* without lists_counts */
  REFUSES(bad.payloads_into = constants);
#undef REFUSES
  moebius_dispatch_input bad = my.input;
  bad.is_async = 2;
  CHECK_INVALID(moebius_high_throughput_dispatch(transport, &bad, NULL, &untouched));
  bad = my.input;
  bad.capacity = 100; /* GPUs only */
  CHECK_FAILS(MOEBIUS_UNSUPPORTED,
              moebius_high_throughput_dispatch(transport, &bad, NULL, &untouched));
  my.ids[4] = E;
  CHECK_INVALID(moebius_high_throughput_dispatch(transport, &my.input, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_layout(transport, &ids, NULL, &untouched));
  my.ids[4] = 0;
  CHECK(untouched == UNTOUCHED && pending == UNTOUCHED);

  CHECK_STRUCT_SIZES(moebius_layout_input, ids,
                     (moebius_result_destroy(result), result = NULL,
                      moebius_high_throughput_layout(transport, given, NULL, &result)));
  const moebius_dispatch_input input = my.input;
  CHECK_STRUCT_SIZES(moebius_dispatch_input, input,
                     (moebius_result_destroy(result), result = NULL,
                      moebius_high_throughput_dispatch(transport, given, NULL, &result)));
  moebius_tensor x;
  const moebius_array array = array_of(result, "payload", 0, &x);
  const moebius_combine_input combine = {.struct_size = sizeof(combine), .x = &x};
  float weights[T * K] = {0};
  const moebius_tensor sums = matrix_of(weights, MOEBIUS_F32, T, K);
  moebius_combine_input wrong = combine;
  CHECK_INVALID(moebius_high_throughput_combine(transport, NULL, result, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_combine(transport, &combine, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_combine(transport, &combine, result, NULL, NULL));
  CHECK_INVALID(moebius_high_throughput_combine_start(transport, NULL, result, NULL, &pending));
  CHECK_INVALID(moebius_high_throughput_combine_start(transport, &combine, NULL, NULL, &pending));
  CHECK_INVALID(moebius_high_throughput_combine_start(transport, &combine, result, NULL, NULL));
  wrong.x = &shorter;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong.x = NULL;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong = combine;
  wrong.x_into = &constant;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong.x_into = &shorter;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  static float wide[T * 2 * H];
  const moebius_tensor wider = matrix_of(wide, MOEBIUS_F32, T, 2 * H);
  wrong.x_into = &wider;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong.x_into = &x; /* its rows are read while sums are written */
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong = combine;
  wrong.topk_weights = wrong.topk_weights_into = &sums;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong = combine;
  wrong.bias[1] = &shorter;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  static float room[(T + 1) * H];
  const moebius_tensor bias = matrix_of(room, MOEBIUS_F32, T, H);
  const moebius_tensor partly = matrix_of(room + H, MOEBIUS_F32, T, H);
  moebius_result combined = NULL;
  wrong = combine;
  wrong.bias[0] = &bias;
  wrong.x_into = &partly;
  CHECK_INVALID(moebius_high_throughput_combine(transport, &wrong, result, NULL, &untouched));
  wrong.x_into = &bias; /* each of its elements is read before it is written */
  CHECK_OK(moebius_high_throughput_combine(transport, &wrong, result, NULL, &combined));
  CHECK_OK(moebius_result_destroy(combined));
  combined = NULL;
  CHECK_STRUCT_SIZES(moebius_combine_input, combine,
                     (moebius_result_destroy(combined), combined = NULL,
                      moebius_high_throughput_combine(transport, given, result, NULL, &combined)));
  CHECK_INVALID(moebius_high_throughput_combine(transport, &combine, combined, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_dispatch_cached(transport, NULL, result, NULL, &untouched));
  CHECK_INVALID(
      moebius_high_throughput_dispatch_cached(transport, &my.input, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_dispatch_cached(transport, &my.input, result, NULL, NULL));
  CHECK_OK(moebius_result_destroy(combined));
  CHECK(untouched == UNTOUCHED && pending == UNTOUCHED);

  CHECK_BAD_HANDLES(moebius_group, other, moebius_transports_create(handle, &transports));
  CHECK_BAD_HANDLES(moebius_transports, other, moebius_transports_bytes(handle, &bytes));
  CHECK_BAD_HANDLES(moebius_transports, other, moebius_transports_reserve_low_latency(handle, 0));
  CHECK_BAD_OPTIONAL(moebius_transports, other, moebius_transports_destroy(handle));
  CHECK_BAD_HANDLES(moebius_group, other, moebius_high_throughput_create(handle, &good, &nothing));
#define T_HANDLES(call) CHECK_BAD_HANDLES(moebius_high_throughput, other, call)
  T_HANDLES(moebius_high_throughput_layout(handle, &ids, NULL, &untouched));
  T_HANDLES(moebius_high_throughput_dispatch(handle, &my.input, NULL, &untouched));
  T_HANDLES(moebius_high_throughput_dispatch_start(handle, &my.input, NULL, &pending));
  T_HANDLES(moebius_high_throughput_dispatch_cached(handle, &my.input, result, NULL, &untouched));
  T_HANDLES(moebius_high_throughput_expert_order(handle, result, 1, NULL, &untouched));
  T_HANDLES(moebius_high_throughput_combine(handle, &combine, result, NULL, &untouched));
  T_HANDLES(moebius_high_throughput_combine_start(handle, &combine, result, NULL, &pending));
  T_HANDLES(moebius_high_throughput_set_sms(handle, 2, 2));
  T_HANDLES(moebius_high_throughput_bytes(handle, &bytes));
  T_HANDLES(moebius_high_throughput_statistics(handle, &statistics));
  T_HANDLES(moebius_high_throughput_trim(handle));
#undef T_HANDLES
  CHECK_INVALID(moebius_high_throughput_bytes(transport, NULL));
  CHECK_BAD_HANDLES(moebius_result, transport, moebius_result_wait(handle, NULL));
  CHECK_BAD_HANDLES(moebius_result, transport, moebius_result_event(handle, &event));
  moebius_array no_array = UNTOUCHED;
  CHECK_BAD_HANDLES(moebius_result, other, moebius_result_array(handle, "x", 0, &no_array));
  void* managed = NULL;
  const char* const payload = "payload";
  const int32_t first = 0;
  const moebius_dlpack_arrays arrays = {.struct_size = sizeof(arrays),
                                        .num_arrays = 1,
                                        .names = &payload,
                                        .indices = &first,
                                        .managed = &managed};
  CHECK_STRUCT_SIZES(moebius_dlpack_arrays, arrays,
                     (drop_managed(&managed), moebius_result_dlpack(result, given)));
  drop_managed(&managed);
  CHECK_BAD_HANDLES(moebius_result, other, dlpack_of(handle, "x", 0, &managed));
  CHECK_BAD_HANDLES(moebius_pending, result, moebius_pending_hook(handle));
  CHECK_BAD_HANDLES(moebius_pending, result, moebius_pending_finish(handle, &untouched));
  CHECK_BAD_HANDLES(moebius_pending, result, moebius_pending_take(handle, &untouched));
  CHECK_BAD_OPTIONAL(moebius_pending, result, moebius_pending_destroy(handle));
  CHECK_BAD_OPTIONAL(moebius_result, transport, moebius_result_destroy(handle));
  CHECK_BAD_OPTIONAL(moebius_high_throughput, result, moebius_high_throughput_destroy(handle));
  CHECK_OK(moebius_high_throughput_dispatch_start(transport, &my.input, NULL, &pending));
  CHECK_INVALID(moebius_pending_finish(pending, NULL));
  CHECK_OK(moebius_pending_finish(pending, &combined));
  CHECK_INVALID(moebius_pending_take(pending, &untouched)); /* the handle ends all the same */
  CHECK_INVALID(moebius_pending_take(pending, NULL));
  CHECK_INVALID(moebius_pending_destroy(pending));
  CHECK_OK(moebius_result_destroy(combined));
  CHECK_OK(moebius_array_destroy(array));
  CHECK_OK(moebius_result_destroy(result));
  CHECK_OK(moebius_high_throughput_destroy(transport));
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK_OK(moebius_group_destroy(group));
  CHECK_OK(moebius_group_destroy(stranger));
  CHECK_OK(moebius_workspaces_destroy(other));
}
