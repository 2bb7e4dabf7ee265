// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The checks that all implementations share, and the walk over a matrix that implementations on the
// CPU share: which elements form a group, what their scale is, and how threads split the work.
#include "moebius/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/overlap.h"
#include "core/parallel.h"
#include "core/same_device.h"
#include "core/scratch.h"
#include "quant/group_rule.h"
#include "quant/groups.h"
#include "quant/impls.h"

namespace moebius {

namespace quant {

namespace {

constexpr int64_t kElementsPerTask = 1 << 15;
constexpr int64_t kElementsAtATime = 1 << 13;  // their codes and values stay in L1
constexpr int64_t kMaxTasksOfMaximum = 256;

void expect_float_matrix(const Tensor& tensor, std::string_view what) {
  expect_defined(tensor, what);
  expect(tensor.num_dims() == 2 && is_float(tensor.dtype()), [&] {
    return fmt::format("{} is {} {}, expected a matrix of f32, bf16 or f16", what,
                       name(tensor.dtype()), to_string(tensor.shape()));
  });
}

void expect_like(
    const Tensor& tensor, const Shape& shape, DType dtype, Device device, std::string_view what) {
  expect_shape(tensor, shape, what);
  expect_dtype(tensor, dtype, what);
  expect_on(tensor, device, what);
}

void expect_quantized(
    const Quantized& q, const QuantizeSpec& spec, int64_t rows, int64_t cols, Device device) {
  const Support support = quantize_supported(spec, rows, cols);
  expect(support.ok, support.reason);
  for_each_tensor(spec, rows, cols,
                  [&](auto tensor, const Shape& shape, DType dtype, std::string_view what) {
                    expect_like(q.*tensor, shape, dtype, device, what);
                  });
}

// The address of element (row, col).  REQUIRES: the element starts on a byte boundary.
std::byte* element(const Tensor& t, int64_t row, int64_t col) {
  return t.bytes() + row * row_bytes(t.dtype(), t.dim(1)) + col * bits(t.dtype()) / 8;
}
uint8_t* code(const Tensor& t, int64_t row, int64_t col) {
  return reinterpret_cast<uint8_t*>(element(t, row, col));
}

// The largest |x|, without NaN elements.
float absmax_of(const RowKernels& kernels, const Tensor& x, const Stream& stream) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  const int64_t grain =
      std::max({int64_t{1}, kElementsPerTask / cols, ceil_div(rows, kMaxTasksOfMaximum)});
  std::array<float, kMaxTasksOfMaximum> maxima{};
  parallel_for(stream, rows, grain, [&](int64_t begin, int64_t end) {
    Range range;
    // The rows are contiguous, so the kernel can treat them as one long row.
    const int64_t n = (end - begin) * cols;
    kernels.range(element(x, begin, 0), x.dtype(), n, n, &range);
    maxima[static_cast<size_t>(begin / grain)] = range.absmax();
  });
  return *std::max_element(maxima.begin(), maxima.end());
}

// The scale of the whole tensor that the caller gave; undefined when there is none.
Tensor given_tensor_scale(const QuantizeSpec& spec,
                          Device device,
                          const Tensor& static_scale,
                          const Tensor& global_scale) {
  if (static_scale.defined()) {
    expect(spec.group.is_per_tensor(), [&] {
      return fmt::format(
          "a static scale is given with groups of {{{}, {}}}, expected per tensor "
          "{{-1, -1}}",
          spec.group.row, spec.group.col);
    });
    expect_like(static_scale, {1}, DType::kF32, device, "static scale");
    return static_scale;
  }
  if (global_scale.defined()) {
    expect(spec.format == QuantFormat::kNvfp4, [&] {
      return fmt::format("a global scale is given with {}, expected nvfp4", name(spec.format));
    });
    expect(!spec.global_scale_per_row, "a global scale is given, but every row has its own");
    expect_like(global_scale, {1}, DType::kF32, device, "global scale");
  }
  return global_scale;
}

// Whether one scale serves all rows.
bool has_tensor_scale(const QuantizeSpec& spec) {
  return spec.group.is_per_tensor() ||
         (spec.format == QuantFormat::kNvfp4 && !spec.global_scale_per_row);
}

// The scale of the whole tensor, given or from the maximum; 0 when the spec has no such scale.
float resolve_tensor_scale(const RowKernels& kernels,
                           const Tensor& x,
                           const QuantizeSpec& spec,
                           const Stream& stream,
                           const Tensor& given) {
  if (given.defined()) {
    return given.data<float>()[0];
  }
  if (has_tensor_scale(spec)) {
    return tensor_scale(spec.format, absmax_of(kernels, x, stream));
  }
  return 0.0f;
}

// The layout of one matrix, for quantizing and dequantizing it.
struct Walk {
  const RowKernels& kernels;
  const QuantizeSpec& spec;
  Groups groups;  // per tensor: one row at a time, and all rows use scale 0
  bool is_per_tensor;

