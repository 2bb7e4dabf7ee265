// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/commands.h"

int main(int argc, char** argv) {
  return moebius::app::run_command_line(argc, argv);
}
