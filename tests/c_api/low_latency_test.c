/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine for low latency over 4 rank threads, against the definition. */
#include "tests/c_api/check.h"

enum { R = 4, T = 5, H = 128, E = 8, L = E / R, K = 2, ROOM = 6, ROWS = ROOM * R };

static int id_of(int rank, int token, int k) {
  return pick((uint32_t)((rank * T + token) * K + k), E + 1) - 1;
}
static float value_of(int rank, int token, int h) {
  return (float)(100 * rank + token) + (float)h / 128;
}

typedef struct tokens {
  float x[T * H], weights[T * K], output[T * H];
  int32_t ids[T * K], tags[T], received[L];
  int64_t wait_us[R];
  moebius_tensor t_x, t_weights, t_ids, t_tags, t_received, t_wait_us, t_output;
  moebius_low_latency_dispatch_input input;
  moebius_low_latency_combine_input combine;
} tokens;

static void make_tokens(tokens* my, int rank) {
  memset(my, 0, sizeof(*my));
  for (int t = 0; t < T; ++t) {
    my->tags[t] = 1000 * rank + t;
    for (int h = 0; h < H; ++h) {
      my->x[t * H + h] = value_of(rank, t, h);
    }
    for (int k = 0; k < K; ++k) {
      my->ids[t * K + k] = id_of(rank, t, k);
      my->weights[t * K + k] = (float)(1 + k);
    }
  }
  my->t_x = matrix_of(my->x, MOEBIUS_F32, T, H);
  my->t_weights = matrix_of(my->weights, MOEBIUS_F32, T, K);
  my->t_ids = matrix_of(my->ids, MOEBIUS_I32, T, K);
  my->t_tags = vector_of(my->tags, MOEBIUS_I32, T);
  my->t_received = vector_of(my->received, MOEBIUS_I32, L);
  my->t_wait_us = vector_of(my->wait_us, MOEBIUS_I64, R);
  my->t_output = matrix_of(my->output, MOEBIUS_F32, T, H);
  my->input = (moebius_low_latency_dispatch_input){.struct_size = sizeof(my->input),
                                                   .x = &my->t_x,
                                                   .topk_ids = &my->t_ids,
                                                   .row_tags = &my->t_tags,
                                                   .received = &my->t_received,
                                                   .wait_us = &my->t_wait_us};
  my->combine = (moebius_low_latency_combine_input){.struct_size = sizeof(my->combine),
                                                    .topk_ids = &my->t_ids,
                                                    .topk_weights = &my->t_weights,
                                                    .x_into = &my->t_output};
}

/* Rows of an expert come in order of (source rank, source token).  `lost` is an excluded rank. */
static void check_rows(moebius_result result, int rank, int lost) {
  moebius_tensor x, counts, tags, source_token, ranges;
  const moebius_array arrays[] = {
      array_of(result, "x", 0, &x), array_of(result, "expert_num_tokens", 0, &counts),
      array_of(result, "row_tags", 0, &tags), array_of(result, "source_token", 0, &source_token),
      array_of(result, "source_ranges", 0, &ranges)};
  for (int e = 0; e < L; ++e) {
    int row = 0;
    for (int from = 0; from < R; ++from) {
      const int begin = row;
      for (int t = 0; t < T; ++t) {
        for (int k = 0; k < K; ++k) {
          if (from == lost || id_of(from, t, k) != rank * L + e) {
            continue;
          }
          const int at = e * ROWS + row;
          CHECK_EQ(((int32_t*)tags.data)[at], 1000 * from + t);
          CHECK_EQ(((int32_t*)source_token.data)[at], t);
          for (int h = 0; h < H; ++h) {
            CHECK(((float*)x.data)[(int64_t)at * H + h] == value_of(from, t, h));
          }
          ++row;
        }
      }
      if (from != lost) {
        CHECK_EQ(((int64_t*)ranges.data)[e * R + from], (int64_t)begin << 32 | (row - begin));
      }
    }
    CHECK_EQ(((int32_t*)counts.data)[e], row);
  }
  for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); ++i) {
    CHECK_OK(moebius_array_destroy(arrays[i]));
  }
  moebius_array none = UNTOUCHED;
  CHECK_OK(moebius_result_array(result, "x_scale", 0, &none)); /* without a cast */
  CHECK(none == NULL);
}

/* The experts' work is to double; each token becomes twice the sum of its weights times itself. */
static void check_combined(const tokens* my, int rank, int lost) {
  for (int t = 0; t < T; ++t) {
    float sum = 0;
    for (int k = 0; k < K; ++k) {
      const int id = id_of(rank, t, k);
      sum += id >= 0 && id / L != lost ? (float)(1 + k) : 0;
    }
    for (int h = 0; h < H; ++h) {
      CHECK_NEAR(my->output[t * H + h], 2 * sum * value_of(rank, t, h), 1e-2);
    }
  }
}

