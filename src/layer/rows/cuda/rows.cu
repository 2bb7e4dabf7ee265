// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These kernels are bound by memory or, with few tokens, by their launch.  They move eight elements
// at a time where alignment allows.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/runtime.h"
#include "core/cuda/words.h"
#include "core/ids.h"
#include "layer/rows/cuda/rows.h"
#include "layer/rows/row_ops.h"
#include "moebius/quantize.h"

namespace moebius {

namespace {

using cuda::kVector;
using cuda::load1;
using cuda::load_raw;
using cuda::rounded;
using cuda::store1;
using cuda::store8;
using cuda::widen;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int64_t kMaxBlocks = 132 * 16;
constexpr unsigned kAll = 0xffffffffu;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

bool vectorizes(int64_t row_length, std::initializer_list<const void*> pointers) {
  return row_length % kVector == 0 && std::all_of(pointers.begin(), pointers.end(),
                                                  [](auto p) { return cuda::is_aligned(p, 16); });
}

// Launches a thread per item, up to kMaxBlocks blocks, and nothing if there are no items.
template <typename... Params, typename... Args>
void launch(const char* what,
            void (*kernel)(Params...),
            int64_t items,
            const Stream& on,
            const Args&... args) {
  if (items == 0) {
    return;
  }
  const cuda::DeviceGuard guard(on);
  kernel<<<blocks_for(items), kThreads, 0, cuda::as_stream(on)>>>(args...);
  cuda::check_launch(what);
}

__device__ int64_t thread_index() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ int64_t num_threads() {
  return int64_t{gridDim.x} * blockDim.x;
}

// out = a, or a + b if b is not null.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const From* a, const From* b, To* out, int64_t n, bool is_vector) {
  const int64_t units = is_vector ? n / kVector : 0;
  for (int64_t unit = thread_index(); unit < units; unit += num_threads()) {
    float sum[kVector];
    widen(load_raw(a + unit * kVector), sum);
    if (b != nullptr) {
      float other[kVector];
      widen(load_raw(b + unit * kVector), other);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] += other[i];
      }
    }
    store8(out + unit * kVector, sum);
  }
  for (int64_t i = units * kVector + thread_index(); i < n; i += num_threads()) {
    store1(out + i, b != nullptr ? load1(a + i) + load1(b + i) : load1(a + i));
  }
}

// Copies a if b is undefined.
void launch_sum(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& on) {
  const int64_t n = a.numel();
  const void* other = b ? b.raw() : nullptr;
  const bool is_vector = vectorizes(n, {a.raw(), other, out.raw()});
  cuda::visit_float(a.dtype(), [&](auto from) {
    cuda::visit_float(out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      launch("sum_kernel", sum_kernel<From, To>, is_vector ? n / kVector : n, on, a.data<From>(),
             static_cast<const From*>(other), out.data<To>(), n, is_vector);
    });
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scale_kernel(
    const T* x, const float* weights, T* out, int64_t rows, int64_t hidden, bool is_vector) {
  const int width = is_vector ? kVector : 1;
  const int64_t row_units = hidden / width;
  for (int64_t unit = thread_index(); unit < rows * row_units; unit += num_threads()) {
    const float weight = rounded(T{}, weights[unit / row_units]);
    if (is_vector) {
      float v[kVector];
      widen(load_raw(x + unit * kVector), v);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[i] *= weight;
      }
      store8(out + unit * kVector, v);
    } else {
      store1(out + unit, load1(x + unit) * weight);
    }
  }
}

// One warp per token: lane l adds the products of columns l, l + 32, and so on.  Then the lanes'
// sums are added pairwise, as row_ops.h says.
template <typename T, typename G>
__global__ void __launch_bounds__(kThreads)
    gate_kernel(const T* x, const G* gate, T* out, int64_t rows, int64_t hidden) {
  static_assert(kGateLanes == kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t t = thread_index() / kWarp; t < rows; t += num_threads() / kWarp) {
    double sum = 0.0;
    for (int64_t h = lane; h < hidden; h += kWarp) {
      sum += static_cast<double>(load1(x + t * hidden + h)) * static_cast<double>(load1(gate + h));
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kAll, sum, step);
    }
    const auto factor = static_cast<float>(1.0 / (1.0 + exp(-sum)));
    for (int64_t h = lane; h < hidden; h += kWarp) {
      T* element = out + t * hidden + h;
      store1(element, load1(element) * factor);
    }
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    clear_kernel(Word* words, int64_t row_words, int64_t num_words, const int32_t* num_rows) {
  const int64_t first = max(0, *num_rows) * row_words;
  for (int64_t i = first + thread_index(); i < num_words; i += num_threads()) {
    words[i] = Word{};
  }
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* out, int64_t n, const float* value) {
  for (int64_t i = thread_index(); i < n; i += num_threads()) {
    out[i] = *value;
  }
}

__global__ void __launch_bounds__(kThreads)
    map_ids_kernel(Ids ids, int64_t n, const int32_t* map, int64_t num_experts, int32_t* local) {
  for (int64_t i = thread_index(); i < n; i += num_threads()) {
    const int32_t id = ids[i];
    local[i] = id >= 0 && id < num_experts ? map[id] : -1;
  }
}

__global__ void __launch_bounds__(kThreads)
    count_rows_kernel(const int32_t* row_of_slot, int64_t n, int64_t max_rows, int32_t* counts) {
  for (int64_t i = thread_index(); i < n; i += num_threads()) {
    if (row_of_slot[i] >= 0) {
      atomicAdd(counts + row_of_slot[i] / max_rows, 1);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    count_selections_kernel(Ids ids, int64_t n, unsigned long long* total) {
  int count = 0;
  for (int64_t i = thread_index(); i < n; i += num_threads()) {
    count += ids[i] >= 0 ? 1 : 0;
  }
  count = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(count)));
  if (threadIdx.x % kWarp == 0 && count > 0) {
    atomicAdd(total, static_cast<unsigned long long>(count));
  }
}

// A thread takes a byte.
__global__ void __launch_bounds__(kThreads) join_row_scales_kernel(const uint8_t* scales,
                                                                   const uint8_t* global_scales,
                                                                   uint8_t* joined,
                                                                   int64_t num_scales,
                                                                   int64_t num_bytes) {
  const int64_t step = num_scales + static_cast<int64_t>(sizeof(float));
  for (int64_t i = thread_index(); i < num_bytes; i += num_threads()) {
    const int64_t row = i / step;
    const int64_t at = i % step;
    joined[i] = at < num_scales
                    ? scales[row * num_scales + at]
                    : global_scales[row * static_cast<int64_t>(sizeof(float)) + at - num_scales];
  }
}

__global__ void __launch_bounds__(kThreads)
    add_counts_kernel(const int32_t* counts, int64_t n, int64_t* totals) {
  for (int64_t i = thread_index(); i < n; i += num_threads()) {
    totals[i] += counts[i];
  }
}

}  // namespace

void cuda_copy_rows(const Tensor& in, const Tensor& out, const Stream& stream) {
  if (in.dtype() == out.dtype()) {
    copy(in, out, stream);
  } else {
    launch_sum(in, {}, out, stream);
  }
}

void cuda_add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream) {
  launch_sum(a, b, out, stream);
}

void cuda_scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& on) {
  const bool is_vector = vectorizes(x.dim(1), {x.raw(), out.raw()});
  cuda::visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch("scale_kernel", scale_kernel<T>, is_vector ? x.numel() / kVector : x.numel(), on,
           x.data<T>(), weights.data<float>(), out.data<T>(), x.dim(0), x.dim(1), is_vector);
  });
}

