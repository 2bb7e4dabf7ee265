// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/workspace.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr auto kSlot = WorkspaceSlot::kFusedOutput;

TEST(WorkspacePool, GrowsAndNeverShrinks) {
  WorkspacePool pool;
  EXPECT_EQ(pool.bytes(), 0);
  pool.get(0, kSlot, {8, 16}, DType::kF32);
  const int64_t small = pool.bytes();
  EXPECT_GE(small, 512);
  pool.get(0, kSlot, {80, 16}, DType::kF32);
  const int64_t large = pool.bytes();
  EXPECT_GE(large, 5120);
  EXPECT_LT(large, 5120 + small);  // replaced, not added
  const Tensor again = pool.get(0, kSlot, {3}, DType::kI32);
  EXPECT_EQ(pool.bytes(), large);
  EXPECT_EQ(again.shape(), Shape({3}));
  EXPECT_EQ(again.dtype(), DType::kI32);
}

TEST(WorkspacePool, SameSlotIsTheSameMemory) {
  WorkspacePool pool;
  const Tensor a = pool.get(0, kSlot, {64}, DType::kF32);
  const Tensor b = pool.get(0, kSlot, {16, 2}, DType::kBF16);
  EXPECT_EQ(a.raw(), b.raw());
  EXPECT_NE(a.raw(), pool.get(0, WorkspaceSlot::kIntermediate, {64}, DType::kF32).raw());
}

// Whoever keeps addresses asks for it.
TEST(WorkspacePool, GenerationChangesWhereABufferDoes) {
  WorkspacePool pool;
  const uint64_t empty = pool.generation();
  EXPECT_NE(empty, WorkspacePool().generation());
  pool.get(0, kSlot, {64}, DType::kF32);
  const uint64_t made = pool.generation();
  EXPECT_NE(made, empty);
  pool.get(0, kSlot, {16}, DType::kF32);
  pool.get(1, kSlot, {0}, DType::kF32);
  pool.used_on(0, kSlot, Stream());
  EXPECT_EQ(pool.generation(), made);
  pool.get(0, kSlot, {65}, DType::kF32);
  const uint64_t grown = pool.generation();
  EXPECT_NE(grown, made);
  pool.trim();
  EXPECT_NE(pool.generation(), grown);
}

TEST(WorkspacePool, MicrobatchesShareNothing) {
  WorkspacePool pool;
  std::vector<Tensor> tensors;
  for (const int microbatch : {0, 5, 1}) {
    tensors.push_back(pool.get(microbatch, kSlot, {4}, DType::kI32));
    tensors.back().data<int32_t>()[0] = microbatch;
  }
  EXPECT_EQ(tensors[0].data<int32_t>()[0], 0);
  EXPECT_EQ(tensors[1].data<int32_t>()[0], 5);
  EXPECT_EQ(tensors[2].data<int32_t>()[0], 1);
  EXPECT_EQ(pool.bytes(), 3 * 256);
  expect_error({"microbatch is -1"}, [&] { pool.get(-1, kSlot, {1}, DType::kU8); });
}

TEST(WorkspacePool, EmptyShapesCostNothing) {
  WorkspacePool pool;
  const Tensor none = pool.get(0, kSlot, {0, 7, 3}, DType::kBF16);
  EXPECT_TRUE(none.defined());
  EXPECT_EQ(none.shape(), Shape({0, 7, 3}));
  EXPECT_EQ(pool.bytes(), 0);
}

TEST(WorkspacePool, SeveralTensorsOnOneSlotAreAlignedAndApart) {
  WorkspacePool pool;
  const TensorSpec specs[] = {
      {{3}, DType::kU8}, {{0, 4}, DType::kF32}, {{5, 6}, DType::kF4E2M1}, {{9}, DType::kF32}};
  std::array<Tensor, 4> tensors;
  pool.get(0, kSlot, specs, tensors);
  EXPECT_EQ(tensors[1].shape(), Shape({0, 4}));
  EXPECT_EQ(tensors[2].nbytes(), 15);
  EXPECT_EQ(tensors[2].bytes() - tensors[0].bytes(), 256);
  EXPECT_EQ(tensors[3].bytes() - tensors[2].bytes(), 256);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[0].raw()) % 256, 0u);
}

TEST(WorkspacePool, OtherDeviceReplacesTheBuffer) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  WorkspacePool pool;
  pool.get(0, kSlot, {4}, DType::kF32);
  EXPECT_EQ(pool.get(0, kSlot, {4}, DType::kF32, Stream::cuda(0)).device(), Device::cuda(0));
  EXPECT_EQ(pool.bytes(), 256);
  EXPECT_TRUE(pool.get(0, kSlot, {4}, DType::kF32).device().is_cpu());
}

}  // namespace
}  // namespace moebius::testing
