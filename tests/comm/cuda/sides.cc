// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/cuda/sides.h"

#include <cstring>
#include <random>

namespace moebius::testing {

void expect_same(const Sides& sides,
                 const Tensor& actual,
                 const Tensor& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual) {
    return;
  }
  ASSERT_EQ(to_string(actual.shape()), to_string(expected.shape())) << what;
  const Tensor got = sides.down(actual);
  if (same_bytes(got, expected)) {
    return;
  }
  const auto* a = got.bytes();
  const auto* b = expected.bytes();
  const int64_t row = got.nbytes() / got.dim(0);
  int64_t wrong_rows = 0;
  int64_t first = -1;
  for (int64_t r = 0; r < got.dim(0); ++r) {
    if (std::memcmp(a + r * row, b + r * row, static_cast<size_t>(row)) != 0) {
      first = first < 0 ? r : first;
      ++wrong_rows;
    }
  }
  ADD_FAILURE() << what << ": " << wrong_rows << " of " << got.dim(0) << " rows differ, first "
                << first << ": i32 " << reinterpret_cast<const int32_t*>(a + first * row)[0]
                << ", expected " << reinterpret_cast<const int32_t*>(b + first * row)[0];
}

void expect_same(const Sides& sides, const DispatchOutput& actual, const DispatchOutput& expected) {
  ASSERT_EQ(actual.payloads.size(), expected.payloads.size());
  for (size_t i = 0; i < actual.payloads.size(); ++i) {
    expect_same(sides, actual.payloads[i], expected.payloads[i], "payload " + std::to_string(i));
  }
  expect_same(sides, actual.topk_ids, expected.topk_ids, "topk_ids");
  expect_same(sides, actual.topk_weights, expected.topk_weights, "topk_weights");
  expect_same(sides, actual.expert_num_tokens, expected.expert_num_tokens, "expert_num_tokens");
  if (expected.handle) {
    ASSERT_EQ(actual.handle->num_rows(), expected.handle->num_rows());
    expect_same(sides, actual.handle->source_token(), expected.handle->source_token(),
                "source_token");
    expect_same(sides, actual.handle->source_rank(), expected.handle->source_rank(), "source_rank");
    expect_same(sides, actual.handle->rank_prefix(), expected.handle->rank_prefix(), "rank_prefix");
  }
}

void expect_same(const Sides& sides, const ExpertOrder& actual, const ExpertOrder& expected) {
  expect_same(sides, actual.expert_offsets, expected.expert_offsets, "expert_offsets");
  expect_same(sides, actual.copy_row, expected.copy_row, "copy_row");
  expect_same(sides, actual.slot, expected.slot, "slot");
  ASSERT_EQ(actual.payloads.size(), expected.payloads.size());
  for (size_t i = 0; i < actual.payloads.size(); ++i) {
    expect_same(sides, actual.payloads[i], expected.payloads[i], "by expert " + std::to_string(i));
  }
}

RankInput make_wide_input(const DispatchProblem& p, int rank) {
  std::mt19937 random(static_cast<uint32_t>(p.seed * 1000) + static_cast<uint32_t>(rank));
  const int64_t n = p.num_tokens(rank);
  RankInput in{Tensor::empty({n, p.hidden}, DType::kBF16), Tensor::empty({n, 2}, DType::kI32),
               Tensor::empty({n, p.topk}, DType::kI32), Tensor::empty({n, p.topk}, DType::kF32)};
  for (int64_t i = 0; i < in.x.numel(); ++i) {
    in.x.data<BFloat16>()[i] = BFloat16(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  }
  for (int64_t t = 0; t < n; ++t) {
    in.code.data<int32_t>()[2 * t] = rank;
    in.code.data<int32_t>()[2 * t + 1] = static_cast<int32_t>(t);
    const auto first = static_cast<int64_t>(random());
    for (int64_t k = 0; k < p.topk; ++k) {
      // The ids are distinct, since 7 is prime to the number of experts.
      const auto id = (first + k * 7) % p.num_experts;
      const bool masked = random() % 10 == 0;
      in.ids.data<int32_t>()[t * p.topk + k] = masked ? -1 : static_cast<int32_t>(id);
      in.weights.data<float>()[t * p.topk + k] = static_cast<float>(1 + random() % 100) / 64.0f;
    }
  }
  return in;
}

INSTANTIATE_TEST_SUITE_P(Groups, HighThroughputCuda, on_gpu_ranks_and_nodes(), gpu_ranks_name);

}  // namespace moebius::testing
