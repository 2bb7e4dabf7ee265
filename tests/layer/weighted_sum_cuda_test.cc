// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums of rows on a GPU have the bits of those on the CPU.
#include <fmt/format.h>

#include <cstring>
#include <random>
#include <string>

#include "moebius/error.h"
#include "moebius/permute.h"
#include "moebius/weight_and_reduce.h"
#include "tests/experts/random_operands.h"
#include "tests/gpu_test.h"

namespace moebius::testing {
namespace {

class WeightedSumOnGpu : public GpuTest {};

// Sizes with few tokens and many, with columns that are not whole vectors, and with more slots than
// a warp has lanes and than eight warps have room for.
TEST_F(WeightedSumOnGpu, IsThatOfTheCpu) {
  constexpr int64_t kRows = 300;
  const Stream stream = Stream::cuda(0);
  std::mt19937 random(5);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t width : {1, 8, 250, 264, 1792}) {
      const Tensor rows = random_uniform({kRows, width}, dtype, 7, -2, 2);
      const Tensor rows_there = to_device(rows, stream.device(), stream);
      for (const int64_t topk : {1, 2, 3, 8, 33, 400}) {
        for (const int64_t num_tokens : {1, 21, 600}) {
          if (topk > 8 && num_tokens > 21) {
            continue;
          }
          SCOPED_TRACE(fmt::format("{} rows of {}, {} each, {} tokens", name(dtype), width, topk,
                                   num_tokens));
          const Tensor places = Tensor::empty({num_tokens, topk}, DType::kI32);
          for (int64_t i = 0; i < places.numel(); ++i) {
            const auto place = static_cast<int32_t>(random() % (2 * kRows));
            places.data<int32_t>()[i] = place < kRows ? place : -1;
          }
          const Tensor weights = random_uniform(places.shape(), DType::kF32, 9, -1, 1);
          const Tensor expected = Tensor::empty({num_tokens, width}, dtype);
          reduce_permuted_rows(rows, places, weights, expected, {});
          const Tensor sums = Tensor::empty(expected.shape(), dtype, stream.device());
          reduce_permuted_rows(rows_there, to_device(places, stream.device(), stream),
                               to_device(weights, stream.device(), stream), sums, stream);
          const Tensor actual = to_device(sums, Device::cpu(), stream);
          stream.synchronize();
          ASSERT_EQ(
              std::memcmp(actual.raw(), expected.raw(), static_cast<size_t>(expected.nbytes())), 0);
        }
      }
    }
  }
}

TEST_F(WeightedSumOnGpu, TakesAsManySlotsAsThereIsRoomFor) {
  const Stream stream = Stream::cuda(0);
  const Tensor rows = random_uniform({4, 8}, DType::kF32, 7, -2, 2);
  const Tensor rows_there = to_device(rows, stream.device(), stream);
  const Tensor sums = Tensor::empty({1, 8}, DType::kF32, stream.device());
  const auto reduce = [&](int64_t topk) {
    const Tensor places = Tensor::zeros({1, topk}, DType::kI32);
    reduce_permuted_rows(rows_there, to_device(places, stream.device(), stream), {}, sums, stream);
    stream.synchronize();
  };
  EXPECT_NO_THROW(reduce(3072));
  try {
    reduce(3073);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("3073 rows of a token"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("3072"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moebius::testing
