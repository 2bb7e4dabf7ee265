// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One line on stderr that says what a command is at, on a terminal only.
#pragma once

#include <string_view>

namespace moebius::app {

class Progress {
 public:
  Progress();
  ~Progress();  // clears it
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view what) const;
  void clear() const;

 private:
  bool is_terminal_;
};

}  // namespace moebius::app
