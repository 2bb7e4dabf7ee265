// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dispatch.h"

namespace moebius {

namespace {

// Measured with 4096 tokens of 7168, in us (docs/performance/dispatch.md).  On 4 H200s an fp8
// dispatch takes 315, 303, 287 and 279 with 8, 12, 16 and 24 SMs, and a bf16 combine 750, 517, 567
// and 534. On 2 H200s a bf16 combine takes 383, 266, 227, 226 and 219 with 8, 12, 16, 20 and 24
// SMs: the sums limit it there, and more than 20 SMs would cost the GEMMs that run beside it.
constexpr int kCudaDispatchSms = 16;
constexpr int cuda_combine_sms(int num_ranks) {
  return num_ranks <= 2 ? 20 : 12;
}

}  // namespace

DispatchConfig DispatchConfig::for_dispatch(int num_ranks, Device device) {
  expect_ge(num_ranks, 1, "num_ranks");
  DispatchConfig config;
  config.num_sms = device.is_cuda() ? kCudaDispatchSms : config.num_sms;
  return config;
}
DispatchConfig DispatchConfig::for_combine(int num_ranks, Device device) {
  expect_ge(num_ranks, 1, "num_ranks");
  DispatchConfig config;
  config.num_sms = device.is_cuda() ? cuda_combine_sms(num_ranks) : config.num_sms;
  return config;
}

void DispatchConfig::validate() const {
  expect_ge(num_sms, 2, "num_sms");
  expect_multiple_of(num_sms, 2, "num_sms");
}

}  // namespace moebius
