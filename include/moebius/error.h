// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Errors: typed exceptions whose messages hold both values, and the checks that throw them.
// Place: every public boundary.  Inside a stage, invariants are asserts.
// Thread-safety: all checks are free functions without state.
#pragma once

#include <concepts>
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller or an input file is at fault.  Nothing has been enqueued or written.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A valid request that this build, this machine or the chosen implementation cannot serve.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A call of the CUDA runtime failed, but not for want of memory.
class CudaError : public Error {
 public:
  using Error::Error;
};

// The host, a GPU, or an allocator of the caller's had no memory; the message has the bytes and the
// device.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A collective did not complete.  `peer` is the rank to blame, or -1 when none can be named.
class CommError : public Error {
 public:
  CommError(const std::string& message, int rank, int peer, bool peer_is_silent = false)
      : Error(message), rank_(rank), peer_(peer), peer_is_silent_(peer_is_silent) {}
  int rank() const { return rank_; }
  int peer() const { return peer_; }
  // True when the peer has left, or has not come in time: it may be dead or stopped, and then it
  // reports nothing itself.
  bool peer_is_silent() const { return peer_is_silent_; }

 private:
  int rank_;
  int peer_;
  bool peer_is_silent_;
};

// Checks for public boundaries.  Each throws InvalidArgument as
//   "x.dim(1) is 7000, expected 7168 (experts.cc:88)"
// `what` names the value as the caller knows it.
using Where = std::source_location;

void expect_eq(int64_t actual,
               int64_t expected,
               std::string_view what,
               Where where = Where::current());
void expect_eq(std::string_view actual,
               std::string_view expected,
               std::string_view what,
               Where where = Where::current());
void expect_ge(int64_t actual,
               int64_t bound,
               std::string_view what,
               Where where = Where::current());
void expect_le(int64_t actual,
               int64_t bound,
               std::string_view what,
               Where where = Where::current());
void expect_multiple_of(int64_t actual,
                        int64_t divisor,
                        std::string_view what,
                        Where where = Where::current());
// For conditions that do not compare two numbers.  `message` holds the values, or is a function
// that returns the message and is called only when the check fails.
void expect(bool ok, std::string_view message, Where where = Where::current());
template <typename Message>
requires std::convertible_to<std::invoke_result_t<const Message&>, std::string_view>
void expect(bool ok, const Message& message, Where where = Where::current()) {
  if (!ok) [[unlikely]] {
    expect(false, std::string_view(message()), where);
  }
}

}  // namespace moebius
