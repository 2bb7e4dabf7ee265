// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/replays.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/settings_changes.h"
#include "moebius/log.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

// So many calls with a key are launched before one is recorded.  The first ones load kernels and
// make workspaces, and recording takes the host as long as some ten calls.
constexpr int kCallsBefore = 4;
// So many keys are remembered: decoding calls a layer with a few numbers of tokens by turns.
constexpr size_t kMostEntries = 8;

}  // namespace

ReplayKey::Memory::Memory(const Tensor& tensor)
    : data(tensor.raw()), shape(tensor.shape()), dtype(tensor.dtype()) {}

ReplayKey::ReplayKey(const MoeLayerInput& input, const Tensor& output, const CallContext& context)
    : memories_{Memory(input.hidden),   Memory(input.topk_ids), Memory(input.topk_weights),
                Memory(input.lora_ids), Memory(input.a2_scale), Memory(output)},
      options_(input.kernel),
      stream_(context.stream.native_handle()),
      workspaces_(context.pool().generation()),
      settings_(num_setting_changes()),
      microbatch_(context.microbatch),
      max_sms_(context.max_sms) {}

bool Replays::are_on() {
  if (const uint64_t now = num_setting_changes(); settings_ != now) {
    are_on_ = setting_int("MOEBIUS_REPLAYS").value_or(1) == 1;
    settings_ = now;
  }
  return are_on_;
}

std::shared_ptr<const Graph> Replays::graph_of(const ReplayKey& key,
                                               const CallContext& context,
                                               const Call& call) {
  Entry& entry = entry_of(key);
  if (entry.graph || entry.is_refused || entry.num_calls++ < kCallsBefore) {
    return entry.graph;
  }
  try {
    CallContext own = context;
    own.stream = recorder_.of(context.stream);
    entry.graph = std::make_shared<const Graph>(own.stream, [&] { call(own); });
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Error& error) {
    entry.is_refused = true;
    log(LogLevel::kInfo, fmt::format("a call of a layer is not replayed: {}", error.what()));
  }
  return entry.graph;
}

Replays::Entry& Replays::entry_of(const ReplayKey& key) {
  auto found = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) {
    // A graph may go while a launch of it is under way: what it holds stays until that is done
    // ("CUDA User Objects" of the CUDA C++ Programming Guide).
    if (entries_.size() == kMostEntries) {
      entries_.pop_back();
    }
    found = entries_.insert(entries_.end(), Entry());
    found->key = key;
  }
  std::rotate(entries_.begin(), found, found + 1);
  return entries_.front();
}

}  // namespace moebius
