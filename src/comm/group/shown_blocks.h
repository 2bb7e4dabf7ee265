// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Showing received blocks to a BlockReader, and ShownBlocks: memory for these blocks where ranks
// share no addresses.
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

// Calls the reader and releases it.  The group breaks when it throws.
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

  // Allocates memory for the blocks and sets the address of each.
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

  // Calls the reader unless that has been done; true when there is nothing left to show.  Once the
  // reader has thrown, the result is false for ever.
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
