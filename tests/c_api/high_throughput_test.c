/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine for high throughput over 4 rank threads, against the definition. */
#include "tests/c_api/tokens.h"

static const int32_t* ints(const moebius_tensor* tensor) {
  return tensor->data;
}

/* The counts in memory of the caller's are the same, and nothing has to be destroyed. */
static void check_layout_into(moebius_high_throughput transport,
                              const tokens* my,
                              const moebius_tensor* per_rank,
                              const moebius_tensor* per_node,
                              const moebius_tensor* per_expert,
                              const moebius_tensor* is_in) {
  int32_t ranks_[R], nodes[1], experts[E];
  uint8_t in[T * R];
  memset(in, 0xff, sizeof(in));
  const moebius_tensor t_ranks = vector_of(ranks_, MOEBIUS_I32, R);
  const moebius_tensor t_nodes = vector_of(nodes, MOEBIUS_I32, 1);
  const moebius_tensor t_experts = vector_of(experts, MOEBIUS_I32, E);
  const moebius_tensor t_in = matrix_of(in, MOEBIUS_BOOL, T, R);
  moebius_layout_input given = {.struct_size = sizeof(given),
                                .topk_ids = &my->t_ids,
                                .tokens_per_rank_into = &t_ranks,
                                .tokens_per_expert_into = &t_experts,
                                .is_token_in_rank_into = &t_in};
  CHECK_OK(moebius_high_throughput_layout(transport, &given, NULL, NULL));
  CHECK_EQ(memcmp(ranks_, per_rank->data, sizeof(ranks_)), 0);
  CHECK_EQ(memcmp(experts, per_expert->data, sizeof(experts)), 0);
  CHECK_EQ(memcmp(in, is_in->data, sizeof(in)), 0);
  given.tokens_per_node_into = &t_nodes;
  CHECK_OK(moebius_high_throughput_layout(transport, &given, NULL, NULL));
  CHECK_EQ(nodes[0], ints(per_node)[0]);
  /* What has no memory of the caller's is in the result. */
  moebius_result layout = NULL;
  moebius_tensor found;
  given.tokens_per_expert_into = NULL;
  CHECK_INVALID(moebius_high_throughput_layout(transport, &given, NULL, NULL));
  CHECK_OK(moebius_high_throughput_layout(transport, &given, NULL, &layout));
  moebius_array array = array_of(layout, "tokens_per_expert", 0, &found);
  CHECK_EQ(memcmp(found.data, experts, sizeof(experts)), 0);
  CHECK_OK(moebius_array_destroy(array));
  array = array_of(layout, "tokens_per_rank", 0, &found);
  CHECK(found.data == ranks_);
  CHECK_OK(moebius_array_destroy(array));
  CHECK_OK(moebius_result_destroy(layout));
  moebius_result untouched = UNTOUCHED;
  given.tokens_per_expert_into = &t_ranks; /* too short */
  CHECK_INVALID(moebius_high_throughput_layout(transport, &given, NULL, &untouched));
  const moebius_tensor constant = read_only(t_experts);
  given.tokens_per_expert_into = &constant;
  CHECK_INVALID(moebius_high_throughput_layout(transport, &given, NULL, &untouched));
  given.tokens_per_expert_into = &t_experts;
  given.is_token_in_rank_into = &my->t_ids; /* of another type */
  CHECK_INVALID(moebius_high_throughput_layout(transport, &given, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);
}

static void check_layout(moebius_high_throughput transport, const tokens* my, int rank) {
  moebius_result layout = NULL;
  moebius_tensor per_rank, per_node, per_expert, is_in;
  moebius_layout_input given = {.struct_size = sizeof(given), .topk_ids = &my->t_ids};
  CHECK_OK(moebius_high_throughput_layout(transport, &given, NULL, &layout));
  const moebius_array arrays[] = {array_of(layout, "tokens_per_rank", 0, &per_rank),
                                  array_of(layout, "tokens_per_node", 0, &per_node),
                                  array_of(layout, "tokens_per_expert", 0, &per_expert),
                                  array_of(layout, "is_token_in_rank", 0, &is_in)};
  int expected_experts[E] = {0};
  for (int t = 0; t < T; ++t) {
    for (int k = 0; k < K; ++k) {
      if (id_of(rank, t, k) >= 0) {
        ++expected_experts[id_of(rank, t, k)];
      }
    }
  }
  CHECK_EQ(memcmp(per_expert.data, expected_experts, sizeof(expected_experts)), 0);
  for (int to = 0; to < R; ++to) {
    int expected = 0;
    for (int t = 0; t < T; ++t) {
      CHECK_EQ(((const uint8_t*)is_in.data)[t * R + to], goes_to(rank, t, to));
      expected += goes_to(rank, t, to);
    }
    CHECK_EQ(ints(&per_rank)[to], expected);
  }
  CHECK_EQ(per_node.shape[0], 1);
  check_layout_into(transport, my, &per_rank, &per_node, &per_expert, &is_in);
  /* A dispatch may be given the layout. */
  moebius_dispatch_input input = my->input;
  moebius_result result = NULL;
  input.layout = layout;
  const char* const names[] = {"expert_counts", "num_rows"};
  const int32_t indices[] = {0, 0};
  void* managed[] = {UNTOUCHED, UNTOUCHED};
  const moebius_dlpack_arrays wanted = arrays_of(2, names, indices, managed);
  input.arrays = &wanted; /* and give arrays at once */
  int64_t counts_into[L];
  input.lists_counts = 1;
  input.expert_counts_into = counts_into;
  CHECK_OK(moebius_high_throughput_dispatch(transport, &input, NULL, &result));
  moebius_tensor counts;
  moebius_array array = array_of(result, "expert_counts", 0, &counts), taken = NULL;
  moebius_tensor view = {.struct_size = sizeof(view)};
  CHECK_OK(moebius_array_from_dlpack(managed[0], 0, -1, &taken));
  CHECK_OK(moebius_array_view(taken, &view));
  CHECK_EQ(memcmp(view.data, counts.data, L * sizeof(int64_t)), 0);
  CHECK_EQ(memcmp(counts_into, counts.data, L * sizeof(int64_t)), 0);
  CHECK(managed[1] == NULL); /* only with a capacity */
  CHECK_OK(moebius_array_destroy(array));
  CHECK_OK(moebius_array_destroy(taken));
  CHECK_OK(moebius_result_destroy(layout));
  CHECK_OK(moebius_result_destroy(result));
  CHECK_EQ(memcmp(per_expert.data, expected_experts, sizeof(expected_experts)), 0);
  for (int i = 0; i < 4; ++i) { /* arrays outlive their result */
    CHECK_OK(moebius_array_destroy(arrays[i]));
  }
}

/* Rows come in order of (source rank, source token); returns how many. */
static int check_rows(moebius_result result, int rank) {
  moebius_tensor x, tags, ids, weights, counts, host_counts, source_rank, source_token, prefix;
  const moebius_array arrays[] = {array_of(result, "payload", 0, &x),
                                  array_of(result, "payload", 1, &tags),
                                  array_of(result, "topk_ids", 0, &ids),
                                  array_of(result, "topk_weights", 0, &weights),
                                  array_of(result, "expert_num_tokens", 0, &counts),
                                  array_of(result, "expert_counts", 0, &host_counts),
                                  array_of(result, "source_rank", 0, &source_rank),
                                  array_of(result, "source_token", 0, &source_token),
                                  array_of(result, "rank_prefix", 0, &prefix)};
  int row = 0, expected_counts[L] = {0};
  for (int from = 0; from < R; ++from) {
    for (int t = 0; t < T; ++t) {
      if (!goes_to(from, t, rank)) {
        continue;
      }
      CHECK_EQ(ints(&source_rank)[row], from);
      CHECK_EQ(ints(&source_token)[row], t);
      CHECK_EQ(ints(&tags)[row], 1000 * from + t);
      for (int h = 0; h < H; ++h) {
        CHECK(((float*)x.data)[row * H + h] == value_of(from, t, h));
      }
      for (int k = 0; k < K; ++k) {
        const int id = id_of(from, t, k);
        const int is_here = id >= 0 && id / L == rank;
        CHECK_EQ(ints(&ids)[row * K + k], is_here ? id % L : -1);
        CHECK(((float*)weights.data)[row * K + k] == (is_here ? (float)(from + t + k) : 0));
        if (is_here) {
          ++expected_counts[id % L];
        }
      }
      ++row;
    }
    CHECK_EQ(ints(&prefix)[from * R + rank], row);
  }
  CHECK_EQ(x.shape[0], row);
  for (int e = 0; e < L; ++e) {
    CHECK_EQ(ints(&counts)[e], expected_counts[e]);
    CHECK_EQ(((int64_t*)host_counts.data)[e], expected_counts[e]);
  }
  for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); ++i) {
    CHECK_OK(moebius_array_destroy(arrays[i]));
  }
  moebius_array none = UNTOUCHED;
  CHECK_OK(moebius_result_array(result, "num_rows", 0, &none)); /* only with a capacity */
  CHECK(none == NULL);
  CHECK_OK(moebius_result_array(result, "teleport", 0, &none));
  CHECK(none == NULL);
  none = UNTOUCHED;
  CHECK_INVALID(moebius_result_array(result, "payload", 2, &none));
  CHECK_INVALID(moebius_result_array(result, "payload", -1, &none));
  CHECK_INVALID(moebius_result_array(result, NULL, 0, &none));
  CHECK_INVALID(moebius_result_array(result, "payload", 0, NULL));
  CHECK(none == UNTOUCHED);
  void* managed = UNTOUCHED;
  CHECK_OK(dlpack_of(result, "teleport", 0, &managed));
  CHECK(managed == NULL);
  CHECK_INVALID(dlpack_of(result, "payload", -1, &managed));
  CHECK_INVALID(dlpack_of(result, "payload", 0, NULL));
  const char* const names[] = {"teleport", "payload", "payload"};
  const int32_t indices[] = {0, 0, 2};
  void* several[] = {UNTOUCHED, UNTOUCHED, UNTOUCHED};
  const moebius_dlpack_arrays all = arrays_of(3, names, indices, several);
  CHECK_INVALID(moebius_result_dlpack(result, NULL));
  CHECK_INVALID(moebius_result_dlpack(result, &all)); /* there is no payload 2 */
  moebius_dlpack_arrays two = all;
  two.num_arrays = 0;
  CHECK_INVALID(moebius_result_dlpack(result, &two));
  two.num_arrays = 2;
  two.names = NULL;
  CHECK_INVALID(moebius_result_dlpack(result, &two));
  two.names = names;
  two.indices = NULL;
  CHECK_INVALID(moebius_result_dlpack(result, &two));
  two.indices = indices;
  two.user = UNTOUCHED;
  CHECK_INVALID(moebius_result_dlpack(result, &two));
  two.user = NULL;
  CHECK(several[0] == UNTOUCHED && several[1] == UNTOUCHED);
  CHECK_OK(moebius_result_dlpack(result, &two));
  CHECK(several[0] == NULL && several[1] != NULL && several[2] == UNTOUCHED);
  CHECK_OK(moebius_array_from_dlpack(several[1], 0, -1, &none));
  CHECK_OK(moebius_array_destroy(none));
  CHECK_OK(dlpack_of(result, "payload", 0, &managed));
  CHECK_OK(moebius_array_from_dlpack(managed, 0, -1, &none));
  moebius_tensor again = {.struct_size = sizeof(again)};
  CHECK_OK(moebius_array_view(none, &again));
  CHECK(again.data == x.data && again.shape[0] == x.shape[0]);
  CHECK_OK(moebius_array_destroy(none));
  void* event = UNTOUCHED;
  CHECK_OK(moebius_result_event(result, &event));
  CHECK(event == NULL);
  CHECK_INVALID(moebius_result_event(result, NULL));
  CHECK_OK(moebius_result_wait(result, NULL));
  CHECK_INVALID(moebius_result_wait(result, UNTOUCHED));
  return row;
}

