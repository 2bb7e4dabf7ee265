// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/router_suite.h"

namespace moebius::testing {

INSTANTIATE_TEST_SUITE_P(Impls,
                         RouterConformance,
                         ::testing::ValuesIn(router_impl_names()),
                         [](const auto& test) { return test.param; });

}  // namespace moebius::testing
