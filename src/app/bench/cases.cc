// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace moebius::bench {

using app::Unit;

std::span<const StageCases> stage_cases() {
  static const StageCases kStages[] = {
      {"quant",
       {{"gb_per_s", "rate", Unit::kGigabytesPerSecond},
        {"of_memcpy", "of memcpy", Unit::kPercent},
        {"memcpy_gb_per_s", "memcpy", Unit::kGigabytesPerSecond}},
       run_quant_cases},
      {"router",
       {{"tokens_per_s", "rate", Unit::kTokensPerSecond}, {"gflops", "logits", Unit::kGflops}},
       run_router_cases},
      {"experts",
       {{"gflops", "rate", Unit::kGflops},
        {"weight_gb_per_s", "weights", Unit::kGigabytesPerSecond}},
       run_experts_cases},
      {"dispatch",
       {{"gb_per_s", "rate", Unit::kGigabytesPerSecond},
        {"of_memcpy", "of memcpy", Unit::kPercent},
        {"memcpy_gb_per_s", "memcpy", Unit::kGigabytesPerSecond},
        {"ranks", "ranks"},
        {"tokens", "tokens"},
        {"moved_bytes", "moved", Unit::kBytes}},
       run_dispatch_cases},
      {"layer", {}, run_layer_cases},
  };
  return kStages;
}

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::optional<std::string> byte_difference(std::string_view what,
                                           const Tensor& actual,
                                           const Tensor& expected) {
  if (!expected.defined()) {
    return std::nullopt;
  }
  const std::byte* end = expected.bytes() + expected.nbytes();
  const auto [e, a] = std::mismatch(static_cast<const std::byte*>(expected.bytes()), end,
                                    static_cast<const std::byte*>(actual.bytes()));
  if (e == end) {
    return std::nullopt;
  }
  return fmt::format("{} differ from ref at byte {}: {} instead of {}", what, e - expected.bytes(),
                     static_cast<int>(*a), static_cast<int>(*e));
}

}  // namespace moebius::bench
