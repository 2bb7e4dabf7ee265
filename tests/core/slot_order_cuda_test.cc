// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Orders of slots on a GPU, by each of the kernels that make them, are compared with a stable sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/slot_order.h"
#include "problems/place.h"
#include "tests/gpu_test.h"

namespace moebius::testing {
namespace {

using Ints = std::vector<int32_t>;

class SlotOrders : public GpuTest {};

// A GPU, and the way there and back.
struct Gpu {
  Tensor there(const Ints& values) const {
    const auto size = static_cast<int64_t>(values.size());
    return place.take(Tensor::borrow(const_cast<int32_t*>(values.data()), {size}, DType::kI32));
  }
  Tensor room(int64_t size) const { return there(Ints(static_cast<size_t>(size), -7)); }
  Ints here(const Tensor& tensor) const {
    const Tensor values = place.bring(tensor);
    return {values.data<int32_t>(), values.data<int32_t>() + values.numel()};
  }

  Place place{Device::cuda(0)};
};

// Every fifth slot is masked, and every third expert is foreign.
TEST_F(SlotOrders, AreStableSorts) {
  constexpr int64_t kTopk = 4;
  const Gpu gpu;
  for (const int64_t num_experts : {3, 128, 500, 1500}) {
    for (const int64_t num_slots : {4, 60, 64, 68, 256, 1000, 1024, 1028, 2048, 3000}) {
      SCOPED_TRACE(std::to_string(num_slots) + " slots, " + std::to_string(num_experts) +
                   " experts");
      Ints map(static_cast<size_t>(num_experts), -1);
      int32_t num_local = 0;
      for (size_t e = 0; e < map.size(); ++e) {
        map[e] = e % 3 == 2 ? -1 : num_local++;
      }
      Ints ids(static_cast<size_t>(num_slots));
      Ints buckets(ids.size());
      for (size_t s = 0; s < ids.size(); ++s) {
        ids[s] = s % 5 == 3 ? -1 : static_cast<int32_t>(s * s * 7 % map.size());
        const int32_t local = ids[s] < 0 ? -1 : map[static_cast<size_t>(ids[s])];
        buckets[s] = local < 0 ? num_local : local;
      }
      Ints slots(ids.size());
      std::iota(slots.begin(), slots.end(), 0);
      std::stable_sort(slots.begin(), slots.end(), [&](int32_t a, int32_t b) {
        return buckets[static_cast<size_t>(a)] < buckets[static_cast<size_t>(b)];
      });
      Ints counts(static_cast<size_t>(num_local) + 1);
      Ints rows(ids.size());
      Ints tokens(ids.size());
      for (size_t r = 0; r < slots.size(); ++r) {
        const auto slot = static_cast<size_t>(slots[r]);
        ++counts[static_cast<size_t>(buckets[slot])];
        rows[slot] = buckets[slot] < num_local ? static_cast<int32_t>(r) : -1;
        tokens[r] = slots[r] / static_cast<int32_t>(kTopk);
      }
      counts.pop_back();
      Ints offsets(1);
      for (const int32_t count : counts) {
        offsets.push_back(offsets.back() + count);
      }
      for (const bool is_counted : {true, false}) {
        CudaOrderArgs args{
            .ids = gpu.there(ids).view({num_slots / kTopk, kTopk}),
            .expert_map = gpu.there(map),
            .num_local_experts = num_local,
            .expert_offsets = gpu.room(num_local + 1),
            .token_of_row = gpu.room(num_slots),
            .row_of_slot = gpu.room(num_slots),
            .expert_counts = is_counted ? gpu.room(num_local) : Tensor(),
            .cleared = gpu.room(2),
        };
        cuda_order_slots(args, gpu.place.stream);
        EXPECT_EQ(gpu.here(args.expert_offsets), offsets);
        EXPECT_EQ(gpu.here(args.token_of_row), tokens);
        EXPECT_EQ(gpu.here(args.row_of_slot), rows);
        EXPECT_EQ(gpu.here(args.cleared), Ints(2, 0));
        if (is_counted) {
          EXPECT_EQ(gpu.here(args.expert_counts), counts);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius::testing
