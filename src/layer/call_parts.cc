// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Into how many parts a call is cut, and its results.
#include <algorithm>
#include <cmath>

#include "moebius/modular_kernel.h"

namespace moebius {

int64_t default_min_microbatch_tokens(int64_t num_experts,
                                      int64_t topk,
                                      int num_ranks,
                                      Device device) {
  if (device.is_cpu()) {
    return 32;
  }
  // Measured on H200s: with 256 rows GEMMs take 12 % longer, see docs/performance/layers.md.
  constexpr int64_t kRowsPerExpert = 512;
  const int64_t rows_per_token = topk * num_ranks;  // of all ranks' tokens, for one of each rank
  return std::max<int64_t>(32,
                           (kRowsPerExpert * num_experts + rows_per_token - 1) / rows_per_token);
}

int num_combine_parts(int asked, int64_t rows, int64_t hidden, DType dtype, int num_ranks) {
  constexpr int64_t kBlock = 128;  // of the GEMMs' tiles and scales
  // The last part's way stays, and each costs its start: the best number goes with the root of the
  // bytes.  Measured on H200s, see docs/performance/layers.md.
  constexpr double kBytesOfOne = 6 << 20;
  constexpr double kMostParts = 4;
  const int64_t leaving = rows * hidden * bits(dtype) / 8 / num_ranks * (num_ranks - 1);
  int64_t parts = asked;
  if (asked == 0) {
    const double best = std::sqrt(static_cast<double>(leaving) / kBytesOfOne);
    parts = static_cast<int64_t>(std::clamp(best, 1.0, kMostParts));
  }
  while (parts > 1 && hidden % (parts * kBlock) != 0) {
    --parts;
  }
  return static_cast<int>(parts);
}

}  // namespace moebius
