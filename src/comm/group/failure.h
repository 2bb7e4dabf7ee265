// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Failure: why a group cannot go on, as the rank that found out tells the others.  It is made of
// bytes, which other processes can read, and making one takes no memory, which may have run out.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace moebius::comm {

// Formats into `out` without taking memory, and cuts what does not fit.
void format_cut(std::span<char> out, fmt::string_view format, fmt::format_args args);

// A text of up to kSize - 1 characters; a longer one is cut.
template <size_t kSize>
class FixedText {
 public:
  FixedText() = default;
  FixedText(std::string_view text) { text.copy(chars_.data(), kSize - 1); }
  template <typename... Args>
  static FixedText format(fmt::format_string<Args...> format, Args&&... args) {
    FixedText text;
    format_cut(std::span(text.chars_).first(kSize - 1), format, fmt::make_format_args(args...));
    return text;
  }
  std::string_view view() const { return chars_.data(); }
  bool empty() const { return chars_[0] == '\0'; }

 private:
  std::array<char, kSize> chars_{};  // ends with 0
};

// The name of an operation, as ranks tell it.
using OpName = FixedText<48>;

// One collective call of this rank, or a one-sided wait between two of them.
struct Call {
  std::string_view op;
  int64_t epoch = 0;
};

struct Failure {
  using Reason = FixedText<1024>;

  int32_t author = 0;       // the rank that found out
  int32_t guilty = -1;      // the rank that it blames; -1: nobody can be named
  bool is_silence = false;  // the guilty rank has left, has died, or has not come in time
  int64_t epoch = 0;        // of the author's call
  OpName op;                // of the author's call
  OpName guilty_op;         // where both were in different calls of this epoch: the other's op
  Reason reason;            // "rank 2 has left"; it names the guilty rank
};

Failure make_failure(int author, const Call& call, int guilty, const Failure::Reason& reason);
// "rank 2 is in "combine" at epoch 5, expected "dispatch""
Failure make_mismatch(int author, const Call& call, int guilty, std::string_view guilty_op);

}  // namespace moebius::comm
