// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rank threads that are in two groups at once, so that each can compare what it gets on its GPU
// with what it gets on the CPU.
#pragma once

#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "moebius/group.h"

namespace moebius::testing {

// Does what run_thread_ranks(options, ...) does.  `cpu` is the same rank of a second group, without
// GPUs.
inline void run_beside_cpu(const ThreadGroupOptions& options,
                           const std::function<void(Group& gpu, Group& cpu)>& body) {
  std::vector<Group*> cpu_groups(static_cast<size_t>(options.num_ranks));
  std::latch made(options.num_ranks);
  std::latch over(1);
  ThreadGroupOptions beside = options;
  beside.devices.clear();
  beside.nccl = false;
  beside.pin = false;
  std::thread second([&] {
    run_thread_ranks(beside, [&](Group& cpu) {
      cpu_groups[static_cast<size_t>(cpu.rank())] = &cpu;
      made.count_down();
      over.wait();
    });
  });
  made.wait();
  std::exception_ptr error;
  try {
    run_thread_ranks(options, [&](Group& gpu) {
      Group& cpu = *cpu_groups[static_cast<size_t>(gpu.rank())];
      try {
        body(gpu, cpu);
      } catch (const std::exception& cause) {
        cpu.abort(cause.what());
        throw;
      }
    });
  } catch (...) {
    error = std::current_exception();
  }
  over.count_down();
  second.join();
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace moebius::testing
