// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "app/commands.h"
#include "core/printable.h"
#include "moebius/safetensors.h"

namespace moebius::app {

namespace {

// Runs on the thread that read the address; it only calls what is async-signal-safe.
extern "C" void report_bus_error(int number, siginfo_t* info, void*) {
  const char* file = mapped_file_at(info->si_addr);
  if (file == nullptr) {
    ::signal(number, SIG_DFL);  // on return the same read faults again, now without a handler
    return;
  }
  static std::atomic_flag is_told;
  while (is_told.test_and_set()) {
    ::pause();  // another thread speaks and ends the process
  }
  constexpr std::string_view kBegin = "moebius: ";
  constexpr std::string_view kEnd = " was truncated while it was read\n";
  char line[8192];
  size_t size = kBegin.copy(line, kBegin.size());
  size += printable_into(file, {line + size, sizeof(line) - size - kEnd.size()});
  size += kEnd.copy(line + size, kEnd.size());
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, size);
  ::_exit(kRunFailed);
}

}  // namespace

void handle_signals() {
  std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction action {};
  action.sa_sigaction = report_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace moebius::app
