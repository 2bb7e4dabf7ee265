// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests which implementation a call uses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "moebius/error.h"
#include "moebius/quantize.h"
#include "quant/impls.h"
#include "tests/error_text.h"
#include "tests/quant/forced_quant.h"

namespace moebius::quant {
namespace {

using moebius::testing::expect_mentions;
using moebius::testing::message_of;

// The log is configured once, so the setting must be there before anything is logged.
const bool kLogsTheChoice = setenv("MOEBIUS_LOG", "dispatch", 1) == 0;

std::string log_of_quantizing() {
  ::testing::internal::CaptureStderr();
  QuantizeSpec spec;
  quantize(Tensor::zeros({2, 32}, DType::kF32), spec);
  return ::testing::internal::GetCapturedStderr();
}

TEST(QuantSelection, TheForcedNameIsWhatRuns) {
  ASSERT_TRUE(kLogsTheChoice);
  for (const Impl& impl : impls()) {
    if (!impl.supports(cpu_features())) {
      continue;
    }
    const ForcedQuant forced(impl.name);
    const Device device = {impl.device, 0};
    EXPECT_EQ(select_quant_impl(device).name, impl.name);
    EXPECT_EQ(&select_quant_impl(device), &impl);
  }
  {
    const ForcedQuant forced("ref");
    select_quant_impl();
  }
  for (const Impl& impl : impls()) {
    if (impl.name == "ref" || impl.device != DeviceType::kCpu || !impl.supports(cpu_features())) {
      continue;
    }
    const std::string line = "quant: " + std::string(impl.name) + "\n";
    {
      const ForcedQuant forced(impl.name);
      EXPECT_NE(log_of_quantizing().find(line), std::string::npos);
    }
    const ForcedQuant forced("ref");
    const std::string log = log_of_quantizing();
    EXPECT_NE(log.find("quant: ref\n"), std::string::npos) << log;
    EXPECT_EQ(log.find(line), std::string::npos) << log;
  }
}

TEST(QuantSelection, TheFirstThatAcceptsIsTheDefault) {
  unsetenv("MOEBIUS_QUANT");
  for (const Impl& impl : impls()) {
    if (impl.device == DeviceType::kCpu && impl.supports(cpu_features())) {
      EXPECT_EQ(select_quant_impl().name, impl.name);
      break;
    }
  }
  EXPECT_EQ(impls().back().name, "ref");
}

TEST(QuantSelection, UnknownAndRefusedNamesAreErrors) {
  {
    const ForcedQuant forced("cpu_abacus");
    expect_mentions(message_of([] { select_quant_impl(); }), {"cpu_abacus", "ref"});
  }
  for (const Impl& impl : impls()) {
    if (impl.device == DeviceType::kCpu) {
      EXPECT_EQ(impl.supports(CpuFeatures{}).ok, impl.name == "ref") << impl.name;
    }
    if (impl.supports(cpu_features())) {
      continue;
    }
    const ForcedQuant forced(impl.name);
    expect_mentions(message_of<Unsupported>([&] {
                      select_quant_impl({impl.device, 0});
                    }),
                    impl.supports(cpu_features()).reason);
  }
}

TEST(QuantSelection, OperandsElsewhereAreRefused) {
  for (const Impl& impl : impls()) {
    const Device other = impl.device == DeviceType::kCpu ? Device::cuda(0) : Device::cpu();
    const ForcedQuant forced(impl.name);
    expect_mentions(message_of<Unsupported>([&] { select_quant_impl(other); }),
                    "the operands are on " + to_string(other));
  }
}

}  // namespace
}  // namespace moebius::quant