  Walk(const RowKernels& row_kernels, const QuantizeSpec& s, int64_t rows, int64_t cols)
      : kernels(row_kernels),
        spec(s),
        groups(groups_of(s.group.is_per_tensor() ? GroupShape::per_token() : s.group, rows, cols)),
        is_per_tensor(s.group.is_per_tensor()) {}

  // Rows in whole row groups, with about that many elements.
  int64_t rows_per_task(int64_t cols) const { return rows_of(kElementsPerTask, cols); }
  int64_t rows_at_a_time(int64_t cols) const { return rows_of(kElementsAtATime, cols); }

  int64_t scale_index(int64_t row_group, int64_t col_group) const {
    return is_per_tensor ? 0 : row_group * groups.num_col_groups + col_group;
  }

 private:
  int64_t rows_of(int64_t elements, int64_t cols) const {
    return std::max<int64_t>(1, elements / (cols * groups.group_rows)) * groups.group_rows;
  }
};

// A block of memory for codes and scales of some rows, which are needed for a moment only.
class CodeRoom {
 public:
  CodeRoom(const QuantizeSpec& spec, int64_t rows, int64_t cols) : spec_(spec), cols_(cols) {
    Scratch measured;
    take(measured, rows);
    bytes_.resize(static_cast<size_t>(measured.bytes()));
  }

  // Tensors for `rows` rows; the next call returns the same memory.
  Quantized of_rows(int64_t rows) {
    Scratch scratch(bytes_.data());
    return take(scratch, rows);
  }

 private:
  Quantized take(Scratch& scratch, int64_t rows) const {
    Quantized q;
    for_each_tensor(spec_, rows, cols_,
                    [&](auto tensor, const Shape& shape, DType dtype, std::string_view) {
                      q.*tensor = scratch.take(shape, dtype);
                    });
    return q;
  }

  const QuantizeSpec& spec_;
  int64_t cols_;
  std::vector<std::byte> bytes_;
};

void store_group(const Quantized& out,
                 const QuantizeSpec& spec,
                 int64_t i,
                 const GroupCode& group) {
  if (out.scale.dtype() == DType::kF32) {
    out.scale.data<float>()[i] = group.scale;
  } else {
    out.scale.data<uint8_t>()[i] = group.scale_code;
  }
  if (spec.asymmetric) {
    out.zero_point.data<uint8_t>()[i] = static_cast<uint8_t>(group.zero_point);
  }
}

// Quantizes the groups [first, last) along the columns of one row group.
void quantize_groups(const Walk& walk,
                     const Tensor& x,
                     const Quantized& out,
                     int64_t row_group,
                     int64_t first,
                     int64_t last,
                     float tensor_scale) {
  const Groups& g = walk.groups;
  const int64_t row_begin = row_group * g.group_rows;
  const int64_t row_end = std::min(x.dim(0), row_begin + g.group_rows);
  const int64_t col = first * g.group_cols;
  const int64_t n = std::min(x.dim(1), last * g.group_cols) - col;

  std::array<Range, kMaxGroups> ranges{};
  if (!walk.is_per_tensor) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      walk.kernels.range(element(x, row, col), x.dtype(), n, g.group_cols, ranges.data());
    }
  }
  std::array<float, kMaxGroups> factors;
  std::array<float, kMaxGroups> zero_points;
  for (int64_t j = 0; j < last - first; ++j) {
    const auto i = static_cast<size_t>(j);
    const GroupCode group = group_code(walk.spec, ranges[i], tensor_scale);
    factors[i] = group.factor;
    zero_points[i] = group.zero_point;
    if (!walk.is_per_tensor) {
      store_group(out, walk.spec, walk.scale_index(row_group, first + j), group);
    }
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    walk.kernels.encode({encode_of(walk.spec), element(x, row, col), x.dtype(), n, g.group_cols,
                         factors.data(), zero_points.data(), code(out.values, row, col)});
  }
}

