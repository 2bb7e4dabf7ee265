// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The next block's bytes on their way to L2 while this one is multiplied.  Included by the file
// built for AMX alone.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace {

// What is read next, spread evenly over the tile loads: in a burst, those would stand in line.
//
// Where there are several panels, lines are taken from many pages by turns.  Why: a core has 16
// line fill buffers, and a line from memory holds one until it is in L2, while tile loads wait for
// one. The hardware's own prefetching holds none, but it runs some 20 lines ahead of what is asked
// for, and only within a page: the later the next line of a page is asked for, the surer it is
// there. Why four lines at a time: what stands between tile loads and products has to be short, or
// the core does not see the next loads in time.
class Prefetch {
 public:
  Prefetch(const TileGemm& g, int64_t num_panels)
      : is_by_turns_(num_panels > 1),
        span_(g.next.begin()),
        last_(g.next.end()),
        loads_(kLoadsPerStep * g.steps * num_panels) {
    for (; span_ != last_; ++span_) {
      start_span();
      fetches_ += fetches_per_row_ * ((end_ - row_ + row_bytes_ - 1) / row_bytes_);
    }
    span_ = g.next.begin();
    start_span();
  }

  void after_load() {
    for (due_ += fetches_; due_ >= loads_; due_ -= loads_) {
      fetch();
    }
  }

 private:
  static constexpr int64_t kLoadsPerStep = 4;
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kLinesPerFetch = 4;
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int64_t kMostPages = 32;  // at a time

  void fetch() {
    for (int64_t i = 0; i < kLinesPerFetch; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(at_ + i * stride_), _MM_HINT_T1);
    }
    at_ += kLinesPerFetch * stride_;
    if (--left_in_row_ == 0) {
      row_ += row_bytes_;
      start_row();
      if (row_ >= end_) {
        next_span();
      }
    }
  }

  [[gnu::noinline]] void next_span() {
    do {
      if (++span_ == last_) {
        fetches_ = due_ = 0;
        return;
      }
      start_span();
    } while (row_ >= end_);
  }

  // A row: a line of each of so many stretches of whole pages, or successive lines.  The last fetch
  // of a row may go beyond the span by up to three stretches.
  void start_span() {
    const auto bytes = static_cast<int64_t>(span_->size());
    const int64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
    row_ = span_->data();
    if (is_by_turns_ && pages >= kLinesPerFetch) {
      stride_ = (pages + kMostPages - 1) / kMostPages * kPageBytes;
      const int64_t lines = (bytes + stride_ - 1) / stride_;
      fetches_per_row_ = (lines + kLinesPerFetch - 1) / kLinesPerFetch;
      row_bytes_ = kLineBytes;
      end_ = row_ + std::min(stride_, bytes);
    } else {
      stride_ = kLineBytes;
      fetches_per_row_ = 1;
      row_bytes_ = kLinesPerFetch * kLineBytes;
      end_ = row_ + bytes;
    }
    start_row();
  }
  void start_row() {
    at_ = row_;
    left_in_row_ = fetches_per_row_;
  }

  bool is_by_turns_;
  const std::span<const std::byte>* span_;
  const std::span<const std::byte>* last_;
  const std::byte* at_ = nullptr;
  int64_t stride_ = 0;
  int64_t left_in_row_ = 0;
  const std::byte* row_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t row_bytes_ = 0;
  int64_t fetches_per_row_ = 0;
  int64_t fetches_ = 0;  // in `loads_` loads
  int64_t loads_;
  int64_t due_ = 0;
};

}  // namespace

}  // namespace moebius::cpu