/* Each copy brings its own row back, so the sum is as many times the token as ranks had it. */
static void check_combined(moebius_result result, int rank, float bias) {
  moebius_tensor x, weights;
  const moebius_array a = array_of(result, "x", 0, &x);
  const moebius_array b = array_of(result, "topk_weights", 0, &weights);
  for (int t = 0; t < T; ++t) {
    int copies = 0;
    for (int to = 0; to < R; ++to) {
      copies += goes_to(rank, t, to);
    }
    for (int h = 0; h < H; ++h) {
      CHECK(((float*)x.data)[t * H + h] == (float)copies * value_of(rank, t, h) + bias);
    }
    for (int k = 0; k < K; ++k) {
      CHECK(((float*)weights.data)[t * K + k] ==
            (id_of(rank, t, k) >= 0 ? (float)(rank + t + k) : 0));
    }
  }
  CHECK_OK(moebius_array_destroy(a));
  CHECK_OK(moebius_array_destroy(b));
}

/* Rows grouped by expert. */
static void check_order(moebius_high_throughput transport, moebius_result dispatched, int rank) {
  moebius_result order = NULL;
  moebius_tensor x, offsets, copy_row, slot, ids;
  CHECK_OK(moebius_high_throughput_expert_order(transport, dispatched, 4, NULL, &order));
  const moebius_array arrays[] = {
      array_of(order, "payload", 0, &x), array_of(order, "expert_offsets", 0, &offsets),
      array_of(order, "copy_row", 0, &copy_row), array_of(order, "slot", 0, &slot),
      array_of(dispatched, "topk_ids", 0, &ids)};
  CHECK_EQ(ints(&offsets)[0], 0);
  CHECK_EQ(ints(&offsets)[L], x.shape[0]);
  for (int e = 0; e < L; ++e) {
    int last = -1;
    CHECK_EQ(ints(&offsets)[e] % 4, 0);
    for (int row = ints(&offsets)[e]; row < ints(&offsets)[e + 1]; ++row) {
      const int copy = ints(&copy_row)[row];
      if (copy >= 0) {
        CHECK_EQ(ints(&ids)[copy * K + ints(&slot)[row]], e);
        CHECK(copy >= last);
        last = copy;
      } else {
        CHECK(((float*)x.data)[row * H] == 0);
      }
    }
  }
  for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); ++i) {
    CHECK_OK(moebius_array_destroy(arrays[i]));
  }
  moebius_result untouched = UNTOUCHED;
  CHECK_INVALID(moebius_high_throughput_expert_order(transport, dispatched, 0, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_expert_order(transport, dispatched, -4, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_expert_order(transport, order, 1, NULL, &untouched));
  CHECK_INVALID(moebius_high_throughput_expert_order(transport, dispatched, 1, NULL, NULL));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_result_destroy(order));
  (void)rank;
}

