// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A block takes a row, and a thread eight of its elements, so that a row is read once.  What a
// thread needs of others is the largest element: of the row for nvfp4's global scale, and of a
// block of 16 or 32 elements for its scale.
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/rows/largest.cuh"
#include "experts/cuda/rows/row_groups.cuh"
#include "experts/cuda/rows/scaled_codes.cuh"
#include "experts/cuda/rows/scaled_codes.h"
#include "quant/group_rule.h"

namespace moebius::cuda {

namespace {

constexpr int kWarp = 32;
static_assert(kCodedVector == kVector && kMostCodedWidth == int64_t{kMostWarps} * kWarp * kVector);

struct Args {
  ActivationArgs x;     // out: bf16
  const float* global;  // nvfp4's global scale, [1] or [G]; nullptr: each row has its own
  bool is_per_group;
};

template <typename T, QuantFormat kFormat, quant::Encode kHow, Activates kActivates>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    scaled_codes_kernel(const __grid_constant__ Args p) {
  __shared__ float of_warp[2][kMostWarps];  // used in turn, so that a row needs one barrier
  ptx::await_and_let_next(p.x.rows.between_gemms);
  const ActivationArgs& a = p.x;
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int own = static_cast<int>(threadIdx.x) * kVector;
  int turn = 0;
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    Raw8<T> raw = {};
    if (own < a.width) {
      raw = load_activated<kActivates>(a, static_cast<const T*>(a.in) + row * a.in_width, own);
    }
    float global = 0.0f;
    if constexpr (kFormat == QuantFormat::kNvfp4) {
      global = p.global == nullptr
                   ? quant::row_global_scale(largest_of_block(absmax(raw), of_warp[turn]))
                   : p.global[p.is_per_group ? group_of(a.rows, row) : 0];
      turn ^= 1;
    }
    float v[kVector];
    put_scaled_codes<kFormat, kHow>(raw, global, p.global == nullptr, v);
    if (own < a.width) {
      store8(static_cast<BFloat16*>(a.out) + row * a.width + own, v);
    }
  }
}

template <typename T, Activates kActivates>
auto kernel_for(QuantFormat format) {
  using quant::Encode;
  switch (format) {
    case QuantFormat::kMxfp4:
      return scaled_codes_kernel<T, QuantFormat::kMxfp4, Encode::kE2M1Multiply, kActivates>;
    case QuantFormat::kMxfp6E3M2:
      return scaled_codes_kernel<T, QuantFormat::kMxfp6E3M2, Encode::kE3M2Multiply, kActivates>;
    case QuantFormat::kMxfp6E2M3:
      return scaled_codes_kernel<T, QuantFormat::kMxfp6E2M3, Encode::kE2M3Multiply, kActivates>;
    case QuantFormat::kMxfp8:
      return scaled_codes_kernel<T, QuantFormat::kMxfp8, Encode::kE4M3Overflow, kActivates>;
    default:
      return scaled_codes_kernel<T, QuantFormat::kNvfp4, Encode::kE2M1Multiply, kActivates>;
  }
}

}  // namespace

void put_scaled_codes(const QuantizeSpec& spec,
                      const std::optional<ActivationSpec>& activation,
                      const RowGroups& rows,
                      const Tensor& input,
                      const RowOperand& out,
                      const Stream& on) {
  const int64_t room = input.dim(0);
  if (room == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args p{};
  p.x.spec = activation.value_or(ActivationSpec{});
  p.x.rows = rows;
  p.x.in = input.raw();
  p.x.out = out.values.raw();
  p.x.width = static_cast<int>(out.values.dim(1));
  p.x.in_width = static_cast<int>(input.dim(1));
  if (out.scales != RowScales::kNone) {
    p.global = out.scale.data<float>();
    p.is_per_group = out.scales == RowScales::kPerGroup;
  }
  const auto threads =
      static_cast<unsigned>((p.x.width + kWarp * kVector - 1) / (kWarp * kVector) * kWarp);
  const dim3 grid = span_grid(rows, room, 1, num_sms(index));
  visit_float(input.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr Activates kPlain = sizeof(T) == 2 ? Activates::kPlainSilu : Activates::kAny;
    const auto kernel = !activation ? kernel_for<T, Activates::kNo>(spec.format)
                        : is_plain_silu<T>(*activation)
                            ? kernel_for<T, kPlain>(spec.format)
                            : kernel_for<T, Activates::kAny>(spec.format);
    launch_early("scaled_codes_kernel", kernel, grid, threads, 0, as_stream(on), p);
  });
}

}  // namespace moebius::cuda
