// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/commands.h"
#include "app/signals.h"

int main(int argc, char** argv) {
  moebius::app::handle_signals();
  return moebius::app::run_command_line(argc, argv);
}
