// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of the tiny preset, written once per test program.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/app/command.h"

namespace moebius::test {

inline const std::string& tiny_model() {
  static const ScratchFolder scratch;
  static const std::string path = [] {
    const std::string folder = scratch / "tiny";
    const CommandResult made = run_command({"make-model", "--preset", "tiny", "--output", folder});
    if (made.exit_code != 0) {
      throw std::runtime_error("make-model failed: " + made.err);
    }
    return folder;
  }();
  return path;
}

}  // namespace moebius::test
