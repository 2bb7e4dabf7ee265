// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes a router with a named implementation and calls it with operands that are on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>

#include "moebius/router.h"
#include "problems/place.h"
#include "router/impl.h"
#include "tests/scoped_setting.h"

namespace moebius::testing {

// Forces an implementation during its lifetime.
struct ForcedRouter : ScopedSetting {
  explicit ForcedRouter(const std::string& name) : ScopedSetting("MOEBIUS_ROUTER", name) {}
};

inline const router::ImplEntry& entry_of(const std::string& name) {
  const auto impls = router::impls();
  return *std::find_if(impls.begin(), impls.end(),
                       [&](const auto& candidate) { return candidate.name == name; });
}

inline Router make_forced(const std::string& name,
                          RouterConfig config,
                          const RouterWeights& weights = {}) {
  const ForcedRouter forced(name);
  config.device = {entry_of(name).device, 0};
  return Router(config, weights);
}

inline Place place_of(const Router& router, int num_threads) {
  Place place(router.config().device.type);
  if (place.device().is_cpu()) {
    place.stream = Stream::cpu(num_threads);
  }
  return place;
}

// The outputs of select().  A guard row follows the last row, and all elements start poisoned.
struct Selection {
  Selection(int64_t num_tokens, int64_t topk)
      : all_ids(Tensor::empty({num_tokens + 1, topk}, DType::kI32)),
        all_weights(Tensor::empty({num_tokens + 1, topk}, DType::kF32)),
        ids(all_ids.slice(0, num_tokens)),
        weights(all_weights.slice(0, num_tokens)) {
    std::fill_n(all_ids.data<int32_t>(), all_ids.numel(), -77);
    std::fill_n(all_weights.data<float>(), all_weights.numel(), -77.0f);
  }
  Tensor all_ids, all_weights;
  Tensor ids, weights;
};

inline Selection run_select(const Router& router, const Tensor& logits, int num_threads) {
  const int64_t num_tokens = logits.dim(0);
  Selection out(num_tokens, router.config().topk);
  const Place place = place_of(router, num_threads);
  const Tensor ids = place.take(out.all_ids), weights = place.take(out.all_weights);
  const Tensor there = place.take(logits);
  router.select(there, ids.slice(0, num_tokens), weights.slice(0, num_tokens), place.stream);
  out.all_ids = place.bring(ids);
  out.all_weights = place.bring(weights);
  return out;
}

// The index of the first element whose bits differ; two NaN count as equal.
inline std::optional<int64_t> first_difference(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0, n = a.numel(); i < n; ++i) {
    const bool equal = a.dtype() == DType::kI32
                           ? a.data<int32_t>()[i] == b.data<int32_t>()[i]
                           : std::bit_cast<uint32_t>(a.data<float>()[i]) ==
                                     std::bit_cast<uint32_t>(b.data<float>()[i]) ||
                                 (std::isnan(a.data<float>()[i]) && std::isnan(b.data<float>()[i]));
    if (!equal) {
      return i;
    }
  }
  return std::nullopt;
}

#define EXPECT_SAME_BITS(actual, expected)                                                        \
  do {                                                                                            \
    const auto diff = ::moebius::testing::first_difference(actual, expected);                     \
    EXPECT_FALSE(diff) << "element " << *diff << ": " << get_float(actual, *diff) << ", ref has " \
                       << get_float(expected, *diff);                                             \
  } while (false)

// Whether the implementation takes this gate.
inline bool takes(const std::string& impl,
                  const RouterConfig& config,
                  const RouterWeights& weights) {
  return entry_of(impl).supports({config, weights.gate, {}, {}, {}}).ok;
}

struct LogitsProblem {
  int64_t num_tokens, num_experts, hidden;
};

inline Tensor run_logits(const Router& router, const Tensor& hidden, int num_threads) {
  Tensor out = Tensor::empty({hidden.dim(0) + 1, router.config().num_experts}, DType::kF32);
  std::fill_n(out.data<float>(), out.numel(), -77.0f);
  const Place place = place_of(router, num_threads);
  const Tensor there = place.take(hidden), out_there = place.take(out);
  router.logits(there, out_there.slice(0, hidden.dim(0)), place.stream);
  return place.bring(out_there);
}

}  // namespace moebius::testing
