// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ShownBlocks: memory for received blocks that a BlockReader is shown, where ranks share no
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

class ShownBlocks {
 public:
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

  // Once.  Breaks the group where the reader throws.
  static void show(Group& group, BlockReader& reader, std::span<const RecvBlock> blocks) {
    std::vector<const std::byte*> shown;
    for (const RecvBlock& block : blocks) {
      shown.push_back(static_cast<const std::byte*>(block.data));
    }
    try {
      std::exchange(reader, nullptr)(shown);
    } catch (const std::exception& error) {
      group.abort(error.what());
      throw;
    }
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace moebius::comm
