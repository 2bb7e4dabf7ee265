// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

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

void Progress::show(std::string_view what, int64_t done, int64_t total) const {
  constexpr int64_t kWidth = 24;
  const auto full = static_cast<size_t>(total > 0 ? done * kWidth / total : kWidth);
  const std::string bar = std::string(full, '#') + std::string(kWidth - full, '.');
  show(fmt::format("[{}] {} of {}, {}", bar, done, total, what));
}

}  // namespace moebius::app
