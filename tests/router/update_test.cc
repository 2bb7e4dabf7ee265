// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Routers whose weights are replaced: afterwards every implementation gives the bits of a router
// that was made from the new weights, and neither follows the caller's memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "moebius/device.h"
#include "moebius/router.h"
#include "problems/place.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

constexpr int64_t kExperts = 24;
constexpr int64_t kHidden = 40;
constexpr int64_t kTokens = 9;

Tensor numbers(const Shape& shape, DType dtype, int64_t seed) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_float(tensor, i, static_cast<float>((i * 29 + seed * 53) % 97 - 48) / 32);
  }
  return tensor;
}

RouterWeights weights_of(int64_t seed, DType dtype) {
  return {numbers({kExperts, kHidden}, dtype, seed), numbers({kExperts}, DType::kF32, seed + 1),
          numbers({kExperts}, DType::kF32, seed + 2)};
}

// The weights that a router chooses, with its ids in front.
Tensor chosen(const Router& router, const testing::Place& place) {
  const auto room = [&](int64_t columns, DType dtype) {
    return Tensor::empty({kTokens, columns}, dtype, place.device());
  };
  const Tensor logits = room(kExperts, DType::kF32);
  const Tensor ids = room(4, DType::kI32);
  const Tensor weights = room(4, DType::kF32);
  router.logits(place.take(numbers({kTokens, kHidden}, DType::kBF16, 7)), logits, place.stream);
  router.select(logits, ids, weights, place.stream);
  const Tensor both = Tensor::empty({2, kTokens, 4}, DType::kF32);
  std::memcpy(both[0].raw(), place.bring(ids).raw(), static_cast<size_t>(ids.nbytes()));
  std::memcpy(both[1].raw(), place.bring(weights).raw(), static_cast<size_t>(weights.nbytes()));
  return both;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0;
}

void expect_updates(const testing::Place& place, DType dtype) {
  RouterConfig config{.num_experts = kExperts, .topk = 4, .scoring = Scoring::kSigmoid};
  config.device = place.device();
  const RouterWeights given = weights_of(1, dtype);
  Router router(config, given);
  const Tensor before = chosen(router, place);
  std::memset(given.gate.raw(), 0xff, static_cast<size_t>(given.gate.nbytes()));
  EXPECT_TRUE(same_bits(chosen(router, place), before));
  const Tensor expected = chosen(Router(config, weights_of(11, dtype)), place);
  EXPECT_FALSE(same_bits(before, expected));

  RouterWeights wrong = weights_of(11, dtype);
  wrong.correction_bias = {};
  testing::expect_error({"correction_bias is missing", "given"},
                        [&] { router.update_weights(wrong, place.stream); });
  EXPECT_TRUE(same_bits(chosen(router, place), before));
  router.update_weights(weights_of(11, dtype), place.stream);
  EXPECT_TRUE(same_bits(chosen(router, place), expected));
}

TEST(RouterUpdate, GivesTheBitsOfAFreshRouter) {
  for (const char* impl : {"", "ref"}) {
    setenv("MOEBIUS_ROUTER", impl, 1);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(std::string(impl) + " " + std::string(name(dtype)));
      expect_updates(testing::Place(Stream::cpu(2)), dtype);
    }
  }
  unsetenv("MOEBIUS_ROUTER");
}

TEST(RouterUpdate, GivesTheBitsOfAFreshRouterOnAGpu) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    expect_updates(testing::Place(DeviceType::kCuda), dtype);
  }
}

}  // namespace
}  // namespace moebius
