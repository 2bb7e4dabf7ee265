// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Fetches to L2 what is read after a block, while the block is multiplied.  Only the file built for
// AMX includes this header.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace {

// Says which lines are fetched next.  Fetches are spread evenly over the tile loads: after a burst
// of them, tile loads would have to wait.
//
// Where there are several panels, lines are taken from many pages by turns.  A core has 16
// line fill buffers, and a line from memory holds one until it is in L2, while tile loads wait for
// one.  The hardware's own prefetching holds none, but it runs only some 20 lines ahead of what is
// asked for, and only within a page.  So the later the next line of a page is asked for, the more
// likely it is already there.  Four lines are fetched at a time, since the code between tile loads
// and products has to be short, or the core does not see the next loads in time.
class Prefetch {
 public:
  // The next fetch, and how many fetches of its row are left.
  struct Position {
    const std::byte* at = nullptr;
    int64_t stride = 0;
    int64_t left_in_row = 0;
    int64_t fetches = 0;  // for every loads() loads; 0 when everything is fetched
  };

  Prefetch(const TileGemm& g, int64_t num_panels)
      : is_by_turns_(num_panels > 1),
        span_(g.next.begin()),
        last_(g.next.end()),
        loads_(kLoadsPerStep * g.steps * num_panels) {
    int64_t fetches = 0;
    for (; span_ != last_; ++span_) {
      start_span();
      fetches += fetches_per_row_ * ((end_ - row_ + row_bytes_ - 1) / row_bytes_);
    }
    span_ = g.next.begin();
    start_span();
    position_.fetches = fetches;
    skip_finished_spans();
  }

  int64_t loads() const { return loads_; }
  const Position& position() const { return position_; }
  int64_t due() const { return due_; }
  void keep(const Position& position, int64_t due) {
    position_ = position;
    due_ = due;
  }

  // Goes on to the next row, after the last fetch of one.
  [[gnu::noinline]] void next_row() noexcept {
    row_ += row_bytes_;
    start_row();
    skip_finished_spans();
  }

  static constexpr int64_t kLinesPerFetch = 4;

 private:
  static constexpr int64_t kLoadsPerStep = 4;
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int64_t kMostPages = 32;  // at a time

  void skip_finished_spans() {
    while (row_ >= end_) {
      if (++span_ == last_) {
        position_.fetches = 0;
        return;
      }
      start_span();
    }
  }

  // A row of fetches is either one line of each of several stretches of whole pages, or all lines
  // of the span.  Its last fetch may go beyond the span by up to three stretches, or lines.
  void start_span() {
    const auto bytes = static_cast<int64_t>(span_->size());
    const int64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
    row_ = span_->data();
    if (is_by_turns_ && pages >= kLinesPerFetch) {
      const int64_t stride = (pages + kMostPages - 1) / kMostPages * kPageBytes;
      const int64_t lines = (bytes + stride - 1) / stride;
      position_.stride = stride;
      fetches_per_row_ = (lines + kLinesPerFetch - 1) / kLinesPerFetch;
      row_bytes_ = kLineBytes;
      end_ = row_ + std::min(stride, bytes);
    } else {
      position_.stride = kLineBytes;
      constexpr int64_t kFetchBytes = kLinesPerFetch * kLineBytes;
      fetches_per_row_ = (bytes + kFetchBytes - 1) / kFetchBytes;
      row_bytes_ = std::max<int64_t>(1, bytes);
      end_ = row_ + bytes;
    }
    start_row();
  }
  void start_row() {
    position_.at = row_;
    position_.left_in_row = fetches_per_row_;
  }

  bool is_by_turns_;
  const std::span<const std::byte>* span_;
  const std::span<const std::byte>* last_;
  Position position_;
  const std::byte* row_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t row_bytes_ = 0;
  int64_t fetches_per_row_ = 0;
  int64_t loads_;
  int64_t due_ = 0;
};

// Fetches what a Prefetch says.  It holds the position in the registers of a loop and writes it
// back at its end.
class PrefetchLoop {
 public:
  explicit PrefetchLoop(Prefetch& prefetch)
      : prefetch_(prefetch),
        position_(prefetch.position()),
        due_(prefetch.due()),
        loads_(prefetch.loads()) {}
  PrefetchLoop(const PrefetchLoop&) = delete;
  PrefetchLoop& operator=(const PrefetchLoop&) = delete;
  ~PrefetchLoop() { prefetch_.keep(position_, due_); }

  [[gnu::always_inline]] void after_load() {
    for (due_ += position_.fetches; due_ >= loads_; due_ -= loads_) {
      for (int64_t i = 0; i < Prefetch::kLinesPerFetch; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(position_.at + i * position_.stride),
                     _MM_HINT_T1);
      }
      position_.at += Prefetch::kLinesPerFetch * position_.stride;
      if (--position_.left_in_row == 0) [[unlikely]] {
        prefetch_.next_row();
        position_ = prefetch_.position();
      }
    }
  }

 private:
  Prefetch& prefetch_;
  Prefetch::Position position_;
  int64_t due_;
  const int64_t loads_;
};

}  // namespace

}  // namespace moebius::cpu
