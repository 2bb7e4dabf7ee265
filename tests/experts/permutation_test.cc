// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests that moebius/permute.h gives the order that order_selections() specifies, on the CPU and on
// a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/slot_order.h"
#include "experts/cuda/rows/permute.h"
#include "experts/permute.h"
#include "moebius/permute.h"
#include "problems/place.h"
#include "tests/error_text.h"
#include "tests/on_devices.h"

namespace moebius {
namespace {

using Ints = std::vector<int32_t>;
using testing::cpu_and_cuda;
using testing::device_name;
using testing::OnDevices;
using testing::Place;

Ints ints(const Tensor& tensor) {
  const auto* data = tensor.data<int32_t>();
  return {data, data + tensor.numel()};
}

Tensor tensor_of(const Ints& values, const Shape& shape) {
  const Tensor tensor = Tensor::empty(shape, DType::kI32);
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

struct Problem {
  int64_t num_tokens, topk, num_experts, num_local_experts;
  bool has_map;
  bool is_skewed;  // most selections go to one expert
};

Tensor random_ids(const Problem& p, std::mt19937& random) {
  const Tensor ids = Tensor::empty({p.num_tokens, p.topk}, DType::kI32);
  const int64_t bound = p.has_map ? p.num_experts : p.num_local_experts;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const bool is_hot = p.is_skewed && random() % 8 != 0;
    ids.data<int32_t>()[i] =
        is_hot ? 0 : static_cast<int32_t>(random() % static_cast<uint32_t>(bound + 1)) - 1;
  }
  return ids;
}

// Local expert 0 is global expert 0; the others are spread.
Tensor random_map(const Problem& p, std::mt19937& random) {
  if (!p.has_map) {
    return {};
  }
  Ints locals(static_cast<size_t>(p.num_experts), -1);
  for (int64_t l = 1; l < p.num_local_experts; ++l) {
    locals[static_cast<size_t>(l)] = static_cast<int32_t>(l);
  }
  std::shuffle(locals.begin() + 1, locals.end(), random);
  locals[0] = 0;
  return tensor_of(locals, {p.num_experts});
}

class PermutationTest : public OnDevices {
 protected:
  // Makes a permutation on the device.
  Permutation make(const Tensor& ids, const Tensor& map, int64_t num_local_experts) const {
    const Permutation p =
        allocate_permutation(ids.dim(0), ids.dim(1), num_local_experts, place_.device());
    const Tensor ids_there = place_.take(ids), map_there = place_.take(map);
    make_permutation(ids_there, map_there, p, place_.stream);
    place_.stream.synchronize();
    return p;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, PermutationTest, cpu_and_cuda(), device_name);

// These sizes are around those of warps, of their parts (256) and of chunks (2048).
const std::vector<Problem> kProblems = {
    {0, 2, 4, 4, false, false},          {1, 1, 1, 1, false, false},
    {7, 3, 5, 5, false, false},          {31, 8, 64, 64, false, false},
    {33, 8, 64, 8, true, false},         {255, 1, 3, 3, false, false},
    {256, 8, 256, 256, false, true},     {257, 8, 256, 32, true, false},
    {512, 4, 40, 10, true, true},        {1000, 7, 1000, 1000, false, false},
    {4096, 8, 256, 256, false, false},   {4096, 8, 256, 32, true, true},
    {9001, 6, 1024, 1024, false, false}, {70000, 8, 512, 64, true, false},
};

TEST_P(PermutationTest, IsTheOrderOfTheExperts) {
  std::mt19937 random(1);
  for (const Problem& p : kProblems) {
    SCOPED_TRACE("M " + std::to_string(p.num_tokens) + " K " + std::to_string(p.topk) + " L " +
                 std::to_string(p.num_local_experts));
    const Tensor ids = random_ids(p, random), map = random_map(p, random);
    Ints offsets(static_cast<size_t>(p.num_local_experts + 1));
    Ints slots(static_cast<size_t>(ids.numel()));
    RowOrder order;
    order.expert_offsets = offsets.data();
    order.output_rows = slots.data();
    order_selections(ids, map, p.num_experts, p.num_local_experts, order);
    Ints rows(slots.size(), -1);
    for (int64_t r = 0; r < order.num_rows; ++r) {
      rows[static_cast<size_t>(slots[static_cast<size_t>(r)])] = static_cast<int32_t>(r);
    }
    const Permutation actual = make(ids, map, p.num_local_experts);
    EXPECT_EQ(ints(place_.bring(actual.expert_offsets)), offsets);
    EXPECT_EQ(ints(place_.bring(actual.slot_of_row)), slots);
    EXPECT_EQ(ints(place_.bring(actual.row_of_slot)), rows);
    if (HasFailure()) {
      return;
    }
  }
}

TEST_P(PermutationTest, RowsMoveToTheirExperts) {
  std::mt19937 random(2);
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kU8}) {
    for (const int64_t width : {int64_t{1}, int64_t{3}, int64_t{56}, int64_t{130}, int64_t{7168}}) {
      SCOPED_TRACE(std::string(name(dtype)) + " x " + std::to_string(width));
      const Problem p = {61, 5, 40, 11, true, false};
      const Permutation order = make(random_ids(p, random), random_map(p, random), 11);
      const Tensor x = Tensor::empty({p.num_tokens, width}, dtype);
      for (int64_t i = 0; i < x.nbytes(); ++i) {
        x.bytes()[i] = static_cast<std::byte>(random());
      }
      const int64_t num_slots = p.num_tokens * p.topk;
      const Tensor poisoned = Tensor::empty({num_slots, width}, dtype);
      std::memset(poisoned.raw(), 0xa5, static_cast<size_t>(poisoned.nbytes()));
      const Tensor x_there = place_.take(x), out_there = place_.take(poisoned).clone();
      permute_rows(x_there, order, out_there, place_.stream);
      const Tensor out = place_.bring(out_there);
      const Ints slots = ints(place_.bring(order.slot_of_row));
      const int32_t num_rows = ints(place_.bring(order.expert_offsets)).back();
      ASSERT_GT(num_rows, 0);
      const auto bytes = static_cast<size_t>(row_bytes(dtype, width));
      for (int64_t r = 0; r < num_slots; ++r) {
        const int64_t token = slots[static_cast<size_t>(r)] / p.topk;
        const void* expected = r < num_rows ? x.slice(token, token + 1).raw() : poisoned.raw();
        ASSERT_EQ(std::memcmp(out.slice(r, r + 1).raw(), expected, bytes), 0) << "row " << r;
      }
    }
  }
}

// Rows and scales move together in words of 16 bytes, but three scales need a launch of their own.
TEST(PermutationOnGpu, ScalesMoveWithTheirRows) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  const Place gpu(DeviceType::kCuda);
  const Ints row_of_slot = {2, -1, 0,
                            4, 5,  3};  // no slot has row 1, and there is no room for row 5
  for (const int64_t num_scales : {4, 3}) {
    const Tensor x = Tensor::empty({3, 32}, DType::kU8);
    const Tensor scale = Tensor::empty({3, num_scales}, DType::kF32);
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data<uint8_t>()[i] = static_cast<uint8_t>(i);
    }
    for (int64_t i = 0; i < scale.numel(); ++i) {
      scale.data<float>()[i] = static_cast<float>(100 + i);
    }
    const Tensor out = gpu.take(Tensor::zeros({5, 32}, DType::kU8));
    const Tensor out_scale = gpu.take(Tensor::zeros({5, num_scales}, DType::kF32));
    cuda_permute_rows(
        {gpu.take(x), gpu.take(tensor_of(row_of_slot, {3, 2})), out, gpu.take(scale), out_scale},
        gpu.stream);
    const Tensor rows = gpu.bring(out);
    const Tensor scales = gpu.bring(out_scale);
    for (int64_t slot = 0; slot < 6; ++slot) {
      const int64_t row = row_of_slot[static_cast<size_t>(slot)];
      if (row >= 0 && row < 5) {
        EXPECT_EQ(std::memcmp(rows[row].raw(), x[slot / 2].raw(), 32), 0) << slot;
        EXPECT_EQ(std::memcmp(scales[row].raw(), scale[slot / 2].raw(),
                              sizeof(float) * static_cast<size_t>(num_scales)),
                  0)
            << slot;
      }
    }
    EXPECT_EQ(scales.data<float>()[num_scales], 0.0f);
    EXPECT_EQ(rows.data<uint8_t>()[32 + 31], 0);
  }
}

