// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forcing an implementation of the quant stage, and the types that all of them take.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "moebius/dtype.h"

namespace moebius::quant {

// Forces an implementation while it lives.
class ForcedQuant {
 public:
  explicit ForcedQuant(std::string_view name) {
    setenv("MOEBIUS_QUANT", std::string(name).c_str(), 1);
  }
  ~ForcedQuant() { unsetenv("MOEBIUS_QUANT"); }
  ForcedQuant(const ForcedQuant&) = delete;
  ForcedQuant& operator=(const ForcedQuant&) = delete;
};

inline constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace moebius::quant
