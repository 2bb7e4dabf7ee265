// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forces an implementation of the quant stage; and the element types that all implementations take.
#pragma once

#include <string>
#include <string_view>

#include "moebius/dtype.h"
#include "tests/scoped_setting.h"

namespace moebius::quant {

// Forces an implementation during its lifetime.
struct ForcedQuant : moebius::testing::ScopedSetting {
  explicit ForcedQuant(std::string_view name) : ScopedSetting("MOEBIUS_QUANT", std::string(name)) {}
};

inline constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace moebius::quant
