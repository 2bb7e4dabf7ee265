// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/row_ops.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/parallel.h"

namespace moebius {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task: some 10 us of work

int64_t rows_per_task(int64_t row_length) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_length));
}

}  // namespace

bool is_hidden_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void expect_hidden_dtype(const Tensor& tensor, std::string_view what, Where where) {
  expect_defined(tensor, what, where);
  if (!is_hidden_dtype(tensor.dtype())) {
    expect(false, fmt::format("{} is {}, expected f32, bf16 or f16", what, name(tensor.dtype())),
           where);
  }
}

void copy_rows(const Tensor& in, const Tensor& out, const Stream& stream) {
  assert(in.shape() == out.shape());
  visit_hidden_dtype(in.dtype(), [&](auto from) {
    visit_hidden_dtype(out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const From* source = in.data<From>();
      To* target = out.data<To>();
      parallel_for(stream, in.numel(), kGrain, [&](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<From, To>) {
          std::memmove(target + begin, source + begin,
                       static_cast<size_t>(end - begin) * sizeof(To));
        } else {
          for (int64_t i = begin; i < end; ++i) {
            target[i] = static_cast<To>(static_cast<float>(source[i]));
          }
        }
      });
    });
  });
}

void add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream) {
  assert(a.shape() == b.shape() && a.shape() == out.shape() && a.dtype() == b.dtype());
  visit_hidden_dtype(a.dtype(), [&](auto from) {
    visit_hidden_dtype(out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const From* left = a.data<From>();
      const From* right = b.data<From>();
      To* sum = out.data<To>();
      parallel_for(stream, a.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          sum[i] = static_cast<To>(static_cast<float>(left[i]) + static_cast<float>(right[i]));
        }
      });
    });
  });
}

void scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& stream) {
  assert(x.shape() == out.shape() && x.dtype() == out.dtype() && weights.numel() == x.dim(0));
  const int64_t hidden = x.dim(1);
  visit_hidden_dtype(x.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(stream, x.dim(0), rows_per_task(hidden), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const auto weight = static_cast<float>(static_cast<T>(weights.data<float>()[t]));
        const T* row = x.data<T>() + t * hidden;
        T* scaled = out.data<T>() + t * hidden;
        for (int64_t h = 0; h < hidden; ++h) {
          scaled[h] = static_cast<T>(static_cast<float>(row[h]) * weight);
        }
      }
    });
  });
}

void gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream) {
  assert(x.shape() == out.shape() && x.dtype() == out.dtype() && gate.numel() == x.dim(1));
  const int64_t hidden = x.dim(1);
  visit_hidden_dtype(x.dtype(), [&](auto type) {
    visit_hidden_dtype(gate.dtype(), [&](auto gate_type) {
      using T = decltype(type);
      using G = decltype(gate_type);
      const G* weights = gate.data<G>();
      parallel_for(stream, x.dim(0), rows_per_task(hidden), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const T* row = x.data<T>() + t * hidden;
          T* gated = out.data<T>() + t * hidden;
          double dot = 0.0;
          for (int64_t h = 0; h < hidden; ++h) {
            dot += static_cast<double>(static_cast<float>(row[h])) *
                   static_cast<double>(static_cast<float>(weights[h]));
          }
          const auto factor = static_cast<float>(1.0 / (1.0 + std::exp(-dot)));
          for (int64_t h = 0; h < hidden; ++h) {
            gated[h] = static_cast<T>(static_cast<float>(gated[h]) * factor);
          }
        }
      });
    });
  });
}

}  // namespace moebius
