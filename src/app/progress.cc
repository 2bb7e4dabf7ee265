// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <unistd.h>

#include <cstdio>

namespace moebius::app {

namespace {
constexpr const char* kClearLine = "\r\033[K";
}  // namespace

Progress::Progress() : is_terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::clear() const {
  if (is_terminal_) {
    std::fputs(kClearLine, stderr);
  }
}

void Progress::show(std::string_view what) const {
  if (is_terminal_) {
    std::fprintf(stderr, "%s%.*s ...", kClearLine, static_cast<int>(what.size()), what.data());
  }
}

}  // namespace moebius::app