static void run_experts(moebius_result dispatched, moebius_tensor* combine_x) {
  moebius_tensor x;
  const moebius_array in = array_of(dispatched, "x", 0, &x);
  const moebius_array out = array_of(dispatched, "combine_buffer", 0, combine_x);
  CHECK_EQ(combine_x->shape[1], ROWS);
  for (int64_t i = 0; i < (int64_t)L * ROWS * H; ++i) {
    ((float*)combine_x->data)[i] = 2 * ((float*)x.data)[i];
  }
  CHECK_OK(moebius_array_destroy(in));
  CHECK_OK(moebius_array_destroy(out)); /* the result keeps the memory */
}

static void check_calls(moebius_low_latency transport, int rank) {
  static tokens all_tokens[R];
  tokens* const my = &all_tokens[rank];
  moebius_result first = NULL, second = NULL, combined = NULL, untouched = UNTOUCHED;
  moebius_pending pending = NULL;
  moebius_tensor x;
  make_tokens(my, rank);
  CHECK_OK(moebius_low_latency_dispatch(transport, &my->input, NULL, &first));
  check_rows(first, rank, -1);
  int expected[L] = {0};
  for (int i = 0; i < R * T * K; ++i) {
    const int id = id_of(i / (T * K), i / K % T, i % K);
    if (id >= 0 && id / L == rank) {
      ++expected[id % L];
    }
  }
  for (int e = 0; e < L; ++e) {
    CHECK_EQ(my->received[e], expected[e]);
  }
  CHECK_OK(moebius_low_latency_dispatch_start(transport, &my->input, NULL, &pending));
  CHECK_OK(moebius_pending_hook(pending));
  CHECK_OK(moebius_pending_finish(pending, &second));
  CHECK_OK(moebius_pending_destroy(pending));
  check_rows(second, rank, -1);
  /* Two results live at most. */
  CHECK_INVALID(moebius_low_latency_dispatch(transport, &my->input, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);

  run_experts(first, &x);
  my->combine.x = &x;
  CHECK_OK(moebius_low_latency_combine(transport, &my->combine, first, NULL, &combined));
  check_combined(my, rank, -1);
  CHECK_OK(moebius_result_destroy(combined));
  CHECK_OK(moebius_result_destroy(first));
  memset(my->output, 0, sizeof(my->output));
  run_experts(second, &x);
  CHECK_OK(moebius_low_latency_combine_start(transport, &my->combine, second, NULL, &pending));
  CHECK_OK(moebius_pending_take(pending, &combined));
  CHECK_INVALID(moebius_pending_destroy(pending));
  check_combined(my, rank, -1);
  moebius_tensor view;
  CHECK_OK(moebius_array_destroy(array_of(combined, "x", 0, &view)));
  CHECK(view.data == my->output);
  CHECK_OK(moebius_result_destroy(combined));
  CHECK_OK(moebius_result_destroy(second));

  /* fp8 with scales per 128: within a 16th. */
  my->input.cast = MOEBIUS_CAST_FP8;
  my->input.scales = MOEBIUS_SCALES_COLUMNS;
  moebius_tensor scale;
  CHECK_OK(moebius_low_latency_dispatch(transport, &my->input, NULL, &first));
  CHECK_OK(moebius_array_destroy(array_of(first, "x", 0, &view)));
  CHECK_OK(moebius_array_destroy(array_of(first, "x_scale", 0, &scale)));
  CHECK_EQ(view.dtype, MOEBIUS_F8E4M3);
  CHECK_EQ(scale.shape[0], L);
  CHECK_EQ(scale.shape[1], 1);
  CHECK_EQ(scale.shape[2], ROWS);
  CHECK_OK(moebius_result_destroy(first));
}

static void check_figures(moebius_low_latency transport, int rank) {
  moebius_transport_statistics statistics = {.struct_size = sizeof(statistics)};
  int64_t bytes = 0, selections = 0;
  int32_t dead[R] = {9, 9, 9, 9};
  CHECK_OK(moebius_low_latency_bytes(transport, &bytes));
  CHECK(bytes > 0);
  CHECK_OK(moebius_low_latency_statistics(transport, &statistics));
  for (int i = 0; i < T * K; ++i) {
    selections += id_of(rank, i / K, i % K) >= 0;
  }
  CHECK_EQ(statistics.selections, 3 * selections);
  CHECK_FILLED_STRUCT(moebius_transport_statistics,
                      moebius_low_latency_statistics(transport, given));
  CHECK_OK(moebius_low_latency_check(transport));
  CHECK_OK(moebius_low_latency_dead_ranks(transport, dead));
  for (int r = 0; r < R; ++r) {
    CHECK_EQ(dead[r], 0);
  }
}

/* Rank 3 is excluded by the others, and goes. */
static void check_exclusion(moebius_low_latency transport, int rank) {
  static tokens all_tokens[R];
  tokens* const my = &all_tokens[rank];
  moebius_result dispatched = NULL;
  moebius_pending pending = NULL;
  moebius_tensor x;
  int32_t dead[R] = {0};
  make_tokens(my, rank);
  CHECK_OK(moebius_low_latency_set_dead(transport, 3, 1));
  CHECK_OK(moebius_low_latency_dead_ranks(transport, dead));
  CHECK_EQ(dead[0] + dead[1] + dead[2], 0);
  CHECK_EQ(dead[3], 1);
  CHECK_OK(moebius_low_latency_dispatch(transport, &my->input, NULL, &dispatched));
  check_rows(dispatched, rank, 3);
  run_experts(dispatched, &x);
  my->combine.x = &x;
  CHECK_OK(moebius_low_latency_combine(transport, &my->combine, dispatched, NULL, NULL));
  check_combined(my, rank, 3);
  CHECK_OK(moebius_result_destroy(dispatched));
  memset(my->output, 0, sizeof(my->output));
  CHECK_OK(moebius_low_latency_dispatch(transport, &my->input, NULL, &dispatched));
  run_experts(dispatched, &x);
  CHECK_OK(moebius_low_latency_combine_start(transport, &my->combine, dispatched, NULL, &pending));
  CHECK_OK(moebius_pending_take(pending, NULL)); /* the sums are in memory of the caller's */
  CHECK_INVALID(moebius_pending_destroy(pending));
  check_combined(my, rank, 3);
  CHECK_OK(moebius_result_destroy(dispatched));
  CHECK_INVALID(moebius_low_latency_set_dead(transport, rank, 1));
  CHECK_INVALID(moebius_low_latency_set_dead(transport, R, 1));
  CHECK_INVALID(moebius_low_latency_set_dead(transport, -1, 1));
  CHECK_INVALID(moebius_low_latency_set_dead(transport, 3, 5));
}

static moebius_low_latency_options options_of(void) {
  return (moebius_low_latency_options){.struct_size = sizeof(moebius_low_latency_options),
                                       .num_experts = E,
                                       .max_tokens = ROOM,
                                       .hidden = H,
                                       .topk = K,
                                       .in_dtype = MOEBIUS_F32};
}

static void ranks(moebius_group* group, int rank, void* user) {
  moebius_low_latency transport = NULL, shared = NULL;
  moebius_transports transports = NULL;
  moebius_low_latency_options options = options_of();
  (void)user;
  CHECK_OK(moebius_low_latency_create(*group, &options, &transport));
  check_calls(transport, rank);
  check_figures(transport, rank);
  CHECK_OK(moebius_transports_create(*group, &transports));
  options.transports = transports;
  options.sums_per_rank = 1;
  CHECK_OK(moebius_low_latency_create(*group, &options, &shared));
  check_calls(shared, rank);
  CHECK_OK(moebius_low_latency_destroy(shared));
  CHECK_OK(moebius_transports_destroy(transports));
  if (rank != 3) {
    check_exclusion(transport, rank);
  }
  CHECK_OK(moebius_low_latency_destroy(transport));
}

static void check_misuse(void) {
  static tokens my;
  const moebius_device cpu = {MOEBIUS_CPU, 0};
  moebius_group group = NULL;
  moebius_low_latency transport = NULL, other_transport = NULL, nothing = UNTOUCHED;
  const moebius_low_latency_options good = options_of();
  moebius_workspaces other = NULL;
  moebius_result result = NULL, untouched = UNTOUCHED, foreign = NULL;
  moebius_pending pending = UNTOUCHED;
  moebius_transport_statistics statistics = {.struct_size = sizeof(statistics)};
  int64_t bytes = 77;
  int32_t dead[R] = {0};
  CHECK_OK(moebius_workspaces_create(&other));
  CHECK_OK(moebius_make_thread_groups(1, NULL, &group));
  make_tokens(&my, 0);
  my.input.received = NULL; /* a rank alone has all experts */
  my.input.wait_us = NULL;
  CHECK_INVALID(moebius_low_latency_create(group, NULL, &nothing));
  CHECK_INVALID(moebius_low_latency_create(group, &good, NULL));
  CHECK_INVALID(moebius_low_latency_size_hint(NULL, R, cpu, &bytes));
  CHECK_INVALID(moebius_low_latency_size_hint(&good, 0, cpu, &bytes));
  CHECK_INVALID(moebius_low_latency_size_hint(&good, -1, cpu, &bytes));
  CHECK_INVALID(moebius_low_latency_size_hint(&good, INT32_MAX, cpu, &bytes));
  CHECK_INVALID(moebius_low_latency_size_hint(&good, R, cpu, NULL));
#define REFUSES(change)                                                 \
  do {                                                                  \
    moebius_low_latency_options bad = good;                             \
    change;                                                             \
    CHECK_INVALID(moebius_low_latency_create(group, &bad, &nothing));   \
    CHECK_INVALID(moebius_low_latency_size_hint(&bad, R, cpu, &bytes)); \
  } while (0)
  REFUSES(bad.num_experts = 0);
  REFUSES(bad.num_experts = -1);
  REFUSES(bad.max_tokens = -1);
  REFUSES(bad.max_tokens = INT64_C(1) << 62);
  REFUSES(bad.hidden = 0);
  REFUSES(bad.hidden = -5);
  REFUSES(bad.hidden = INT64_MAX);
  REFUSES(bad.topk = 0);
  REFUSES(bad.topk = -2);
  REFUSES(bad.topk = INT64_C(1) << 58);
  REFUSES(bad.in_dtype = MOEBIUS_I32);
  REFUSES(bad.in_dtype = 99);
  REFUSES(bad.sums_per_rank = 2);
  REFUSES(bad.excludes_missing = -1);
  REFUSES(bad.num_sms = -1);
  REFUSES(bad.struct_size = 8);
#undef REFUSES
  CHECK(nothing == UNTOUCHED);
  CHECK_EQ(bytes, 77);
  CHECK_OK(moebius_low_latency_size_hint(&good, R, cpu, &bytes));
  CHECK(bytes > (int64_t)R * ROOM * H * 4);
  CHECK_STRUCT_SIZES(moebius_low_latency_options, good,
                     moebius_low_latency_size_hint(given, R, cpu, &bytes));
  CHECK_STRUCT_SIZES(moebius_low_latency_options, good,
                     (moebius_low_latency_destroy(transport), transport = NULL,
                      moebius_low_latency_create(group, given, &transport)));
  CHECK_OK(moebius_low_latency_create(group, &good, &other_transport));

  const moebius_tensor shorter = matrix_of(my.x, MOEBIUS_F32, T - 1, H);
  int32_t received[E] = {0};
  const moebius_tensor constant = read_only(vector_of(received, MOEBIUS_I32, E));
  const moebius_tensor bf16 = matrix_of(my.x, MOEBIUS_BF16, T, H);
  CHECK_INVALID(moebius_low_latency_dispatch(transport, NULL, NULL, &untouched));
  CHECK_INVALID(moebius_low_latency_dispatch(transport, &my.input, NULL, NULL));
  CHECK_INVALID(moebius_low_latency_dispatch_start(transport, &my.input, NULL, NULL));
#define REFUSES(change)                                                                 \
  do {                                                                                  \
    moebius_low_latency_dispatch_input bad = my.input;                                  \
    change;                                                                             \
    CHECK_INVALID(moebius_low_latency_dispatch(transport, &bad, NULL, &untouched));     \
    CHECK_INVALID(moebius_low_latency_dispatch_start(transport, &bad, NULL, &pending)); \
  } while (0)
  REFUSES(bad.x = NULL);
  REFUSES(bad.topk_ids = NULL);
  REFUSES(bad.x = &shorter);
  REFUSES(bad.cast = 3);
  REFUSES(bad.cast = -1);
  REFUSES(bad.scales = 3);
  REFUSES(bad.max_tokens = -1);
  REFUSES(bad.max_tokens = ROOM + 1);
  REFUSES(bad.max_tokens = T - 1);
  REFUSES(bad.row_tags = &my.t_received);
  REFUSES(bad.received = &constant);
  REFUSES(bad.wait_us = &my.t_tags);
  REFUSES(bad.previous_cuda_event = &my);
  REFUSES(bad.records_event = 3);
  REFUSES(bad.x_into = &my.t_x);
#undef REFUSES
  my.ids[2] = E;
  CHECK_INVALID(moebius_low_latency_dispatch(transport, &my.input, NULL, &untouched));
  my.ids[2] = 0;
  CHECK(untouched == UNTOUCHED && pending == UNTOUCHED);
  const moebius_low_latency_dispatch_input input = my.input;
  CHECK_STRUCT_SIZES(moebius_low_latency_dispatch_input, input,
                     (moebius_result_destroy(result), result = NULL,
                      moebius_low_latency_dispatch(transport, given, NULL, &result)));
  moebius_tensor x;
  CHECK_OK(moebius_array_destroy(array_of(result, "combine_buffer", 0, &x)));
  memset(x.data, 0, (size_t)(E * ROOM * H) * sizeof(float));
  my.combine.x = &x;
  CHECK_OK(moebius_low_latency_dispatch(other_transport, &my.input, NULL, &foreign));
  CHECK_INVALID(moebius_low_latency_combine(transport, &my.combine, foreign, NULL, &untouched));
  CHECK_INVALID(moebius_low_latency_combine(transport, NULL, result, NULL, &untouched));
  CHECK_INVALID(moebius_low_latency_combine(transport, &my.combine, NULL, NULL, &untouched));
  moebius_low_latency_combine_input nowhere = my.combine;
  nowhere.x_into = NULL;
  CHECK_INVALID(moebius_low_latency_combine(transport, &nowhere, result, NULL, NULL));
  nowhere = my.combine;
  nowhere.records_event = 1;
  CHECK_INVALID(moebius_low_latency_combine(transport, &nowhere, result, NULL, NULL));
  CHECK_INVALID(moebius_low_latency_combine_start(transport, &my.combine, result, NULL, NULL));
#define REFUSES(change)                                                                        \
  do {                                                                                         \
    moebius_low_latency_combine_input bad = my.combine;                                        \
    change;                                                                                    \
    CHECK_INVALID(moebius_low_latency_combine(transport, &bad, result, NULL, &untouched));     \
    CHECK_INVALID(moebius_low_latency_combine_start(transport, &bad, result, NULL, &pending)); \
  } while (0)
  REFUSES(bad.x = NULL);
  REFUSES(bad.topk_ids = NULL);
  REFUSES(bad.topk_weights = NULL);
  REFUSES(bad.x = &my.t_x);
  REFUSES(bad.coding = 2);
  REFUSES(bad.coding = -1);
  REFUSES(bad.x_into = &shorter);
  REFUSES(bad.x_into = &bf16);
  REFUSES(bad.wait_us = &my.t_tags);
#undef REFUSES
  const moebius_low_latency_combine_input combine = my.combine;
  moebius_result combined = NULL;
  CHECK_STRUCT_SIZES(moebius_low_latency_combine_input, combine,
                     (moebius_result_destroy(combined), combined = NULL,
                      moebius_low_latency_combine(transport, given, result, NULL, &combined)));
  CHECK_INVALID(moebius_low_latency_combine(transport, &combine, combined, NULL, &untouched));
  CHECK(untouched == UNTOUCHED && pending == UNTOUCHED);
#define T_HANDLES(call) CHECK_BAD_HANDLES(moebius_low_latency, other, call)
  T_HANDLES(moebius_low_latency_dispatch(handle, &input, NULL, &untouched));
  T_HANDLES(moebius_low_latency_dispatch_start(handle, &input, NULL, &pending));
  T_HANDLES(moebius_low_latency_combine(handle, &combine, result, NULL, &untouched));
  T_HANDLES(moebius_low_latency_combine_start(handle, &combine, result, NULL, &pending));
  T_HANDLES(moebius_low_latency_set_dead(handle, 0, 1));
  T_HANDLES(moebius_low_latency_dead_ranks(handle, dead));
  T_HANDLES(moebius_low_latency_check(handle));
  T_HANDLES(moebius_low_latency_bytes(handle, &bytes));
  T_HANDLES(moebius_low_latency_statistics(handle, &statistics));
#undef T_HANDLES
  CHECK_BAD_HANDLES(moebius_group, other, moebius_low_latency_create(handle, &good, &nothing));
  CHECK_BAD_OPTIONAL(moebius_low_latency, other, moebius_low_latency_destroy(handle));
  CHECK_INVALID(moebius_low_latency_dead_ranks(transport, NULL));
  CHECK_INVALID(moebius_low_latency_bytes(transport, NULL));
  CHECK_OK(moebius_result_destroy(combined));
  CHECK_OK(moebius_result_destroy(foreign));
  CHECK_OK(moebius_result_destroy(result));
  CHECK_OK(moebius_low_latency_destroy(transport));
  CHECK_OK(moebius_low_latency_destroy(other_transport));
  CHECK_OK(moebius_group_destroy(group));
  CHECK_OK(moebius_workspaces_destroy(other));
}

void test_low_latency(void) {
  run_ranks(R, NULL, ranks, NULL);
  check_misuse();
}
