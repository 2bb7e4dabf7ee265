// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/transports.h"

#include <vector>

namespace moebius {

namespace {

// What is_same recognises, or else what `make` returns, which is kept.
template <typename Made, typename IsSame, typename Make>
const Made& find_or_make(std::vector<Made>& all, const IsSame& is_same, const Make& make) {
  for (const Made& made : all) {
    if (is_same(made)) {
      return made;
    }
  }
  return all.emplace_back(make());
}

// Layers find it by the configs that they ask for, whatever set_configs() has set since.
struct SharedHighThroughput {
  DispatchConfig dispatch;
  DispatchConfig combine;
  std::shared_ptr<HighThroughput> transport;
};

}  // namespace

struct Transports::State {
  explicit State(Group& g) : group(g) {}

  Group& group;
  std::vector<SharedHighThroughput> high_throughput;
  std::vector<std::shared_ptr<LowLatency>> low_latency;
};

Transports::Transports(Group& group) : state_(std::make_unique<State>(group)) {}

Transports::~Transports() = default;

std::shared_ptr<HighThroughput> Transports::high_throughput(
    const ExpertPlacement& placement,
    std::optional<DispatchConfig> dispatch_config,
    std::optional<DispatchConfig> combine_config) {
  const Device device = state_->group.device();
  const int size = state_->group.size();
  const DispatchConfig dispatch =
      dispatch_config.value_or(DispatchConfig::for_dispatch(size, device));
  const DispatchConfig combine = combine_config.value_or(DispatchConfig::for_combine(size, device));
  return find_or_make(
             state_->high_throughput,
             [&](const SharedHighThroughput& made) {
               return made.transport->placement() == placement && made.dispatch == dispatch &&
                      made.combine == combine;
             },
             [&] {
               return SharedHighThroughput{
                   dispatch, combine,
                   std::make_shared<HighThroughput>(state_->group, placement, dispatch, combine)};
             })
      .transport;
}

std::shared_ptr<LowLatency> Transports::low_latency(const ExpertPlacement& placement,
                                                    const LowLatencyOptions& options) {
  return find_or_make(
      state_->low_latency,
      [&](const std::shared_ptr<LowLatency>& made) {
        return made->placement() == placement && made->options() == options;
      },
      [&] { return std::make_shared<LowLatency>(state_->group, placement, options); });
}

Group& Transports::group() const {
  return state_->group;
}

int64_t Transports::bytes() const {
  int64_t total = 0;
  for (const SharedHighThroughput& made : state_->high_throughput) {
    total += made.transport->bytes();
  }
  for (const auto& made : state_->low_latency) {
    total += made->bytes();
  }
  return total;
}

}  // namespace moebius
