// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How a BlockReader is shown received blocks; and ShownBlocks, memory for them where ranks share no
// addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// Calls the reader and lets go of it.  Where it throws the group breaks.
inline void show_blocks(Group& group,
                        BlockReader& reader,
                        std::span<const std::byte* const> blocks) {
  try {
    std::exchange(reader, nullptr)(blocks);
  } catch (const std::exception& error) {
    group.abort(error.what());
    throw;
  } catch (...) {
    group.abort("a reader of blocks threw an exception that is no std::exception");
    throw;
  }
}

class ShownBlocks {
 public:
  explicit ShownBlocks(bool has_reader) : is_over_(!has_reader) {}

  // Gives every block its place.
  void place(std::span<RecvBlock> blocks) {
    constexpr int64_t kAlignment = 64;  // serves every dtype and vector
    const auto aligned = [](int64_t bytes) {
      return (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    int64_t bytes = kAlignment;
    for (const RecvBlock& block : blocks) {
      bytes += aligned(block.bytes);
    }
    memory_.reset(new std::byte[static_cast<size_t>(bytes)]);
    auto* at = memory_.get() + kAlignment - reinterpret_cast<uintptr_t>(memory_.get()) % kAlignment;
    for (RecvBlock& block : blocks) {
      block.data = at;
      at += aligned(block.bytes);
    }
  }

  // Calls the reader if nobody has; false, from then on, after it has thrown.
  bool show(Group& group, BlockReader& reader, std::span<const RecvBlock> blocks) {
    if (!is_over_ && reader) {
      std::vector<const std::byte*> shown;
      for (const RecvBlock& block : blocks) {
        shown.push_back(static_cast<const std::byte*>(block.data));
      }
      show_blocks(group, reader, shown);
      is_over_ = true;
    }
    return is_over_;
  }

 private:
  bool is_over_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace moebius::comm
