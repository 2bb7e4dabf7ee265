// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "moebius/dispatch.h"

namespace moebius {

namespace {

struct TunedConfig {
  int num_ranks;
  int nvl_send, nvl_recv, rdma_send, rdma_recv;  // tokens per chunk
};
using Table = std::array<TunedConfig, 10>;

// As tuned for DeepEP's queues (RTP-LLM's DeepEPBuffer uses the same numbers).
constexpr Table kDispatch = {{{2, 16, 256, 6, 128},
                              {4, 16, 256, 6, 128},
                              {8, 6, 256, 6, 128},
                              {16, 16, 288, 20, 128},
                              {24, 8, 288, 32, 128},
                              {32, 8, 288, 32, 128},
                              {64, 20, 288, 28, 128},
                              {128, 20, 560, 32, 128},
                              {144, 32, 720, 12, 128},
                              {160, 28, 720, 12, 128}}};
constexpr Table kCombine = {{{2, 6, 256, 6, 128},
                             {4, 6, 256, 6, 128},
                             {8, 6, 256, 6, 128},
                             {16, 2, 288, 28, 128},
                             {24, 1, 288, 20, 128},
                             {32, 1, 288, 20, 128},
                             {64, 1, 288, 20, 128},
                             {128, 1, 560, 12, 128},
                             {144, 2, 720, 8, 128},
                             {160, 2, 720, 8, 128}}};

// 4 H200s, 4096 tokens of 7168, us with 8, 12, 16 and 24 SMs: fp8 dispatch 315, 303, 287, 279; bf16
// combine 750, 517, 567, 534.  Two: bf16 combine with 8, 12, 16, 20 and 24 SMs 383, 266, 227, 226,
// 219; the sums limit it there, and more SMs than 20 cost the GEMMs beside it
// (docs/performance/dispatch.md).
constexpr int kCudaDispatchSms = 16;
constexpr int cuda_combine_sms(int num_ranks) {
  return num_ranks <= 2 ? 20 : 12;
}

// A count between two tuned ones takes the larger's numbers: its queues have room for at least as
// many peers.  Beyond the table the receive queue grows with the number of nodes of 8.
DispatchConfig lookup(const Table& table, int num_ranks) {
  expect_ge(num_ranks, 1, "num_ranks");
  const auto* found = std::find_if(table.begin(), table.end(), [&](const TunedConfig& entry) {
    return entry.num_ranks >= num_ranks;
  });
  TunedConfig tuned = found != table.end() ? *found : table.back();
  if (found == table.end()) {
    tuned.nvl_recv = tuned.nvl_recv * ((num_ranks + 7) / 8) / (table.back().num_ranks / 8);
  }
  DispatchConfig config;
  config.nvl_send_tokens = tuned.nvl_send;
  config.nvl_recv_tokens = tuned.nvl_recv;
  config.rdma_send_tokens = tuned.rdma_send;
  // Receive queues hold whole send chunks.
  config.rdma_recv_tokens =
      (tuned.rdma_recv + tuned.rdma_send - 1) / tuned.rdma_send * tuned.rdma_send;
  return config;
}

}  // namespace

DispatchConfig DispatchConfig::for_dispatch(int num_ranks, Device device) {
  DispatchConfig config = lookup(kDispatch, num_ranks);
  config.num_sms = device.is_cuda() ? kCudaDispatchSms : config.num_sms;
  return config;
}
DispatchConfig DispatchConfig::for_combine(int num_ranks, Device device) {
  DispatchConfig config = lookup(kCombine, num_ranks);
  config.num_sms = device.is_cuda() ? cuda_combine_sms(num_ranks) : config.num_sms;
  return config;
}

void DispatchConfig::validate() const {
  expect_ge(num_sms, 2, "num_sms");
  expect_multiple_of(num_sms, 2, "num_sms");
  expect_ge(nvl_send_tokens, 1, "nvl_send_tokens");
  expect_le(nvl_send_tokens, nvl_recv_tokens - 1, "nvl_send_tokens");
  expect_ge(rdma_send_tokens, 1, "rdma_send_tokens");
  expect_le(rdma_send_tokens, rdma_recv_tokens / 2, "rdma_send_tokens");
  expect_multiple_of(rdma_recv_tokens, rdma_send_tokens, "rdma_recv_tokens");
}

}  // namespace moebius
