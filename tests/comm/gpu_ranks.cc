// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/gpu_ranks.h"

#include <exception>

namespace moebius {

std::string GpuRanks::name() const {
  return provider + "_R" + std::to_string(num_ranks) + "_on" + std::to_string(num_gpus) +
         (ranks_per_node > 0 ? "_nodes" + std::to_string(ranks_per_node) : "");
}

std::vector<GpuRanks> gpu_ranks() {
  return {{"peer", 1, 1}, {"peer", 2, 1}, {"peer", 3, 1}, {"peer", 4, 1}, {"peer", 5, 1},
          {"peer", 8, 1}, {"peer", 2, 2}, {"peer", 4, 4}, {"peer", 8, 8}, {"nccl", 1, 1},
          {"nccl", 2, 2}, {"nccl", 4, 4}, {"nccl", 8, 8}};
}

std::vector<GpuRanks> gpu_ranks_and_nodes() {
  std::vector<GpuRanks> all = gpu_ranks();
  all.insert(all.end(), {{"peer", 4, 1, 2},
                         {"peer", 2, 1, 1},
                         {"peer", 5, 1, 2},
                         {"peer", 4, 2, 2},
                         {"nccl", 2, 2, 1},
                         {"nccl", 4, 4, 2},
                         {"nccl", 8, 8, 4}});
  return all;
}

std::string comm_error_of(const std::function<void()>& call, int peer) {
  try {
    call();
    ADD_FAILURE() << "no CommError";
  } catch (const CommError& error) {
    if (peer >= 0) {
      EXPECT_EQ(error.peer(), peer) << error.what();
    }
    return error.what();
  }
  return {};
}

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

ThreadGroupOptions thread_options(const GpuRanks& ranks, std::chrono::milliseconds timeout) {
  ThreadGroupOptions options;
  options.num_ranks = ranks.num_ranks;
  options.ranks_per_node = ranks.ranks_per_node;
  options.timeout = timeout;
  options.nccl = ranks.provider == "nccl";
  for (int rank = 0; rank < ranks.num_ranks; ++rank) {
    options.devices.push_back(Device::cuda(rank % ranks.num_gpus));
  }
  return options;
}

void run_gpu_ranks(const GpuRanks& ranks,
                   const std::function<void(Group&)>& body,
                   std::chrono::milliseconds timeout) {
  try {
    run_thread_ranks(thread_options(ranks, timeout), body);
  } catch (const std::exception& error) {
    ADD_FAILURE() << ranks.name() << ": " << error.what();
  }
}

}  // namespace moebius
