// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/failure.h"

#include <cstdio>
#include <new>
#include <regex>
#include <string>

#include "app/commands.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

int exit_code_of(const std::exception& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
                 dynamic_cast<const Unsupported*>(&error) != nullptr
             ? kBadInput
             : kRunFailed;
}

// Rank 0 dies or stalls; one that failed and said so speaks for itself.
bool is_silence_of_first(const CommError& error) {
  return error.peer() == 0 &&
         std::string_view(error.what()).find("rank 0 failed: ") == std::string_view::npos;
}

// Checks end with their place, " (layer_parts.cc:70)", which is for callers of the library.
std::string without_place(const std::string& message) {
  static const std::regex place(R"( \(\w+\.\w+:\d+\)$)");
  return std::regex_replace(message, place, "");
}

}  // namespace

int report_failure(const std::exception& error) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  std::string message = no_memory ? "out of memory" : error.what();
  for (char& c : message) {
    if (c == '\n') {
      c = ' ';
    }
  }
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) {
    message = without_place(message);
  }
  std::fflush(stdout);
  std::fprintf(stderr, "moebius: %s\n", message.c_str());
  return exit_code_of(error);
}

void fail_job(Group& group, const std::exception& error) {
  const auto* comm = dynamic_cast<const CommError*>(&error);
  const int speaker = comm != nullptr && is_silence_of_first(*comm) ? 1 : 0;
  if (group.rank() == speaker) {
    report_failure(error);
  }
  group.abort(error.what());
  throw Reported{exit_code_of(error)};
}

}  // namespace moebius::app
