// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite for every entry of the implementation list.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/quant_suite.h"

namespace moebius::quant {
namespace {

INSTANTIATE_TEST_SUITE_P(Impls,
                         QuantConformance,
                         ::testing::ValuesIn(impls().begin(), impls().end()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace moebius::quant
