// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WindowPart: some bytes of a window of the host as a window of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "moebius/group.h"

namespace moebius::comm {

class WindowPart final : public Window {
 public:
  // The part keeps the whole alive.  REQUIRES: the same `offset` on every rank, a multiple of 8.
  WindowPart(std::shared_ptr<Window> whole, int64_t offset, int64_t bytes)
      : whole_(std::move(whole)), offset_(offset), bytes_(bytes) {}

  int64_t bytes() const override { return bytes_; }
  std::byte* local() const override { return whole_->local() + offset_; }
  std::byte* peer(int rank) const override {
    std::byte* memory = whole_->peer(rank);
    return memory == nullptr ? nullptr : memory + offset_;
  }
  void signal(int rank, int64_t offset, int64_t value) override {
    whole_->signal(rank, offset_ + offset, value);
  }

 private:
  const std::shared_ptr<Window> whole_;
  const int64_t offset_;
  const int64_t bytes_;
};

}  // namespace moebius::comm
