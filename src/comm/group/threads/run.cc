// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "comm/group/cuda/cuda_group.h"
#include "comm/group/runner.h"
#include "comm/group/threads/thread_group.h"
#include "core/cuda/runtime.h"
#include "core/start_thread.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

// Ends the wait of the others for a rank that has not begun, and whose exception is being handled.
void tell_no_start(comm::SharedState& shared, int rank) noexcept {
  shared.tell_failure(
      comm::make_failure(rank, {"start", 0}, rank, comm::current_exception_text().view()));
}

SlowLink link_from_settings() {
  constexpr int64_t kMax = 1'000'000'000;
  return {std::chrono::microseconds(setting_int("MOEBIUS_LINK_LATENCY_US", 0, kMax).value_or(0)),
          setting_int("MOEBIUS_LINK_MB_PER_S", 1, kMax).value_or(0) * 1'000'000};
}

// The rank whose exception came first; -1: none.  Ranks that found or caused a failure have told it
// in that order; the CommErrors of the other ranks only follow from it.
int first_failed(comm::SharedState& shared, const std::vector<std::exception_ptr>& exceptions) {
  for (const int author : shared.failure_authors()) {
    if (exceptions[static_cast<size_t>(author)]) {
      return author;
    }
  }
  const auto any = std::find_if(exceptions.begin(), exceptions.end(),
                                [](const std::exception_ptr& e) { return e != nullptr; });
  return any == exceptions.end() ? -1 : static_cast<int>(any - exceptions.begin());
}

std::unique_ptr<Group> make_group(const ThreadGroupOptions& options, std::unique_ptr<Group> host) {
  if (options.devices.empty()) {
    return host;
  }
  const Device device = options.devices[static_cast<size_t>(host->rank())];
  cuda::make_current(device.index);
  if (options.nccl) {
    return make_nccl_group(std::move(host), device);
  }
  auto provider = comm::make_peer_access(*host, device);
  return std::make_unique<comm::CudaGroup>(std::move(host), device, std::move(provider));
}

}  // namespace

void run_thread_ranks(const ThreadGroupOptions& options,
                      const std::function<void(Group&)>& body,
                      std::vector<std::string>* errors) {
  // Each rank takes a stack, and all share O(ranks^2) flags.  A larger number is surely a mistake.
  constexpr int kMaxRanks = 1024;
  const int num_ranks = options.num_ranks;
  const auto timeout = comm::check_options(options, kMaxRanks);
  expect(!options.nccl || !options.devices.empty(), "a nccl group needs devices, and has none");
  if (options.nccl) {
    // This loads the library, which sets an environment variable; no other thread may run
    // meanwhile.
    why_no_nccl();
  }
  for (const Device device : options.devices) {
    expect(device.is_cuda(), "a rank's device is cpu, expected a GPU");
    expect_usable(device);
  }
  const SlowLink link = options.link ? *options.link : link_from_settings();
  expect_ge(link.latency.count(), 0, "latency of the link in us");
  expect_ge(link.bytes_per_second, 0, "bytes_per_second of the link");

  const comm::RankCpus cpus(num_ranks, options.pin);
  const int shared_threads = std::max(1, Stream::cpu().num_threads() / num_ranks);
  const auto shared = std::make_shared<comm::SharedState>(num_ranks);
  std::vector<std::exception_ptr> exceptions(static_cast<size_t>(num_ranks));
  std::vector<std::string> messages(static_cast<size_t>(num_ranks));
  const auto note_exception = [&](size_t rank) noexcept {
    exceptions[rank] = std::current_exception();
    const auto text = comm::current_exception_text();
    try {
      messages[rank] = text.view();
    } catch (const std::bad_alloc&) {
      messages[rank] = "out of memory";  // short enough to need none
    }
    return text;
  };

  const auto run_rank = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    try {
      const bool is_pinned = cpus.pin(rank);
      const auto group =
          make_group(options, std::make_unique<comm::ThreadGroup>(
                                  shared, Topology::make(rank, num_ranks, options.ranks_per_node),
                                  timeout, cpus.num_cpus(),
                                  is_pinned ? Stream::cpu() : Stream::cpu(shared_threads), link));
      try {
        body(*group);
      } catch (...) {
        group->abort(note_exception(r).view());
      }
    } catch (...) {
      note_exception(r);
      tell_no_start(*shared, rank);
    }
  };

  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(num_ranks));
  std::exception_ptr no_thread;
  for (int rank = 0; rank < num_ranks && !no_thread; ++rank) {
    try {
      threads.push_back(start_thread([&] { return fmt::format("rank {} of {}", rank, num_ranks); },
                                     [&run_rank, rank] { run_rank(rank); }));
    } catch (...) {
      no_thread = std::current_exception();
      tell_no_start(*shared, rank);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }

  if (errors != nullptr) {
    *errors = std::move(messages);
  }
  if (no_thread) {
    std::rethrow_exception(no_thread);
  }
  const int failed = first_failed(*shared, exceptions);
  if (failed >= 0) {
    std::rethrow_exception(exceptions[static_cast<size_t>(failed)]);
  }
}

}  // namespace moebius
