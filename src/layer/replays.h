// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Replays: the calls of a layer on a GPU that repeat, each recorded once as a CUDA graph.  To
// launch one takes the host a fraction of what launches of a call's kernels take.
// Thread-safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layer/side_stream.h"
#include "moebius/graph.h"
#include "moebius/moe_layer.h"

namespace moebius {

// A ReplayKey tells what a call works on, and how.  Calls with equal keys enqueue the same work on
// the same addresses.
class ReplayKey {
 public:
  ReplayKey() = default;
  ReplayKey(const MoeLayerInput& input, const Tensor& output, const CallContext& context);
  bool operator==(const ReplayKey&) const = default;

 private:
  struct Memory {
    Memory() = default;
    explicit Memory(const Tensor& tensor);
    bool operator==(const Memory&) const = default;

    const void* data = nullptr;
    Shape shape;
    DType dtype = DType::kF32;
  };
  std::array<Memory, 6> memories_;
  std::optional<KernelOptions> options_;
  const void* stream_ = nullptr;
  uint64_t workspaces_ = 0;
  uint64_t settings_ = 0;
  int microbatch_ = 0;
  int max_sms_ = 0;
};

class Replays {
 public:
  // Makes a call in another context.
  using Call = std::function<void(const CallContext&)>;

  bool are_on();  // as MOEBIUS_REPLAYS says

  // Returns the graph of a call, which `call` records once this function has been called often
  // enough with that key, or null before, and where it cannot be recorded.  The caller makes the
  // call then. Throws the InvalidArgument of `call`.
  std::shared_ptr<const Graph> graph_of(const ReplayKey& key,
                                        const CallContext& context,
                                        const Call& call);

 private:
  struct Entry {
    ReplayKey key;
    int num_calls = 0;
    bool is_refused = false;
    std::shared_ptr<const Graph> graph;
  };
  // The entry of this key, which becomes the first.
  Entry& entry_of(const ReplayKey& key);

  std::optional<uint64_t> settings_;  // the number of changes of settings when it was read
  bool are_on_ = true;
  std::vector<Entry> entries_;  // the latest first
  // Why calls are recorded on another stream: the caller's may be one that cannot be captured, or
  // one on which another thread enqueues.
  SideStream recorder_{SideStream::Use::kRecords, /*is_apart=*/true};
};

}  // namespace moebius
