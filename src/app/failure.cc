// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/failure.h"

#include <cstdio>
#include <new>
#include <regex>
#include <string>

#include "app/commands.h"
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

// Whether the error says that rank 0 died or stalled.  Other errors may name rank 0, too, and then
// rank 0 can report them itself.
bool is_silence_of_first(const CommError& error) {
  const std::string_view message = error.what();
  return message.find("rank 0 did not come within ") != message.npos ||
         message.find("rank 0 has left; ") != message.npos;
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

}  // namespace

int report_failure(const std::exception& error) {
  std::fflush(stdout);
  try {
    std::fprintf(stderr, "moebius: %s\n", message_of(error).c_str());
  } catch (const std::bad_alloc&) {
    std::fputs("moebius: out of memory\n", stderr);
  }
  return exit_code_of(error);
}

void fail_job(Group& group, const std::exception& error) {
  const auto* comm = dynamic_cast<const CommError*>(&error);
  const int speaker = group.size() > 1 && comm != nullptr && is_silence_of_first(*comm) ? 1 : 0;
  if (group.rank() == speaker) {
    report_failure(error);
  }
  group.abort(message_of(error));
  throw Reported{exit_code_of(error)};
}

}  // namespace moebius::app
