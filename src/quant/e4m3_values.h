// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "moebius/float_types.h"

namespace moebius::quant {

constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < values.size(); ++code) {
    values[code] = moebius::detail::E4M3Format::decode(code);
  }
  return values;
}

// The value of every code of f8e4m3.
inline constexpr std::array<float, 256> kE4M3Values = make_e4m3_values();

}  // namespace moebius::quant
