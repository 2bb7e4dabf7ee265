// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Failures of one rank, and what each of the others must then report.  The same cases run on
// threads (group_failure_test.cc), on forked processes (process_failure_test.cc) and on MPI
// (mpi_failure_test.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "comm/group/blocks.h"
#include "moebius/group.h"

namespace moebius::testing {

struct FailureCase {
  std::string name;
  // Every rank runs this; `guilty` is the rank that does something else in it.
  std::function<void(Group&, int guilty)> body;
  std::vector<std::string> calls;  // the others report one of these: "dispatch, epoch 2"
  std::vector<std::string> parts;  // texts in their messages; "@" stands for the guilty rank
  bool is_timeout = false;       // the deadline finds the failure; other failures are found at once
  bool guilty_reports = true;    // the guilty rank gets an error, too
  std::string guilty_says = {};  // if not empty, exactly this one
  bool names_nobody_else = false;       // as one that did not come
  std::chrono::milliseconds goes_on{};  // for so long at most, once the failure is found
};

// The deadline of the timeout cases, which is longer for ranks that share few CPUs, and that of the
// other cases, which must not need it.
inline std::chrono::milliseconds short_timeout(int num_ranks) {
  return std::chrono::milliseconds(std::max(500, 25 * num_ranks));
}
constexpr std::chrono::milliseconds kLongTimeout{60'000};
// A rank that stalls does so for this many timeouts.
constexpr int kStall = 4;

inline std::chrono::milliseconds timeout_of(const FailureCase& c, int num_ranks) {
  return c.is_timeout ? short_timeout(num_ranks) : kLongTimeout;
}

// Every other rank must have reported after this time: before a stalled rank comes back, or else
// long before the deadline that must not be needed.
inline std::chrono::milliseconds report_limit(const FailureCase& c, int num_ranks) {
  return (c.is_timeout ? kStall * timeout_of(c, num_ranks) : kLongTimeout / 4) + c.goes_on;
}

std::vector<FailureCase> failure_cases();
inline void PrintTo(const FailureCase& c, std::ostream* out) {
  *out << c.name;
}
const FailureCase& failure_case(const std::string& name);

// Cases for processes only: the guilty rank is killed.
struct DeadlyCase {
  const char* name;
  void (*body)(Group&, int guilty);
};
std::vector<DeadlyCase> deadly_cases();

// Each rank waits for the next for ever, and the process of `stopped` is stopped meanwhile.
void wait_in_a_circle(Group& group, int stopped);

// Returns what is wrong with the message of the guilty rank; empty when it is right.
std::string missing_from_guilty(const std::string& message, const FailureCase& c);

// Returns what the message of another rank lacks; empty when it has everything.
std::string missing_from(const std::string& message, const FailureCase& c, int rank, int guilty);

// Does the same for the messages of all ranks, which are given by rank.
std::string missing_from_all(const std::vector<std::string>& messages,
                             const FailureCase& c,
                             int guilty);

// The blocks of an all-gather: each rank sends `bytes` at `out` to every rank, and the bytes of
// rank r go to `in` + r * bytes.  Without `in` they are for a reader.
comm::BlockLists gather_blocks(int num_ranks, const void* out, int64_t bytes, void* in);

// Word i of a rank's memory.
inline std::atomic_ref<int64_t> word_of(const Window& window, int rank, int i) {
  return std::atomic_ref(reinterpret_cast<int64_t*>(window.peer(rank))[i]);
}

// Sends a signal to every rank through a window of a word per rank, and awaits the same signal from
// those that are not excluded.  The number must grow from call to call.
void signal_all(Group& group, const Window& window, int64_t number);

}  // namespace moebius::testing
