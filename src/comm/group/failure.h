// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Failure: why a group cannot go on, as the rank that found out tells the others.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moebius::comm {

// One collective call of this rank, or a one-sided wait between two of them.
struct Call {
  std::string_view op;
  int64_t epoch = 0;
};

struct Failure {
  int author = 0;         // the rank that found out
  int guilty = -1;        // the rank that it blames; -1: nobody can be named
  int64_t epoch = 0;      // of the author's call
  std::string op;         // of the author's call
  std::string guilty_op;  // where both were in different calls of this epoch: the other's op
  std::string reason;     // "rank 2 has left"; it names the guilty rank
};

Failure make_failure(int author, const Call& call, int guilty, std::string reason);
// "rank 2 is in "combine" at epoch 5, expected "dispatch""
Failure make_mismatch(int author, const Call& call, int guilty, std::string_view guilty_op);

// A Failure as bytes that another process can read.
struct FailureRecord {
  int32_t author = 0;
  int32_t guilty = -1;
  int64_t epoch = 0;
  std::array<char, 64> op{};  // texts end with 0; longer ones are cut
  std::array<char, 64> guilty_op{};
  std::array<char, 1024> reason{};

  static FailureRecord of(const Failure& failure);
  Failure failure() const {
    return {author, guilty, epoch, op.data(), guilty_op.data(), reason.data()};
  }
};

}  // namespace moebius::comm
