// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "core/finite.h"
#include "core/index_text.h"
#include "core/parallel.h"
#include "core/same_device.h"
#include "moebius/quantize.h"

namespace moebius {

void expect_finite_weight(const Tensor& w, std::string_view what, const Stream& stream) {
  expect_defined(w, what);
  expect_on(w, Device::cpu(), what);
  expect(is_float(w.dtype()),
         [&] { return fmt::format("{} is {}, expected f32, bf16 or f16", what, name(w.dtype())); });
  constexpr int64_t kElementsPerTask = 1 << 18;
  parallel_for(stream, w.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    const auto at =
        first_nonfinite(w.dtype(), w.bytes() + begin * bits(w.dtype()) / 8, end - begin);
    if (at) {
      const float value = get_float(w, begin + *at);
      throw InvalidArgument(fmt::format("{} is {} at {}, expected a finite number", what,
                                        std::isnan(value) ? "NaN" : fmt::format("{}", value),
                                        index_text(w.shape(), begin + *at)));
    }
  });
}

}  // namespace moebius
