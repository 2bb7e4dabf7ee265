// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Names the cases of a test by the `name` of their parameters.
#pragma once

namespace moebius::testing {

inline constexpr auto by_name = [](const auto& test) { return test.param.name; };

}  // namespace moebius::testing