// Finds and stores the global scale of a row.
float put_row_global_scale(const Walk& walk, const Tensor& x, const Quantized& out, int64_t row) {
  Range range;
  walk.kernels.range(element(x, row, 0), x.dtype(), x.dim(1), x.dim(1), &range);
  const float scale = row_global_scale(range.absmax());
  out.global_scale.data<float>()[row] = scale;
  return scale;
}

// Quantizes all of x on the calling thread.  REQUIRES: the outputs are valid; x starts at a row
// group.
void quantize_rows(const Walk& walk, const Tensor& x, const Quantized& out, float tensor_scale) {
  const Groups& g = walk.groups;
  for (int64_t row_group = 0; row_group * g.group_rows < x.dim(0); ++row_group) {
    if (walk.spec.global_scale_per_row) {
      tensor_scale = put_row_global_scale(walk, x, out, row_group);
    }
    for (int64_t first = 0; first < g.num_col_groups; first += kMaxGroups) {
      quantize_groups(walk, x, out, row_group, first,
                      std::min(g.num_col_groups, first + kMaxGroups), tensor_scale);
    }
  }
}

void store_tensor_scale(const Quantized& out, const QuantizeSpec& spec, float tensor_scale) {
  if (spec.group.is_per_tensor()) {
    out.scale.data<float>()[0] = tensor_scale;
  }
  if (spec.format == QuantFormat::kNvfp4 && !spec.global_scale_per_row) {
    out.global_scale.data<float>()[0] = tensor_scale;
  }
}

float decode_scale(const Quantized& q, int64_t row, int64_t i) {
  switch (q.scale.dtype()) {
    case DType::kE8M0:
      return e8m0_to_float(q.scale.data<uint8_t>()[i]);
    case DType::kF8E4M3:
      return static_cast<float>(q.scale.data<F8E4M3>()[i]) /
             q.global_scale.data<float>()[q.global_scale.numel() > 1 ? row : 0];
    default:
      return q.scale.data<float>()[i];
  }
}

float decode_zero_point(const Quantized& q, const QuantizeSpec& spec, int64_t i) {
  if (spec.format != QuantFormat::kInt4) {
    return 0.0f;
  }
  return spec.asymmetric ? static_cast<float>(q.zero_point.data<uint8_t>()[i]) : 8.0f;
}

// Dequantizes rows [row_begin, row_end) of q into the same rows of out.
void dequantize_rows(
    const Walk& walk, const Quantized& q, const Tensor& out, int64_t row_begin, int64_t row_end) {
  const Groups& g = walk.groups;
  std::array<float, kMaxGroups> scales;
  std::array<float, kMaxGroups> zero_points;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t first = 0; first < g.num_col_groups; first += kMaxGroups) {
      const int64_t last = std::min(g.num_col_groups, first + kMaxGroups);
      for (int64_t j = first; j < last; ++j) {
        const int64_t i = walk.scale_index(row / g.group_rows, j);
        scales[static_cast<size_t>(j - first)] = decode_scale(q, row, i);
        zero_points[static_cast<size_t>(j - first)] = decode_zero_point(q, walk.spec, i);
      }
      const int64_t col = first * g.group_cols;
      const int64_t n = std::min(out.dim(1), last * g.group_cols) - col;
      walk.kernels.decode({code_of(walk.spec.format), code(q.values, row, col), n, g.group_cols,
                           scales.data(), zero_points.data(), element(out, row, col), out.dtype()});
    }
  }
}

}  // namespace

}  // namespace quant

