// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "comm/group/runner.h"
#include "comm/group/threads/thread_group.h"
#include "core/cpu_sets.h"
#include "core/start_thread.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

SlowLink link_from_settings() {
  return {std::chrono::microseconds(setting_int("MOEBIUS_LINK_LATENCY_US").value_or(0)),
          setting_int("MOEBIUS_LINK_MB_PER_S").value_or(0) * 1'000'000};
}

bool is_comm_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// The rank whose exception came first; -1: none.  Ranks that found or caused a failure have told it
// in that order.  The CommErrors of the other ranks only follow from it, and so does one that is
// told before its cause: a rank that unwinds leaves its sub-groups before it tells why.
int first_failed(comm::SharedState& shared, const std::vector<std::exception_ptr>& exceptions) {
  std::vector<int> order = shared.failure_authors();
  for (int rank = 0; rank < static_cast<int>(exceptions.size()); ++rank) {
    order.push_back(rank);
  }
  std::erase_if(order, [&](int rank) { return !exceptions[static_cast<size_t>(rank)]; });
  const auto own = std::find_if(order.begin(), order.end(), [&](int rank) {
    return !is_comm_error(exceptions[static_cast<size_t>(rank)]);
  });
  return order.empty() ? -1 : own != order.end() ? *own : order.front();
}

// Gives the rank its GPU, if it has one.  After an error `host` is still there.
std::unique_ptr<Group> on_its_device(const ThreadGroupOptions& options,
                                     std::unique_ptr<Group>& host) {
  if (options.devices.empty()) {
    return std::move(host);
  }
  const Device device = options.devices[static_cast<size_t>(host->rank())];
  return options.nccl ? make_nccl_group(std::move(host), device)
                      : make_cuda_group(std::move(host), device);
}

// Each rank takes a stack, and all share O(ranks^2) flags.  A larger number is surely a mistake.
constexpr int kMaxRanks = 1024;

std::vector<std::unique_ptr<Group>> make_groups(const ThreadGroupOptions& options,
                                                const std::shared_ptr<comm::SharedState>& shared) {
  const SlowLink link = options.link ? *options.link : link_from_settings();
  expect_ge(link.latency.count(), 0, "latency of the link in us");
  expect_ge(link.bytes_per_second, 0, "bytes_per_second of the link");
  const comm::ThreadGroup::Setting setting{
      .timeout = comm::resolve_timeout(options.timeout),
      .link = link,
      .num_threads = options.num_ranks,
      .num_cpus = num_usable_cpus(),
      .copy_threads = std::max(1, Stream::cpu().num_threads() / options.num_ranks)};
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    groups.push_back(std::make_unique<comm::ThreadGroup>(
        shared, Topology::make(rank, options.num_ranks, options.ranks_per_node), setting));
  }
  return groups;
}

}  // namespace

bool pin_rank_thread(int rank, int num_ranks) {
  expect_ge(num_ranks, 1, "num_ranks");
  expect_ge(rank, 0, "rank");
  expect_le(rank, num_ranks - 1, "rank");
  return comm::RankCpus(num_ranks, true).pin(rank);
}

std::vector<std::unique_ptr<Group>> make_thread_groups(int num_ranks,
                                                       const ThreadGroupOptions& options) {
  expect(options.devices.empty() && !options.nccl,
         "make_thread_groups makes groups without GPUs; make_nccl_group gives one to each");
  ThreadGroupOptions own = options;
  own.num_ranks = num_ranks;
  comm::check_options(own, kMaxRanks);
  return make_groups(own, std::make_shared<comm::SharedState>(num_ranks));
}

void run_thread_ranks(const ThreadGroupOptions& options,
                      const std::function<void(Group&)>& body,
                      std::vector<std::string>* errors) {
  const int num_ranks = options.num_ranks;
  comm::check_options(options, kMaxRanks);
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
  const comm::RankCpus cpus(num_ranks, options.pin);
  const auto shared = std::make_shared<comm::SharedState>(num_ranks);
  std::vector<std::unique_ptr<Group>> groups = make_groups(options, shared);
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
    std::unique_ptr<Group> host = std::move(groups[r]);
    std::unique_ptr<Group> group;
    try {
      cpus.pin(rank);
      group = on_its_device(options, host);
      body(*group);
    } catch (...) {
      (group ? group : host)->abort(note_exception(r).view());
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
      groups[static_cast<size_t>(rank)]->abort(comm::current_exception_text().view());
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