/* Takes the array over and checks that it has the rows of `x`. */
static void check_managed(void* managed, const moebius_tensor* x) {
  moebius_array array = NULL;
  moebius_tensor view = {.struct_size = sizeof(view)};
  CHECK_OK(moebius_array_from_dlpack(managed, 0, -1, &array));
  CHECK_OK(moebius_array_view(array, &view));
  CHECK_EQ(view.shape[0], x->shape[0]);
  CHECK_EQ(memcmp(view.data, x->data, (size_t)x->shape[0] * H * sizeof(float)), 0);
  CHECK_OK(moebius_array_destroy(array));
}

/* A dispatch gives arrays of its result at once; one along a known route may give nothing else. */
static void check_arrays(moebius_high_throughput transport,
                         tokens* my,
                         const moebius_dispatch_input* along,
                         moebius_result route,
                         const moebius_tensor* x) {
  const char* const names[] = {"payload", "teleport", "payload"};
  const int32_t indices[] = {0, 0, 2};
  void* managed[] = {UNTOUCHED, UNTOUCHED, UNTOUCHED};
  const moebius_dlpack_arrays two = arrays_of(2, names, indices, managed);
  moebius_dlpack_arrays three = two;
  moebius_dispatch_input input = *along;
  moebius_result untouched = UNTOUCHED;
  input.arrays = &two;
  CHECK_OK(moebius_high_throughput_dispatch_cached(transport, &input, route, NULL, NULL));
  check_managed(managed[0], x);
  CHECK(managed[1] == NULL && managed[2] == UNTOUCHED);
  input.is_async = 1; /* there must be something to wait for */
  CHECK_INVALID(moebius_high_throughput_dispatch_cached(transport, &input, route, NULL, NULL));
  three.num_arrays = 3; /* there is no payload 2, which is found before anything is sent */
  input.is_async = 0;
  input.arrays = &three;
  CHECK_INVALID(
      moebius_high_throughput_dispatch_cached(transport, &input, route, NULL, &untouched));
  input = my->input;
  input.arrays = &three;
  CHECK_INVALID(moebius_high_throughput_dispatch(transport, &input, NULL, &untouched));
  /* So are names and indices of no array. */
  const char* const nameless[] = {"payload", NULL};
  const int32_t negative[] = {0, -1};
  int64_t counts[E] = {-1};
  moebius_dlpack_arrays bad[] = {two, two};
  bad[0].names = nameless;
  bad[1].indices = negative;
  input.lists_counts = 1;
  input.expert_counts_into = counts;
  for (int i = 0; i < 2; ++i) {
    input.arrays = &bad[i];
    CHECK_INVALID(moebius_high_throughput_dispatch(transport, &input, NULL, &untouched));
    CHECK_EQ(counts[0], -1);
  }
  CHECK(managed[1] == NULL);
  moebius_pending pending = UNTOUCHED;
  input = my->input;
  input.arrays = &two;
  CHECK_INVALID(moebius_high_throughput_dispatch_start(transport, &input, NULL, &pending));
  CHECK(untouched == UNTOUCHED && pending == UNTOUCHED);
}

