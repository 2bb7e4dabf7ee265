// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SlotOrder: the order in which experts on a GPU compute the rows of a call, made by whoever chose
// the experts.  The choice and its order then take one kernel instead of two.
// Letters: M tokens, K top-k, E global experts, L local experts, R rows.  Slot = token * K + k.
// Thread-safety: a SlotOrder is plain data, used by one thread at a time.
#pragma once

#include <cstdint>

#include "moebius/api.h"
#include "moebius/device.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// Handles of the tensors of an order.  All are on one GPU, i32, and complete in the order of a
// stream.  Without row_of_slot there is no order.
struct SlotOrder {
  // [E], local index or -1, by which the order is made; undefined: ids are local.
  Tensor expert_map = {};

  // The weights that experts read first, a view of them of any shape; undefined: none.  Whoever
  // makes the order may fetch them to the L2 cache meanwhile, and the experts read on accordingly.
  // Results do not depend on it.
  Tensor first_weights = {};

  // The rest is written by whoever makes the order.  Rows of local expert e are
  // [expert_offsets[e], expert_offsets[e + 1]), sorted by slot.
  Tensor expert_offsets = {};  // [L + 1]; the last is R
  Tensor expert_counts = {};   // [L], how many rows each expert has
  Tensor row_of_slot = {};     // [M, K]; -1: masked or foreign
  Tensor token_of_row = {};    // [M * K]; entries from R on are those of masked and foreign slots
  Tensor counters = {};        // [2], zeros with which the experts' two GEMMs begin to count

  explicit operator bool() const { return row_of_slot.defined(); }
};

// Throws InvalidArgument, naming both values, unless the order is one of M tokens with K selections
// each, for L experts, on this device.
void expect_order(const SlotOrder& order,
                  int64_t num_tokens,
                  int64_t topk,
                  int64_t num_local_experts,
                  Device device);

}  // namespace moebius
