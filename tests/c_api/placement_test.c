/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of experts by their load. */
#include <math.h>

#include "tests/c_api/check.h"

enum { LAYERS = 2, E = 12, P = 16 };
/* The example of DeepSeek's EPLB. */
static const float kLoad[LAYERS * E] = {90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                                        20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};
static const int64_t kSlots[LAYERS * P] = {5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                                           7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1};

void test_placement(void) {
  int64_t slots[LAYERS * P], indices[LAYERS * P], counts[LAYERS * E];
  moebius_rebalance_options options = {.struct_size = sizeof(options),
                                       .num_physical = P,
                                       .num_groups = 4,
                                       .num_nodes = 2,
                                       .num_ranks = 8};
  moebius_rebalanced out = {.struct_size = sizeof(out),
                            .physical_to_logical = slots,
                            .replica_index = indices,
                            .replica_count = counts};
  CHECK_OK(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  for (int layer = 0; layer < LAYERS; ++layer) {
    int64_t found[E] = {0};
    int is_there[E][P] = {{0}};
    for (int p = layer * P; p < (layer + 1) * P; ++p) {
      CHECK_EQ(slots[p], kSlots[p]);
      ++found[slots[p]];
      CHECK(indices[p] >= 0 && indices[p] < counts[layer * E + slots[p]]);
      CHECK(!is_there[slots[p]][indices[p]]);
      is_there[slots[p]][indices[p]] = 1;
    }
    for (int e = 0; e < E; ++e) {
      CHECK_EQ(counts[layer * E + e], found[e]);
    }
  }

  /* Places that are not wanted, and no layer. */
  out.replica_index = out.replica_count = NULL;
  options.policy = "deepseek";
  CHECK_OK(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  CHECK_OK(moebius_rebalance(NULL, 0, E, &options, &out));

  const moebius_rebalance_options good = options;
  const moebius_rebalanced good_out = out;
  CHECK_STRUCT_SIZES(moebius_rebalance_options, good,
                     moebius_rebalance(kLoad, LAYERS, E, given, &out));
  CHECK_STRUCT_SIZES(moebius_rebalanced, good_out,
                     moebius_rebalance(kLoad, LAYERS, E, &options, given));
  slots[0] = -7;
  CHECK_INVALID(moebius_rebalance(NULL, LAYERS, E, &options, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, -1, E, &options, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, 0, &options, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, INT64_MAX, &options, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, INT64_MAX, E, &options, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, NULL, &out));
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, &options, NULL));
  out.physical_to_logical = NULL;
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  out.physical_to_logical = slots;
  options.num_physical = E - 1;
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  options = good;
  options.num_ranks = -1;
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  options = good;
  options.policy = "best";
  CHECK_INVALID(moebius_rebalance(kLoad, LAYERS, E, &options, &out));
  const float wrong[2] = {1, -NAN};
  options = good;
  CHECK_INVALID(moebius_rebalance(wrong, 1, 2, &options, &out));
  CHECK_EQ(slots[0], -7);
}
