// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// While the tile unit multiplies, rows of the block or panel before go through their epilogue.
// Only the file built for AMX includes this header.
//
// The loop over steps calls quarter<0>() to quarter<3>() after four steps in turn, and between()
// after steps that are left over.  Why the epilogues of prefill are template arguments of that
// loop, so that their values stay in its registers: as functions that it calls, activations take
// twice as long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "experts/cpu/tiles/avx512_epilogue.h"

namespace moebius::cpu {

namespace {

// The rows that are left of the block before.  They are spread over `steps` steps; flush() finishes
// what the steps did not.
class Pending {
 public:
  Pending(TileRest& rest, int64_t steps)
      : rest_(rest),
        steps_(steps),
        rows_(rest.end - rest.begin),
        finish_(finisher_of(rest.epilogue)) {}

  TileRest& rest() { return rest_; }
  const TileEpilogue& epilogue() const { return rest_.epilogue; }
  int64_t steps() const { return steps_; }
  int64_t rows() const { return rows_; }

  // Rows that are due, times steps().
  int64_t due() const { return due_; }
  void keep(int64_t due) { due_ = due; }

  void step() {
    for (due_ += rows_; due_ >= kRowsPerTurn * steps_; due_ -= kRowsPerTurn * steps_) {
      finish_until(rest_.begin + kRowsPerTurn);
    }
  }
  void flush() { finish_until(rest_.end); }

 private:
  static constexpr int64_t kRowsPerTurn = 2;

  [[gnu::noinline]] void finish_until(int64_t end) {
    end = std::min(end, rest_.end);
    finish_(rest_.epilogue, rest_.c, rest_.begin, end);
    rest_.begin = end;
  }

  TileRest& rest_;
  int64_t steps_;
  int64_t rows_;
  FinishRows finish_;
  int64_t due_ = 0;
};

// Carries out any epilogue, two rows at a time.
class AnyRows {
 public:
  explicit AnyRows(Pending& pending) : pending_(pending) {}

  template <int kQuarter>
  void quarter() {
    pending_.step();
  }
  void between() { pending_.step(); }

 private:
  Pending& pending_;
};

// Carries out the epilogues that ActivatedRows supports, one part of it beside each step from the
// first on.
template <SumForm kForm>
class GatedRows {
 public:
  // Whether it can finish the rows beside products of `steps` steps each.
  static bool supports(const Pending& pending, int64_t steps) {
    const TileEpilogue& e = pending.epilogue();
    return e.activation != nullptr && ActivatedRows::supports(*e.activation) &&
           form_of(e) == kForm && steps >= ActivatedRows::kParts &&
           pending.rows() * ActivatedRows::kParts <= pending.steps() * ActivatedRows::kRows;
  }

  explicit GatedRows(Pending& pending)
      : rest_(pending.rest()), begin_(rest_.begin), end_(rest_.end) {}
  GatedRows(const GatedRows&) = delete;
  GatedRows& operator=(const GatedRows&) = delete;
  ~GatedRows() { rest_.begin = std::min(begin_, end_); }

  template <int kQuarter>
  [[gnu::always_inline]] void quarter() {
    if (begin_ < end_) {
      rows_.template part<kQuarter, kForm>(rest_.epilogue, rest_.c, begin_, end_);
      begin_ += kQuarter == ActivatedRows::kParts - 1 ? ActivatedRows::kRows : 0;
    }
  }
  void between() {}

 private:
  TileRest& rest_;
  int64_t begin_;
  const int64_t end_;
  ActivatedRows rows_;
};

// Stores weighted rows of output past the caches, one at a time.
template <SumForm kForm>
class StreamedRows {
 public:
  static bool supports(const Pending& pending) {
    const TileEpilogue& e = pending.epilogue();
    return e.activation == nullptr && e.past_caches && e.weights != nullptr && form_of(e) == kForm;
  }

  explicit StreamedRows(Pending& pending)
      : pending_(pending),
        c_(pending.rest().c),
        begin_(pending.rest().begin),
        end_(pending.rest().end),
        due_(pending.due()),
        rows_(pending.rows()),
        steps_(pending.steps()) {}
  StreamedRows(const StreamedRows&) = delete;
  StreamedRows& operator=(const StreamedRows&) = delete;
  ~StreamedRows() {
    pending_.rest().begin = begin_;
    pending_.keep(due_);
  }

  template <int kQuarter>
  [[gnu::always_inline]] void quarter() {
    between();
  }
  [[gnu::always_inline]] void between() {
    for (due_ += rows_; due_ >= steps_; due_ -= steps_) {
      if (begin_ < end_) {
        store_row<kForm, true, true>(pending_.epilogue(), c_, begin_++);
      }
    }
  }

 private:
  Pending& pending_;
  const float* c_;
  int64_t begin_;
  const int64_t end_;
  int64_t due_;
  const int64_t rows_;
  const int64_t steps_;
};

}  // namespace

}  // namespace moebius::cpu
