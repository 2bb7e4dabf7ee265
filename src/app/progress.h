// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Progress: shows in one line on stderr what a command is doing, if stderr is a terminal.
#pragma once

#include <string_view>

namespace moebius::app {

class Progress {
 public:
  Progress();
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view what) const;
  void clear() const;

 private:
  bool is_terminal_;
};

}  // namespace moebius::app
