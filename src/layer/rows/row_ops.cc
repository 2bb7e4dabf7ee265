// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/row_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/ids.h"
#include "core/parallel.h"
#include "layer/rows/cuda/rows.h"
#include "moebius/quantize.h"

namespace moebius {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task: about 10 us of work

int64_t rows_per_task(int64_t row_length) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_length));
}

// Calls fn(in's elements, out's elements, begin, end) on threads, for parts of the elements.
template <typename Fn>
void by_parts(const Tensor& in, const Tensor& out, const Stream& stream, const Fn& fn) {
  visit_hidden_dtype(in.dtype(), [&](auto from) {
    visit_hidden_dtype(out.dtype(), [&](auto to) {
      const auto* source = in.data<decltype(from)>();
      auto* target = out.data<decltype(to)>();
      parallel_for(stream, in.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { fn(source, target, begin, end); });
    });
  });
}

// Calls fn(t, row of x, row of out, H) for each row; x and out [T, H] have one dtype.
template <typename Fn>
void by_rows(const Tensor& x, const Tensor& out, const Stream& stream, const Fn& fn) {
  const int64_t hidden = x.dim(1);
  visit_hidden_dtype(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(stream, x.dim(0), rows_per_task(hidden), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        fn(t, static_cast<const T*>(x.data<T>() + t * hidden), out.data<T>() + t * hidden, hidden);
      }
    });
  });
}

template <typename T, typename G>
double gate_dot(const T* row, const G* gate, int64_t hidden) {
  std::array<double, kGateLanes> sums{};
  for (int64_t begin = 0; begin < hidden; begin += kGateLanes) {
    const int64_t n = std::min<int64_t>(kGateLanes, hidden - begin);
    for (int64_t l = 0; l < n; ++l) {
      sums[static_cast<size_t>(l)] += static_cast<double>(static_cast<float>(row[begin + l])) *
                                      static_cast<double>(static_cast<float>(gate[begin + l]));
    }
  }
  for (size_t step = kGateLanes / 2; step > 0; step /= 2) {
    for (size_t l = 0; l < step; ++l) {
      sums[l] += sums[l + step];
    }
  }
  return sums[0];
}

}  // namespace

void expect_hidden_dtype(const Tensor& tensor, std::string_view what, Where where) {
  expect_defined(tensor, what, where);
  expect(
      is_float(tensor.dtype()),
      [&] {
        return fmt::format("{} is {}, expected f32, bf16 or f16", what, name(tensor.dtype()));
      },
      where);
}

void copy_rows(const Tensor& in, const Tensor& out, const Stream& stream) {
  assert(in.shape() == out.shape());
  if (out.device().is_cuda()) {
    return cuda_copy_rows(in, out, stream);
  }
  by_parts(in, out, stream, [](const auto* source, auto* target, int64_t begin, int64_t end) {
    using To = std::remove_reference_t<decltype(*target)>;
    if constexpr (std::is_same_v<decltype(source), const To*>) {
      std::memmove(target + begin, source + begin, static_cast<size_t>(end - begin) * sizeof(To));
    } else {
      for (int64_t i = begin; i < end; ++i) {
        target[i] = static_cast<To>(static_cast<float>(source[i]));
      }
    }
  });
}

void add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream) {
  assert(a.shape() == b.shape() && a.shape() == out.shape() && a.dtype() == b.dtype());
  if (out.device().is_cuda()) {
    return cuda_add_rows(a, b, out, stream);
  }
  by_parts(a, out, stream, [&](const auto* left, auto* sum, int64_t begin, int64_t end) {
    using From = std::remove_cvref_t<decltype(*left)>;
    using To = std::remove_reference_t<decltype(*sum)>;
    const From* right = b.data<From>();
    for (int64_t i = begin; i < end; ++i) {
      sum[i] = static_cast<To>(static_cast<float>(left[i]) + static_cast<float>(right[i]));
    }
  });
}

void scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& stream) {
  assert(x.shape() == out.shape() && x.dtype() == out.dtype() && weights.numel() == x.dim(0));
  if (out.device().is_cuda()) {
    return cuda_scale_rows(x, weights, out, stream);
  }
  by_rows(x, out, stream, [&]<typename T>(int64_t t, const T* row, T* scaled, int64_t hidden) {
    const auto weight = static_cast<float>(static_cast<T>(weights.data<float>()[t]));
    for (int64_t h = 0; h < hidden; ++h) {
      scaled[h] = static_cast<T>(static_cast<float>(row[h]) * weight);
    }
  });
}

void gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream) {
  assert(x.shape() == out.shape() && x.dtype() == out.dtype() && gate.numel() == x.dim(1));
  if (out.device().is_cuda()) {
    return cuda_gate_rows(x, gate, out, stream);
  }
  visit_hidden_dtype(gate.dtype(), [&](auto gate_type) {
    const auto* weights = gate.data<decltype(gate_type)>();
    by_rows(x, out, stream, [&]<typename T>(int64_t, const T* row, T* gated, int64_t hidden) {
      const double dot = gate_dot(row, weights, hidden);
      const auto factor = static_cast<float>(1.0 / (1.0 + std::exp(-dot)));
      for (int64_t h = 0; h < hidden; ++h) {
        gated[h] = static_cast<T>(static_cast<float>(gated[h]) * factor);
      }
    });
  });
}

void fill(const Tensor& tensor, int32_t value, const Stream& stream) {
  if (tensor.device().is_cuda()) {
    return cuda_fill(tensor, static_cast<uint32_t>(value), stream);
  }
  std::fill_n(tensor.data<int32_t>(), tensor.numel(), value);
}

void clear_rows_after(const Tensor& rows, const Tensor& num_rows, const Stream& stream) {
  if (rows.device().is_cuda()) {
    return cuda_clear_rows_after(rows, num_rows, stream);
  }
  const int64_t used = std::clamp<int64_t>(*num_rows.data<int32_t>(), 0, rows.dim(0));
  const Tensor unused = rows.slice(used, rows.dim(0));
  std::fill_n(unused.bytes(), unused.nbytes(), std::byte{});
}

void map_ids(const Tensor& ids,
             const Tensor& expert_map,
             const Tensor& local,
             const Stream& stream) {
  if (ids.device().is_cuda()) {
    return cuda_map_ids(ids, expert_map, local, stream);
  }
  const auto* map = expert_map.data<int32_t>();
  const Ids id = Ids::of(ids);
  const int64_t num_ids = ids.numel();
  for (int64_t i = 0; i < num_ids; ++i) {
    local.data<int32_t>()[i] = id[i] >= 0 && id[i] < expert_map.dim(0) ? map[id[i]] : -1;
  }
}

void join_row_scales(const Quantized& q, const Tensor& joined, const Stream& stream) {
  if (joined.device().is_cuda()) {
    return cuda_join_row_scales(q, joined, stream);
  }
  const auto num_scales = static_cast<size_t>(q.scale.dim(1));
  const size_t step = num_scales + sizeof(float);
  for (int64_t r = 0; r < q.scale.dim(0); ++r) {
    std::byte* row = joined.bytes() + static_cast<size_t>(r) * step;
    std::memcpy(row, q.scale.bytes() + static_cast<size_t>(r) * num_scales, num_scales);
    std::memcpy(row + num_scales, q.global_scale.data<float>() + r, sizeof(float));
  }
}

void count_selections(const Tensor& ids, const Tensor& total, const Stream& stream) {
  if (ids.device().is_cuda()) {
    return cuda_count_selections(ids, total, stream);
  }
  const Ids id = Ids::of(ids);
  const int64_t num_ids = ids.numel();
  int64_t count = 0;
  for (int64_t i = 0; i < num_ids; ++i) {
    count += id[i] >= 0 ? 1 : 0;
  }
  *total.data<int64_t>() += count;
}

void copy_counts(const Tensor& from, const Tensor& to, const Stream& stream) {
  assert(from.shape() == to.shape() && from.dtype() == DType::kI32);
  if (to.device().is_cuda()) {
    return cuda_copy_counts(from, to, stream);
  }
  std::copy_n(from.data<int32_t>(), from.numel(), to.data<int32_t>());
}

void add_counts(const Tensor& counts, const Tensor& totals, const Stream& stream) {
  if (totals.device().is_cuda()) {
    return cuda_add_counts(counts, totals, stream);
  }
  for (int64_t i = 0; i < totals.numel(); ++i) {
    totals.data<int64_t>()[i] += counts.data<int32_t>()[i];
  }
}

void fill(const Tensor& tensor, float value, const Stream& stream) {
  if (tensor.device().is_cuda()) {
    return cuda_fill(tensor, std::bit_cast<uint32_t>(value), stream);
  }
  std::fill_n(tensor.data<float>(), tensor.numel(), value);
}

void fill(const Tensor& tensor, const Tensor& value, const Stream& stream) {
  if (tensor.device().is_cuda()) {
    return cuda_fill(tensor, value, stream);
  }
  std::fill_n(tensor.data<float>(), tensor.numel(), *value.data<float>());
}

}  // namespace moebius