static void check_calls(moebius_high_throughput transport, int rank) {
  static tokens all_tokens[R];
  tokens* const my = &all_tokens[rank];
  moebius_result dispatched = NULL, combined = NULL, cached = NULL;
  moebius_pending pending = NULL;
  make_tokens(my, rank);
  check_layout(transport, my, rank);
  CHECK_OK(moebius_high_throughput_dispatch(transport, &my->input, NULL, &dispatched));
  const int rows = check_rows(dispatched, rank);
  check_order(transport, dispatched, rank);

  moebius_tensor x, weights;
  const moebius_array ax = array_of(dispatched, "payload", 0, &x);
  const moebius_array aw = array_of(dispatched, "topk_weights", 0, &weights);
  moebius_combine_input combine = {
      .struct_size = sizeof(combine), .x = &x, .topk_weights = &weights};
  CHECK_OK(moebius_high_throughput_combine(transport, &combine, dispatched, NULL, &combined));
  check_combined(combined, rank, 0);
  CHECK_OK(moebius_result_destroy(combined));

  /* In two halves, with a bias, into memory of the caller's. */
  float into[T * H], ones[T * H], weights_into[T * K];
  for (int i = 0; i < T * H; ++i) {
    ones[i] = 1;
  }
  const moebius_tensor t_into = matrix_of(into, MOEBIUS_F32, T, H);
  const moebius_tensor t_ones = matrix_of(ones, MOEBIUS_F32, T, H);
  const moebius_tensor t_weights_into = matrix_of(weights_into, MOEBIUS_F32, T, K);
  combine.bias[0] = &t_ones;
  combine.x_into = &t_into;
  combine.topk_weights_into = &t_weights_into;
  combine.is_async = 1;
  CHECK_OK(moebius_high_throughput_combine_start(transport, &combine, dispatched, NULL, &pending));
  CHECK_OK(moebius_pending_hook(pending));
  CHECK_OK(moebius_pending_hook(pending)); /* does nothing more */
  CHECK_OK(moebius_pending_finish(pending, &combined));
  moebius_result untouched = UNTOUCHED;
  CHECK_INVALID(moebius_pending_finish(pending, &untouched));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_pending_destroy(pending));
  check_combined(combined, rank, 1);
  moebius_tensor view;
  const moebius_array where = array_of(combined, "x", 0, &view);
  CHECK(view.data == into);
  CHECK_OK(moebius_array_destroy(where));
  memset(into, 0, sizeof(into));
  combine.is_async = 0;
  CHECK_OK(moebius_high_throughput_combine(transport, &combine, dispatched, NULL, NULL));
  check_combined(combined, rank, 1); /* it has the same memory */
  combine.is_async = 1;
  CHECK_OK(moebius_result_destroy(combined));

  /* Dispatch in two halves, and along the route of the first. */
  moebius_result second = NULL;
  CHECK_OK(moebius_high_throughput_dispatch_start(transport, &my->input, NULL, &pending));
  CHECK_OK(moebius_pending_finish(pending, &second));
  CHECK_OK(moebius_pending_destroy(pending));
  CHECK_EQ(check_rows(second, rank), rows);
  CHECK_OK(moebius_result_destroy(second));
  moebius_dispatch_input again = {
      .struct_size = sizeof(again), .payloads = my->payloads, .num_payloads = 1};
  check_arrays(transport, my, &again, dispatched, &x);
  CHECK_OK(moebius_high_throughput_dispatch_cached(transport, &again, dispatched, NULL, &cached));
  const moebius_array ac = array_of(cached, "payload", 0, &view);
  CHECK_EQ(view.shape[0], rows);
  CHECK_EQ(memcmp(view.data, x.data, (size_t)rows * H * sizeof(float)), 0);
  CHECK_OK(moebius_array_destroy(ac));
  /* A cached dispatch has no route of its own. */
  CHECK_INVALID(moebius_high_throughput_combine(transport, &combine, cached, NULL, &untouched));
  CHECK_INVALID(
      moebius_high_throughput_dispatch_cached(transport, &again, cached, NULL, &untouched));
  CHECK_OK(moebius_result_destroy(cached));
  CHECK_OK(moebius_result_destroy(dispatched));
  CHECK_OK(moebius_array_destroy(ax));
  CHECK_OK(moebius_array_destroy(aw));
}

