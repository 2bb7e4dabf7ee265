// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/transports.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "comm/group/window_limit.h"
#include "comm/group/window_part.h"
#include "comm/low_latency/transport.h"
#include "moebius/error.h"

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
  std::shared_ptr<Window> reserved;
  int64_t reserved_left = 0;  // the bytes at its end that nobody has taken

  std::unique_ptr<Window> take_reserved(int64_t bytes);
};

// Null where there is not so much left.
std::unique_ptr<Window> Transports::State::take_reserved(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  const int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (taken > reserved_left) {
    return nullptr;
  }
  const int64_t offset = reserved->bytes() - reserved_left;
  reserved_left -= taken;
  return std::make_unique<comm::WindowPart>(reserved, offset, bytes);
}

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
      [&]() -> std::shared_ptr<LowLatency> {
        std::unique_ptr<Window> window;
        if (state_->reserved) {
          const int64_t bytes = low_latency_window_bytes(state_->group, placement, options);
          window = state_->take_reserved(bytes);
        }
        return std::shared_ptr<LowLatency>(
            new LowLatency(make_low_latency(state_->group, placement, options, std::move(window))));
      });
}

void Transports::reserve_low_latency(int64_t bytes) {
  expect_ge(bytes, 0, "bytes to be reserved for low latency");
  comm::expect_window_bytes(static_cast<double>(bytes), state_->group.size(),
                            "what is reserved for low latency");
  if (state_->group.topology().num_nodes() > 1) {
    throw Unsupported(fmt::format(
        "memory for low latency is reserved among the ranks of a node, these are on {} nodes",
        state_->group.topology().num_nodes()));
  }
  state_->reserved = state_->group.make_window("reserve for low latency", bytes);
  state_->reserved_left = bytes;
}

Group& Transports::group() const {
  return state_->group;
}

int64_t Transports::bytes() const {
  int64_t total = state_->reserved_left;
  for (const SharedHighThroughput& made : state_->high_throughput) {
    total += made.transport->bytes();
  }
  for (const auto& made : state_->low_latency) {
    total += made->bytes();
  }
  return total;
}

}  // namespace moebius
