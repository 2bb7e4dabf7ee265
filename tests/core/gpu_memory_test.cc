// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A GPU without memory is an OutOfMemory.
#include <gtest/gtest.h>

#include "moebius/error.h"
#include "moebius/tensor.h"
#include "tests/error_text.h"
#include "tests/fake_cuda.h"

namespace moebius {
namespace {

TEST(GpuMemory, IsOutOfMemoryWithTheBytesAndWhatIsFree) {
  const auto take = [] { return Tensor::empty({4000}, DType::kU8, Device::cuda(0)); };
  testing::set_gpu_memory(false);
  testing::expect_mentions(testing::message_of<OutOfMemory>(take),
                           {"out of memory", "4000 bytes", "cuda:0", "free"});
  testing::set_gpu_memory(true);
  EXPECT_TRUE(take().defined());
}

}  // namespace
}  // namespace moebius
