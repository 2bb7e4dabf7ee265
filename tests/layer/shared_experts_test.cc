// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/shared_experts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/layer/fakes.h"

namespace moebius::testing {
namespace {

SharedExperts make_shared(Tensor gate,
                          ExpertsDesc desc = fake_desc(1, 1, 4, ActivationFormat::kBatched)) {
  return SharedExperts(std::make_unique<FakeExperts>(desc), std::move(gate));
}

Tensor forward(const SharedExperts& shared, const Tensor& hidden, const Tensor& given_x = {}) {
  WorkspacePool pool;
  const Tensor output = Tensor::empty(hidden.shape(), hidden.dtype());
  shared.forward({.hidden = hidden, .x = given_x}, output, {.workspaces = &pool});
  return output;
}

TEST(SharedExperts, EveryRowPassesTheOneExpert) {
  const Tensor hidden = random_tensor({6, 4}, DType::kF32, 1);
  expect_same_bits(forward(make_shared({}), hidden),
                   hidden);  // the fake's first expert multiplies with 1
}

TEST(SharedExperts, RowsThatTheCallerHasAreTaken) {
  const Tensor gate = filled({1, 4}, DType::kF32, {0, 0, 0, 0});
  const auto shared = make_shared(gate);
  const Tensor hidden = random_tensor({3, 4}, DType::kF32, 1);
  const Tensor quantized = filled({3, 4}, DType::kF32, {2, 4, 6, 8, 0, 2, 0, 2, 4, 4, 4, 4});
  EXPECT_EQ(floats(forward(shared, hidden, quantized)),
            (std::vector<float>{1, 2, 3, 4, 0, 1, 0, 1, 2, 2, 2, 2}));
}

TEST(SharedExperts, GateScalesEachToken) {
  const Tensor gate = filled({1, 4}, DType::kF32, {1, 0, 0, -1});
  const auto shared =
      make_shared(gate, fake_desc(1, 1, 4, ActivationFormat::kBatched, DType::kBF16));
  // gate . x is 0 and ln 3, so the sigmoid is 1/2 and 3/4.
  const Tensor hidden = filled({2, 4}, DType::kBF16, {2, 8, 4, 2, 1.0986328125f, 8, 4, 0});
  const auto y = floats(forward(shared, hidden));
  EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 4), (std::vector<float>{1, 4, 2, 1}));
  EXPECT_EQ(y[5], 6.0f);
  EXPECT_EQ(y[6], 3.0f);
}

TEST(SharedExperts, KeepsOffTheWorkspacesOfTheRoutedExperts) {
  const auto shared = make_shared({});
  WorkspacePool pool;
  constexpr int64_t kLarge = 4096;  // large enough that a wrong use would not replace the buffer
  std::vector<Tensor> routed;
  for (int slot = 0; slot < kNumWorkspaceSlots; ++slot) {
    if (const auto which = static_cast<WorkspaceSlot>(slot); which != WorkspaceSlot::kShared) {
      routed.push_back(pool.get(0, which, {kLarge}, DType::kF32));
      std::fill_n(routed.back().data<float>(), kLarge, 7.0f);
    }
  }
  const Tensor hidden = random_tensor({2, 4}, DType::kF32, 1);
  shared.forward({hidden}, Tensor::empty({2, 4}, DType::kF32), {.workspaces = &pool});
  for (const Tensor& tensor : routed) {
    EXPECT_EQ(floats(tensor), std::vector<float>(kLarge, 7.0f));
  }
}

TEST(SharedExperts, LongInputsPassInChunks) {
  auto fake = std::make_unique<FakeExperts>(fake_desc(1, 1, 4, ActivationFormat::kBatched));
  const FakeExperts* experts = fake.get();
  const SharedExperts shared(std::move(fake), {}, /*chunk_tokens=*/3);
  const Tensor hidden = random_tensor({8, 4}, DType::kF32, 1);
  expect_same_bits(forward(shared, hidden), hidden);
  ASSERT_EQ(experts->calls.size(), 3u);
  EXPECT_EQ(experts->calls[2].rows, 2);
}

TEST(SharedExperts, NoTokens) {
  const auto shared = make_shared(filled({1, 4}, DType::kF32, {1}));
  WorkspacePool pool;
  shared.forward({Tensor::empty({0, 4}, DType::kF32)}, Tensor::empty({0, 4}, DType::kF32),
                 {.workspaces = &pool});
  EXPECT_EQ(pool.bytes(), 0);
}

TEST(SharedExperts, RefusesWhatIsNotOneExpert) {
  expect_error({"num_experts", "2", "1"},
               [] { make_shared({}, fake_desc(2, 1, 4, ActivationFormat::kBatched)); });
  expect_error({"topk", "2", "1"},
               [] { make_shared({}, fake_desc(1, 2, 4, ActivationFormat::kBatched)); });
  expect_error({"standard", "batched"}, [] { make_shared({}, fake_desc(1, 1, 4)); });
  expect_error({"gate", "[1, 5]", "[1, 4]"}, [] { make_shared(filled({1, 5}, DType::kF32, {1})); });
  expect_error({"hidden", "[2, 5]", "[2, 4]"}, [] {
    forward(make_shared({}), Tensor::empty({2, 5}, DType::kF32));
  });
}

}  // namespace
}  // namespace moebius::testing