void quantize(const Tensor& x,
              const QuantizeSpec& spec,
              Quantized& out,
              const Stream& stream,
              const Tensor& static_scale,
              const Tensor& global_scale) {
  quant::expect_float_matrix(x, "x");
  quant::expect_quantized(out, spec, x.dim(0), x.dim(1), x.device());
  quant::for_each_tensor(spec, x.dim(0), x.dim(1),
                         [&](auto tensor, const Shape&, DType, std::string_view what) {
                           expect_writable(out.*tensor, what);
                           expect_apart(out.*tensor, x, what, "x");
                         });
  expect_stream(stream, x.device());
  const Tensor given = quant::given_tensor_scale(spec, x.device(), static_scale, global_scale);
  const quant::Impl& impl = quant::select_quant_impl(x.device());
  if (impl.device_kernels != nullptr) {
    impl.device_kernels->quantize(x, spec, out, given, stream);
    return;
  }
  const quant::RowKernels& kernels = *impl.kernels;
  const float scale = quant::resolve_tensor_scale(kernels, x, spec, stream, given);
  quant::store_tensor_scale(out, spec, scale);

  const quant::Walk walk(kernels, spec, x.dim(0), x.dim(1));
  parallel_for(stream, x.dim(0), walk.rows_per_task(x.dim(1)), [&](int64_t begin, int64_t end) {
    Quantized part = out;
    part.values = out.values.slice(begin, end);
    if (!walk.is_per_tensor) {
      const int64_t first = begin / walk.groups.group_rows;
      const int64_t last = ceil_div(end, walk.groups.group_rows);
      part.scale = out.scale.slice(first, last);
      part.zero_point = spec.asymmetric ? out.zero_point.slice(first, last) : Tensor{};
      part.global_scale =
          spec.global_scale_per_row ? out.global_scale.slice(begin, end) : out.global_scale;
    }
    quant::quantize_rows(walk, x.slice(begin, end), part, scale);
  });
}

Quantized quantize(const Tensor& x, const QuantizeSpec& spec, const Stream& stream) {
  quant::expect_float_matrix(x, "x");
  Quantized out = allocate_quantized(spec, x.dim(0), x.dim(1), x.device());
  quantize(x, spec, out, stream);
  return out;
}

void dequantize(const Quantized& q,
                const QuantizeSpec& spec,
                const Tensor& out,
                const Stream& stream) {
  quant::expect_float_matrix(out, "out");
  quant::expect_quantized(q, spec, out.dim(0), out.dim(1), out.device());
  expect_writable(out, "out");
  quant::for_each_tensor(spec, out.dim(0), out.dim(1),
                         [&](auto tensor, const Shape&, DType, std::string_view what) {
                           expect_apart(out, q.*tensor, "out", what);
                         });
  expect_stream(stream, out.device());
  const quant::Impl& impl = quant::select_quant_impl(out.device());
  if (impl.device_kernels != nullptr) {
    impl.device_kernels->dequantize(q, spec, out, stream);
    return;
  }
  const quant::Walk walk(*impl.kernels, spec, out.dim(0), out.dim(1));
  parallel_for(stream, out.dim(0), walk.rows_per_task(out.dim(1)), [&](int64_t begin, int64_t end) {
    quant::dequantize_rows(walk, q, out, begin, end);
  });
}

void quantize_dequantize(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& out,
                         const Stream& stream,
                         const Tensor& static_scale,
                         const Tensor& global_scale) {
  quant::expect_float_matrix(x, "x");
  quant::expect_float_matrix(out, "out");
  expect_on(out, x.device(), "out");
  expect_writable(out, "out");
  expect_stream(stream, x.device());
  expect_shape(out, x.shape(), "out");
  const bool is_same = x.raw() == out.raw() && x.dtype() == out.dtype();
  expect(is_same || !overlap(x, out), "x and out overlap without being the same tensor");
  const Support support = quantize_supported(spec, x.dim(0), x.dim(1));
  expect(support.ok, support.reason);
  const Tensor given = quant::given_tensor_scale(spec, x.device(), static_scale, global_scale);
  const quant::Impl& impl = quant::select_quant_impl(x.device());
  if (impl.device_kernels != nullptr) {
    impl.device_kernels->quantize_dequantize(x, spec, out, given, stream);
    return;
  }
  const quant::RowKernels& kernels = *impl.kernels;
  const float scale = quant::resolve_tensor_scale(kernels, x, spec, stream, given);

  const quant::Walk walk(kernels, spec, x.dim(0), x.dim(1));
  parallel_for(stream, x.dim(0), walk.rows_per_task(x.dim(1)), [&](int64_t begin, int64_t end) {
    const int64_t most = std::min(end - begin, walk.rows_at_a_time(x.dim(1)));
    quant::CodeRoom room(spec, most, x.dim(1));
    for (int64_t first = begin; first < end; first += most) {
      const int64_t last = std::min(end, first + most);
      const Quantized part = room.of_rows(last - first);
      quant::store_tensor_scale(part, spec, scale);
      quant::quantize_rows(walk, x.slice(first, last), part, scale);
      quant::dequantize_rows(walk, part, out.slice(first, last), 0, last - first);
    }
  });
}

}  // namespace moebius
