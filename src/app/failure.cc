// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/failure.h"

#include <cstdio>
#include <new>
#include <regex>
#include <string>

#include "app/commands.h"
#include "comm/group/mpi/job.h"
#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

int exit_code_of(const std::exception& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
                 dynamic_cast<const Unsupported*>(&error) != nullptr
             ? kBadInput
             : kRunFailed;
}

// Whether this rank is one of those that may report the error for all: it is of the first node, or
// of the second where a rank of the first is silent, since the whole node may be gone.  A rank that
// the others have missed finds out late, when they have reported it.
bool may_report(Group& group, const std::exception& error) {
  const Topology& topology = group.topology();
  const auto* comm = dynamic_cast<const CommError*>(&error);
  const int silent = comm != nullptr && comm->peer_is_silent() ? comm->peer() : -1;
  const bool is_first_silent = silent >= 0 && topology.node_of(silent) == 0;
  const int reporting_node = is_first_silent && topology.num_nodes() > 1 ? 1 : 0;
  return !group.is_missed() && topology.node() == reporting_node;
}

// Messages of checks end with a place in the source, " (layer_parts.cc:70)", which only helps
// callers of the library.
std::string without_place(const std::string& message) {
  static const std::regex place(R"( \(\w+\.\w+:\d+\)$)");
  return std::regex_replace(message, place, "");
}

// The message in one line.
std::string message_of(const std::exception& error) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string message = printable(no_memory ? "out of memory" : error.what());
  const bool has_place = dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  return has_place ? without_place(message) : message;
}

void print(const std::exception& error) {
  std::fflush(stdout);
  try {
    std::fprintf(stderr, "moebius: %s\n", message_of(error).c_str());
  } catch (const std::bad_alloc&) {
    std::fputs("moebius: out of memory\n", stderr);
  }
}

}  // namespace

int report_failure(const std::exception& error) {
  comm::report_once([&] { print(error); });
  return exit_code_of(error);
}

void fail_job(Group& group, const std::exception& error) {
  const auto abort = [&] { group.abort(message_of(error)); };
  if (may_report(group, error)) {
    comm::report_once([&] { print(error); }, abort);
  } else {
    comm::await_report();
    abort();
  }
  throw Reported{exit_code_of(error)};
}

}  // namespace moebius::app
