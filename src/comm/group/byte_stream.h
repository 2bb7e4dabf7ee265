// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ByteStream: the blocks between two ranks as one stream of bytes.  Messages are cut from the
// stream, and not from the blocks; blocks that are neighbours in memory are joined into one run.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace moebius::comm {

class ByteStream {
 public:
  void append(std::byte* data, int64_t bytes) {
    if (bytes == 0) {
      return;
    }
    if (!runs_.empty() && runs_.back().data + runs_.back().bytes == data) {
      runs_.back().bytes += bytes;
    } else {
      runs_.push_back({data, bytes_, bytes});
    }
    bytes_ += bytes;
  }

  int64_t bytes() const { return bytes_; }

  // The address of bytes [begin, end) where they lie together, else nullptr.  REQUIRES: begin <
  // end.
  std::byte* contiguous(int64_t begin, int64_t end) const {
    const auto run = run_at(begin);
    return end <= run->begin + run->bytes ? run->data + (begin - run->begin) : nullptr;
  }
  void copy_out(int64_t begin, int64_t end, std::byte* to) const {
    for_each_part(begin, end, [&](std::byte* part, int64_t n) {
      std::memcpy(to, part, static_cast<size_t>(n));
      to += n;
    });
  }
  void copy_in(int64_t begin, int64_t end, const std::byte* from) const {
    for_each_part(begin, end, [&](std::byte* part, int64_t n) {
      std::memcpy(part, from, static_cast<size_t>(n));
      from += n;
    });
  }

 private:
  struct Run {
    std::byte* data;
    int64_t begin;  // in the stream
    int64_t bytes;
  };

  std::vector<Run>::const_iterator run_at(int64_t offset) const {
    assert(offset < bytes_);
    return std::upper_bound(runs_.begin(), runs_.end(), offset,
                            [](int64_t at, const Run& run) { return at < run.begin; }) -
           1;
  }
  template <typename Visit>
  void for_each_part(int64_t begin, int64_t end, Visit visit) const {
    for (auto run = begin < end ? run_at(begin) : runs_.end(); begin < end; ++run) {
      const int64_t n = std::min(end, run->begin + run->bytes) - begin;
      visit(run->data + (begin - run->begin), n);
      begin += n;
    }
  }

  std::vector<Run> runs_;
  int64_t bytes_ = 0;
};

}  // namespace moebius::comm