void cuda_gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& on) {
  cuda::visit_float(x.dtype(), [&](auto type) {
    cuda::visit_float(gate.dtype(), [&](auto gate_type) {
      using T = decltype(type);
      using G = decltype(gate_type);
      launch("gate_kernel", gate_kernel<T, G>, x.numel() == 0 ? 0 : x.dim(0) * kWarp, on,
             x.data<T>(), gate.data<G>(), out.data<T>(), x.dim(0), x.dim(1));
    });
  });
}

void cuda_clear_rows_after(const Tensor& rows, const Tensor& num_rows, const Stream& on) {
  if (rows.numel() == 0) {
    return;
  }
  const int64_t row_bytes = rows.nbytes() / rows.dim(0);
  const auto clear_by = [&](auto word) {
    using Word = decltype(word);
    const auto size = static_cast<int64_t>(sizeof(Word));
    launch("clear_kernel", clear_kernel<Word>, rows.nbytes() / size, on,
           static_cast<Word*>(rows.raw()), row_bytes / size, rows.nbytes() / size,
           num_rows.data<int32_t>());
  };
  if (row_bytes % 16 == 0 && cuda::is_aligned(rows.raw(), 16)) {
    clear_by(uint4{});
  } else {
    clear_by(uint16_t{});
  }
}

void cuda_fill(const Tensor& tensor, uint32_t bits, const Stream& on) {
  cuda::fill_words(tensor.raw(), tensor.numel(), bits, on.native_handle(), on.device().index);
}

void cuda_fill(const Tensor& tensor, const Tensor& value, const Stream& on) {
  launch("fill_kernel", fill_kernel, tensor.numel(), on, tensor.data<float>(), tensor.numel(),
         value.data<float>());
}

void cuda_copy_counts(const Tensor& from, const Tensor& to, const Stream& on) {
  cuda::copy_words(to.raw(), from.raw(), from.numel(), on.native_handle(), on.device().index);
}

void cuda_map_ids(const Tensor& ids, const Tensor& map, const Tensor& local, const Stream& on) {
  launch("map_ids_kernel", map_ids_kernel, ids.numel(), on, Ids::of(ids), ids.numel(),
         map.data<int32_t>(), map.dim(0), local.data<int32_t>());
}

void cuda_count_rows(const Tensor& row_of_slot,
                     int64_t max_rows,
                     const Tensor& counts,
                     const Stream& on) {
  cuda::fill_zero(counts.raw(), counts.nbytes(), on.native_handle(), on.device().index);
  launch("count_rows_kernel", count_rows_kernel, row_of_slot.numel(), on,
         row_of_slot.data<int32_t>(), row_of_slot.numel(), max_rows, counts.data<int32_t>());
}

void cuda_count_selections(const Tensor& ids, const Tensor& total, const Stream& on) {
  launch("count_selections_kernel", count_selections_kernel, ids.numel(), on, Ids::of(ids),
         ids.numel(), static_cast<unsigned long long*>(total.raw()));
}

void cuda_join_row_scales(const Quantized& q, const Tensor& joined, const Stream& on) {
  launch("join_row_scales_kernel", join_row_scales_kernel, joined.numel(), on,
         static_cast<const uint8_t*>(q.scale.raw()),
         static_cast<const uint8_t*>(q.global_scale.raw()), static_cast<uint8_t*>(joined.raw()),
         q.scale.dim(1), joined.numel());
}

void cuda_add_counts(const Tensor& counts, const Tensor& totals, const Stream& on) {
  launch("add_counts_kernel", add_counts_kernel, counts.numel(), on, counts.data<int32_t>(),
         counts.numel(), totals.data<int64_t>());
}

}  // namespace moebius
