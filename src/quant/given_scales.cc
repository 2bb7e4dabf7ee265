// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/given_scales.h"

#include <algorithm>
#include <array>

#include "core/parallel.h"
#include "quant/group_rule.h"
#include "quant/impls.h"

namespace moebius::quant {

namespace {

constexpr int64_t kRowGrain = 16;
constexpr int64_t kColumnsAtATime = 1024;  // their codes stay in L1

const RowKernels& kernels() {
  return *select_quant_impl().kernels;
}

// Codes `n` elements of a row that has this scale.
void encode(const RowKernels& by,
            const QuantizeSpec& spec,
            float scale,
            const std::byte* x,
            DType dtype,
            int64_t n,
            uint8_t* codes) {
  const GroupCode row = given_row_code(spec.format, scale);
  by.encode({encode_of(spec), x, dtype, n, n, &row.factor, &row.zero_point, codes});
}

}  // namespace

void quantize_given(const Tensor& x,
                    const QuantizeSpec& spec,
                    const float* scales,
                    const Tensor& codes,
                    const Stream& stream) {
  const RowKernels& by = kernels();
  const int64_t k = x.dim(1);
  const int64_t x_bytes = row_bytes(x.dtype(), k);
  parallel_for(stream, x.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      encode(by, spec, scales[r], x.bytes() + r * x_bytes, x.dtype(), k,
             reinterpret_cast<uint8_t*>(codes.bytes() + r * k));
    }
  });
}

void quantize_dequantize_given(const Tensor& x,
                               const QuantizeSpec& spec,
                               const float* scales,
                               const Tensor& out,
                               const Stream& stream) {
  const RowKernels& by = kernels();
  const int64_t k = x.dim(1);
  parallel_for(stream, x.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    std::array<uint8_t, kColumnsAtATime> codes;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t first = 0; first < k; first += kColumnsAtATime) {
        const int64_t n = std::min(kColumnsAtATime, k - first);
        const int64_t at = r * k + first;
        encode(by, spec, scales[r], x.bytes() + row_bytes(x.dtype(), at), x.dtype(), n,
               codes.data());
        by.decode({code_of(spec.format), codes.data(), n, n, &scales[r], nullptr,
                   out.bytes() + row_bytes(out.dtype(), at), out.dtype()});
      }
    }
  });
}

}  // namespace moebius::quant
