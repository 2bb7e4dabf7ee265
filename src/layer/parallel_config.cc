// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/parallel_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "moebius/error.h"

namespace moebius {

namespace {

constexpr std::array<std::string_view, 4> kBackendNames = {"none", "allgather_reducescatter",
                                                           "high_throughput", "low_latency"};

std::optional<All2AllBackend> backend_of_vllm(std::string_view name) {
  constexpr std::pair<std::string_view, All2AllBackend> kNames[] = {
      {"naive", All2AllBackend::kAllGatherReduceScatter},
      {"deepep_high_throughput", All2AllBackend::kHighThroughput},
      {"deepep_low_latency", All2AllBackend::kLowLatency}};
  for (const auto& [theirs, backend] : kNames) {
    if (name == theirs) {
      return backend;
    }
  }
  if (name == "pplx") {
    throw Unsupported("all2all backend pplx is not here; low_latency serves the same calls");
  }
  return std::nullopt;
}

void expect_rank(int size, int rank, std::string_view group) {
  expect_ge(size, 1, fmt::format("{}_size", group));
  expect(0 <= rank && rank < size, [&] {
    return fmt::format("{}_rank is {}, expected 0 to {} ({}_size {})", group, rank, size - 1, group,
                       size);
  });
}

}  // namespace

std::string_view name(All2AllBackend backend) {
  return kBackendNames[static_cast<size_t>(backend)];
}

std::optional<All2AllBackend> all2all_backend_from_name(std::string_view name) {
  const auto found = std::find(kBackendNames.begin(), kBackendNames.end(), name);
  if (found == kBackendNames.end()) {
    return backend_of_vllm(name);
  }
  return static_cast<All2AllBackend>(found - kBackendNames.begin());
}

ParallelConfig ParallelConfig::make(int tp_size,
                                    int tp_rank,
                                    int dp_size,
                                    int dp_rank,
                                    bool enable_expert_parallel,
                                    All2AllBackend backend) {
  expect_rank(tp_size, tp_rank, "tp");
  expect_rank(dp_size, dp_rank, "dp");
  expect(dp_size <= std::numeric_limits<int>::max() / tp_size, [&] {
    return fmt::format("dp_size {} times tp_size {} is more than {} ranks", dp_size, tp_size,
                       std::numeric_limits<int>::max());
  });
  const int flat_size = dp_size * tp_size;
  const int flat_rank = dp_rank * tp_size + tp_rank;

  ParallelConfig config;
  config.dp_size = dp_size;
  config.dp_rank = dp_rank;
  config.backend = backend;
  config.use_ep = enable_expert_parallel && flat_size > 1;
  (config.use_ep ? config.ep_size : config.tp_size) = flat_size;
  (config.use_ep ? config.ep_rank : config.tp_rank) = flat_rank;
  return config;
}

void MoeConfig::validate() {
  expect_ge(num_experts, 1, "num_experts");
  expect(1 <= experts_per_token && experts_per_token <= num_experts, [&] {
    return fmt::format("experts_per_token is {}, expected 1 to {} (num_experts)", experts_per_token,
                       num_experts);
  });
  expect_ge(hidden, 1, "hidden");
  expect_ge(intermediate, 1, "intermediate");
  expect_ge(max_num_tokens, 1, "max_num_tokens");
  expect(is_float(in_dtype), [&] {
    return fmt::format("in_dtype is {}, expected bf16, f16 or f32", moebius::name(in_dtype));
  });
  expect_rank(parallel.tp_size, parallel.tp_rank, "tp");
  expect_rank(parallel.ep_size, parallel.ep_rank, "ep");
  expect_rank(parallel.dp_size, parallel.dp_rank, "dp");
  expect(parallel.ep_size <= num_experts, [&] {
    return fmt::format("ep_size is {}, expected at most {} (num_experts)", parallel.ep_size,
                       num_experts);
  });
  tp_shard_intermediate();
  if (num_local_experts == 0) {
    num_local_experts = expert_range(num_experts, parallel.ep_size, parallel.ep_rank).size();
  }
  expect(1 <= num_local_experts && num_local_experts <= num_experts, [&] {
    return fmt::format("num_local_experts is {}, expected 1 to {} (num_experts)", num_local_experts,
                       num_experts);
  });
}

int64_t MoeConfig::tp_shard_intermediate() const {
  expect_multiple_of(intermediate, parallel.tp_size, "intermediate (to be sharded over tp_size)");
  return intermediate / parallel.tp_size;
}

ExpertRange expert_range(int64_t num_experts, int ep_size, int ep_rank) {
  expect_ge(num_experts, 0, "num_experts");
  expect_rank(ep_size, ep_rank, "ep");
  const int64_t base = num_experts / ep_size;
  const int64_t extra = num_experts % ep_size;
  const int64_t begin = ep_rank * base + std::min<int64_t>(ep_rank, extra);
  return {begin, begin + base + (ep_rank < extra ? 1 : 0)};
}

Tensor make_expert_map(int64_t num_experts, ExpertRange range) {
  expect(0 <= range.begin && range.begin <= range.end && range.end <= num_experts, [&] {
    return fmt::format("local experts [{}, {}) are not within {} experts", range.begin, range.end,
                       num_experts);
  });
  Tensor map = Tensor::empty({num_experts}, DType::kI32);
  for (int64_t e = 0; e < num_experts; ++e) {
    const bool is_local = range.begin <= e && e < range.end;
    map.data<int32_t>()[e] = is_local ? static_cast<int32_t>(e - range.begin) : -1;
  }
  return map;
}

}  // namespace moebius
