// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// FetchAhead says which memory a kernel fetches to L2 for a later one, while the GPU's memory has
// little else to do.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moebius/tensor.h"

namespace moebius::cuda {

struct FetchAhead {
  static constexpr int kUnitBytes = 16384;

  const uint8_t* from = nullptr;
  int units = 0;  // 0: nothing is fetched

  // The whole units among the first `most` bytes of a tensor from `begin` on.
  static FetchAhead of(const Tensor& tensor, int64_t begin, int64_t most) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes());
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes + begin) % kAlignment);
    begin += past > 0 ? kAlignment - past : 0;
    const int64_t num = std::clamp<int64_t>(tensor.nbytes() - begin, 0, most);
    return {bytes + begin, static_cast<int>(num / kUnitBytes)};
  }

 private:
  static constexpr int64_t kAlignment = 16;  // of what a kernel fetches
};

}  // namespace moebius::cuda
