// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: announces what a load reads, in the order of reading, so that a disk delivers the next
// parts while the threads copy the present ones.
// Why: without it a thread that touches a page of the mapping waits for that page and a few
// neighbours, so that a slow disk never has more than one small request per thread.
// Why a window: what is announced early can be thrown out of memory again before it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace moebius::checkpoint {

class ReadAhead {
 public:
  // How many bytes beyond the part that has begun are announced.  A disk that takes 1 ms per
  // request and delivers 10 GB/s has 10 MB under way; this is several times as much.
  static constexpr int64_t kWindow = int64_t{64} << 20;

  // bytes[i]: the size of part i.  announce(i) is called once per part, in ascending order.
  ReadAhead(std::vector<int64_t> bytes,
            std::function<void(int64_t part)> announce,
            int64_t window = kWindow);

  // A thread is about to read part i.  Announces the parts up to i and those that begin within the
  // window after it, if they are not announced yet.  Threads may call it at the same time; those
  // that find another one announcing do not wait for it.
  void begin(int64_t part);
  // Announces all parts that are left.
  void finish();

 private:
  void announce_up_to(int64_t part, int64_t byte);

  std::vector<int64_t> first_byte_;  // of part i, counted in the order of reading
  std::function<void(int64_t)> announce_;
  int64_t window_;
  std::mutex mutex_;
  int64_t next_ = 0;  // the first part that is not announced; guarded by mutex_
};

}  // namespace moebius::checkpoint
