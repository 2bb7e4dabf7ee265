// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// KeptWindows: the memory of windows that peers map into their own address space.  Why a window
// that is gone is kept for a while: no rank may take back memory that another still maps, so all
// ranks give back the same windows before they make the next; and unmapping may wait for the GPU,
// whose kernels may wait for this rank.
// Thread-safety: any thread may call drop(), when it destroys the last handle on a window.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/routing/common_ids.h"
#include "moebius/group.h"

namespace moebius::comm {

// `Memory` is what a rank has of one window.
template <typename Memory>
class KeptWindows {
 public:
  explicit KeptWindows(std::function<void(const Memory&)> give_back)
      : give_back_(std::move(give_back)) {}
  ~KeptWindows() {
    for (const auto& [id, memory] : all_) {
      give_back_(memory);
    }
  }
  KeptWindows(const KeptWindows&) = delete;
  KeptWindows& operator=(const KeptWindows&) = delete;

  // `id` is the number of the collective call that makes the window.
  Memory& add(int64_t id) {
    const std::lock_guard lock(mutex_);
    return all_[id];
  }
  void drop(int64_t id) {
    const std::lock_guard lock(mutex_);
    dropped_.push_back(id);
  }
  // Collective.  Gives back the windows that every rank has dropped.
  void give_back_dropped(Group& host, std::string_view op) {
    std::vector<int64_t> dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped = dropped_;
    }
    for (const int64_t id : common_ids(host, op, dropped)) {
      const std::lock_guard lock(mutex_);
      give_back_(all_.at(id));
      all_.erase(id);
      std::erase(dropped_, id);
    }
  }

 private:
  const std::function<void(const Memory&)> give_back_;
  std::mutex mutex_;
  std::map<int64_t, Memory> all_;
  std::vector<int64_t> dropped_;
};

}  // namespace moebius::comm