static void ranks(moebius_group* group, int rank, void* user) {
  moebius_transports transports = NULL;
  moebius_high_throughput own = NULL, shared = NULL, same = NULL;
  moebius_high_throughput_options options = {.struct_size = sizeof(options), .num_experts = E};
  moebius_transport_statistics statistics = {.struct_size = sizeof(statistics)};
  int64_t bytes = -1;
  (void)user;
  CHECK_OK(moebius_high_throughput_create(*group, &options, &own));
  check_calls(own, rank);
  CHECK_OK(moebius_high_throughput_set_sms(own, 4, 8));
  CHECK_INVALID(moebius_high_throughput_set_sms(own, 3, 8));
  CHECK_INVALID(moebius_high_throughput_set_sms(own, -2, 8));
  CHECK_OK(moebius_high_throughput_bytes(own, &bytes));
  CHECK(bytes >= 0);
  CHECK_OK(moebius_high_throughput_statistics(own, &statistics));
  int64_t copies = 0, selections = 0;
  for (int t = 0; t < T; ++t) {
    for (int to = 0; to < R; ++to) {
      copies += goes_to(rank, t, to);
    }
    for (int k = 0; k < K; ++k) {
      selections += id_of(rank, t, k) >= 0;
    }
  }
  CHECK_EQ(statistics.copies, 3 * copies); /* three dispatches; a known route is not counted */
  CHECK_EQ(statistics.selections, 3 * selections);
  CHECK_EQ(statistics.node_copies, 0);
  CHECK_FILLED_STRUCT(moebius_transport_statistics, moebius_high_throughput_statistics(own, given));
  CHECK_OK(moebius_high_throughput_trim(own));

  /* Two of one shape are one transport; with a placement that is the linear one, too. */
  int32_t rank_of[E];
  for (int e = 0; e < E; ++e) {
    rank_of[e] = e / L;
  }
  const moebius_placement placement = {
      .struct_size = sizeof(placement), .rank_of = rank_of, .num_experts = E};
  CHECK_OK(moebius_transports_create(*group, &transports));
  options.transports = transports;
  CHECK_OK(moebius_high_throughput_create(*group, &options, &shared));
  options.placement = &placement;
  CHECK_OK(moebius_high_throughput_create(*group, &options, &same));
  check_calls(shared, rank);
  check_calls(same, rank);
  CHECK_OK(moebius_transports_bytes(transports, &bytes));
  int64_t shared_bytes = 0;
  CHECK_OK(moebius_high_throughput_bytes(same, &shared_bytes));
  CHECK_EQ(bytes, shared_bytes);
  CHECK_INVALID(moebius_transports_reserve_low_latency(transports, -1));
  CHECK_OK(moebius_transports_reserve_low_latency(transports, 4096));
  CHECK_OK(moebius_transports_bytes(transports, &bytes));
  CHECK_EQ(bytes, shared_bytes + 4096);

  /* A result of another transport is refused, and nobody waits. */
  static tokens all_tokens[R];
  moebius_result theirs = NULL, untouched = UNTOUCHED;
  make_tokens(&all_tokens[rank], rank);
  CHECK_OK(moebius_high_throughput_dispatch(own, &all_tokens[rank].input, NULL, &theirs));
  moebius_tensor x;
  CHECK_OK(moebius_array_destroy(array_of(theirs, "payload", 0, &x)));
  const moebius_combine_input combine = {.struct_size = sizeof(combine), .x = &x};
  CHECK_INVALID(moebius_high_throughput_combine(shared, &combine, theirs, NULL, &untouched));
  CHECK(untouched == UNTOUCHED);
  CHECK_OK(moebius_result_destroy(theirs));
  CHECK_OK(moebius_transports_destroy(transports));
  CHECK_OK(moebius_high_throughput_destroy(own));
  CHECK_OK(moebius_high_throughput_destroy(shared));
  CHECK_OK(moebius_high_throughput_destroy(same));
}

void test_high_throughput(void) {
  run_ranks(R, NULL, ranks, NULL);
}