TEST(PermutationOnCpu, ARefusedCallLeavesTheOutputAlone) {
  const Permutation p = {tensor_of({5, 6, 7}, {3}), tensor_of({8, 9}, {2}),
                         tensor_of({3, 4}, {1, 2})};
  EXPECT_THROW(make_permutation(tensor_of({0, 9}, {1, 2}), {}, p, {}), InvalidArgument);
  EXPECT_EQ(ints(p.expert_offsets), (Ints{5, 6, 7}));
  EXPECT_EQ(ints(p.slot_of_row), (Ints{8, 9}));
  EXPECT_EQ(ints(p.row_of_slot), (Ints{3, 4}));
}

// The ids are never read: there is not that much memory behind them.
TEST(PermutationOnCpu, RefusesMoreSlotsThanAnInt32Counts) {
  int32_t id = 0;
  const Tensor ids = Tensor::borrow(&id, {268435457, 8}, DType::kI32);
  const std::string refusal = "slots is 2147483656, expected at most 2147483647";
  testing::expect_mentions(testing::message_of([&] { make_permutation(ids, {}, {}, {}); }),
                           refusal);
  testing::expect_mentions(testing::message_of([] { allocate_permutation(268435457, 8, 4); }),
                           refusal);
}

TEST(PermutationOnGpu, IdsOutOfRangeCountAsForeign) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  const Place gpu(DeviceType::kCuda);
  const Tensor ids = gpu.take(tensor_of({0, 7, -9, 1}, {2, 2}));
  const Permutation p = allocate_permutation(2, 2, 2, gpu.device());
  make_permutation(ids, {}, p, gpu.stream);
  EXPECT_EQ(ints(gpu.bring(p.expert_offsets)), (Ints{0, 1, 2}));
  EXPECT_EQ(ints(gpu.bring(p.slot_of_row)), (Ints{0, 3, 1, 2}));
  EXPECT_EQ(ints(gpu.bring(p.row_of_slot)), (Ints{0, -1, -1, 1}));
}

}  // namespace
}  // namespace moebius
