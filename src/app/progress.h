// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Progress: shows in one line on stderr what a command is doing and how far it is, if stderr is a
// terminal.
#pragma once

#include <cstdint>
#include <string_view>

namespace moebius::app {

class Progress {
 public:
  Progress();
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view what) const;
  // Shows a bar for `done` of `total` steps, and what the next step is.
  void show(std::string_view what, int64_t done, int64_t total) const;
  void clear() const;

 private:
  bool is_terminal_;
};

}  // namespace moebius::app
