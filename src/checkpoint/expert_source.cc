// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/expert_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

// dst[r][c] = src[c][r], in tiles that fit the caches; Word has the size of an element.
template <typename Word>
void transpose(const std::byte* src,
               int64_t src_stride,
               std::byte* dst,
               int64_t dst_stride,
               int64_t rows,
               int64_t cols) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const int64_t r1 = std::min(rows, r0 + kTile);
      const int64_t c1 = std::min(cols, c0 + kTile);
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = c0; c < c1; ++c) {
          // Why memcpy: the source may be unaligned.
          std::memcpy(dst + r * dst_stride + c * static_cast<int64_t>(sizeof(Word)),
                      src + c * src_stride + r * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
        }
      }
    }
  }
}

}  // namespace

void expect_file_shape(const SafetensorsEntry& entry,
                       const Shape& expected,
                       const std::string& label) {
  if (entry.shape != expected) {
    throw InvalidArgument(fmt::format("{} has shape {}, config.json makes it {}", label,
                                      to_string(entry.shape), to_string(expected)));
  }
}

std::string tensor_label(const Safetensors& files, std::string_view tensor) {
  return fmt::format("{}: tensor {}", files.file_of(tensor).string(), in_quotes(tensor));
}

Range in_units(Range range, int64_t unit, int64_t total, const std::string& what) {
  if (unit == 0) {
    return {0, 1};
  }
  if (range.begin % unit != 0 || (range.end % unit != 0 && range.end != total)) {
    throw InvalidArgument(fmt::format("{}: the slice [{}, {}) of {} cuts through blocks of {}",
                                      what, range.begin, range.end, total, unit));
  }
  return {range.begin / unit, num_units(range.end, unit)};
}

void StoredMatrix::copy_to(std::byte* dst,
                           int64_t dst_stride,
                           Range take_rows,
                           Range take_cols) const {
  const int64_t elem_bytes = bits(dtype) / 8;
  const Range outer = is_transposed ? take_cols : take_rows;
  const Range inner = is_transposed ? take_rows : take_cols;
  const std::byte* src =
      files->bytes(tensor).bytes() + offset + outer.begin * stride + inner.begin * elem_bytes;
  if (!is_transposed) {
    const auto row_bytes = static_cast<size_t>(inner.size() * elem_bytes);
    for (int64_t r = 0; r < outer.size(); ++r) {
      std::memcpy(dst + r * dst_stride, src + r * stride, row_bytes);
    }
  } else if (elem_bytes == 2) {
    transpose<uint16_t>(src, stride, dst, dst_stride, take_rows.size(), take_cols.size());
  } else {
    assert(elem_bytes == 4);
    transpose<uint32_t>(src, stride, dst, dst_stride, take_rows.size(), take_cols.size());
  }
}

void StoredMatrix::release(Range take_rows, Range take_cols) const {
  const Range outer = is_transposed ? take_cols : take_rows;
  const Range inner = is_transposed ? take_rows : take_cols;
  if (outer.size() > 0) {
    files->release(tensor, offset + outer.begin * stride,
                   offset + (outer.end - 1) * stride + inner.end * bits(dtype) / 8);
  }
}

ExpertSource ExpertSource::routed(const Safetensors& files,
                                  const ModelConfig& config,
                                  const std::string& prefix,
                                  int64_t first) {
  ExpertSource source(files, config);
  source.path_ = prefix + ".experts";
  source.num_experts_ = config.info.num_experts;
  source.hidden_ = config.info.hidden;
  source.intermediate_ = config.info.intermediate;
  const std::string fused = source.path_ + ".gate_up_proj";
  // Experts with alternating rows of gate and up exist in fused form only.
  source.is_fused_ = config.activation.interleaved || files.contains(fused);
  source.scheme_ =
      source.scheme_of(source.is_fused_ ? fused : source.name(first, Projection::kGate, ".weight"));
  return source;
}

ExpertSource ExpertSource::shared(const Safetensors& files,
                                  const ModelConfig& config,
                                  const std::string& prefix) {
  ExpertSource source(files, config);
  source.path_ = fmt::format("{}.{}", prefix, config.family->shared);
  source.is_routed_ = false;
  source.hidden_ = config.info.hidden;
  source.intermediate_ = config.info.shared_intermediate;
  source.scheme_ = source.scheme_of(source.name(0, Projection::kGate, ".weight"));
  return source;
}

WeightScheme ExpertSource::scheme_of(const std::string& weight) const {
  const bool is_unquantized = files_->contains(weight) && is_float(files_->entry(weight).dtype);
  return is_unquantized ? WeightScheme{} : config_->scheme;
}

int64_t ExpertSource::rows(Projection projection) const {
  return projection == Projection::kDown     ? hidden_
         : projection == Projection::kGateUp ? 2 * intermediate_
                                             : intermediate_;
}

int64_t ExpertSource::cols(Projection projection) const {
  return projection == Projection::kDown ? intermediate_ : hidden_;
}

std::string ExpertSource::name(int64_t expert,
                               Projection projection,
                               std::string_view suffix) const {
  if (is_fused_) {
    return fmt::format("{}.{}{}", path_,
                       projection == Projection::kDown ? "down_proj" : "gate_up_proj", suffix);
  }
  // Modules of shared experts have the default names in every family.
  const Family family = is_routed_ ? *config_->family : Family{};
  const std::string_view module = projection == Projection::kGate ? family.gate
                                  : projection == Projection::kUp ? family.up
                                                                  : family.down;
  return is_routed_ ? fmt::format("{}.{}.{}{}", path_, expert, module, suffix)
                    : fmt::format("{}.{}{}", path_, module, suffix);
}

StoredMatrix ExpertSource::describe(const std::string& tensor, DType expected) const {
  const SafetensorsEntry& entry = files_->entry(tensor);
  StoredMatrix result;
  result.files = files_;
  result.tensor = tensor;
  result.label = tensor_label(*files_, tensor);
  result.dtype = entry.dtype;
  const bool fits = is_float(expected) ? is_float(entry.dtype)
                                       : entry.dtype_name == safetensors_dtype(expected).name;
  if (!fits) {
    throw InvalidArgument(fmt::format(
        "{} has dtype {}, expected {} (quantization: {})", result.label, entry.dtype_name,
        is_float(expected) ? "BF16, F16 or F32" : safetensors_dtype(expected).name, scheme_.name));
  }
  return result;
}

StoredMatrix ExpertSource::matrix(int64_t expert,
                                  Projection projection,
                                  const StoredPart& part) const {
  assert(part.is_matrix());
  return is_fused_ ? fused_matrix(expert, projection, part)
                   : module_matrix(expert, projection, part);
}

StoredMatrix ExpertSource::module_matrix(int64_t expert,
                                         Projection projection,
                                         const StoredPart& part) const {
  StoredMatrix result = describe(name(expert, projection, part.suffix), part.stored);
  result.rows = num_units(rows(projection), part.row_unit);
  result.cols = num_units(cols(projection), part.col_unit);
  result.stride = result.cols * bits(result.dtype) / 8;
  const SafetensorsEntry& entry = files_->entry(result.tensor);
  // Scales per row may be stored without the dimension of 1.
  if (result.cols != 1 || entry.shape != Shape{result.rows}) {
    expect_file_shape(entry, {result.rows, result.cols}, result.label);
  }
  return result;
}

StoredMatrix ExpertSource::fused_matrix(int64_t expert,
                                        Projection projection,
                                        const StoredPart& part) const {
  const bool is_float_weight = scheme_.format == WeightFormat::kFloat;
  StoredMatrix result =
      describe(name(expert, projection, is_float_weight ? "" : part.suffix), part.stored);
  if (part.row_unit > 1) {  // rows of gate and of up might share a value
    throw Unsupported(fmt::format("{} has a value for {} rows (quantization: {}), supported: 1",
                                  result.label, part.row_unit, scheme_.name));
  }
  const int64_t halves = projection == Projection::kGate || projection == Projection::kUp ? 2 : 1;
  const int64_t all_rows = halves * rows(projection);
  result.rows = rows(projection);
  result.cols = num_units(cols(projection), part.col_unit);
  result.is_transposed = is_float_weight && config_->family->is_transposed;
  const SafetensorsEntry& entry = files_->entry(result.tensor);
  const int64_t elem_bytes = bits(result.dtype) / 8;
  const int64_t first_row = projection == Projection::kUp ? result.rows : 0;
  if (result.is_transposed) {
    expect_file_shape(entry, {num_experts_, result.cols, all_rows}, result.label);
    result.stride = all_rows * elem_bytes;
    result.offset = expert * result.cols * result.stride + first_row * elem_bytes;
    return result;
  }
  if (part.suffix == "_blocks") {
    constexpr int64_t kBlockBytes = 16;  // 32 elements
    expect_file_shape(entry, {num_experts_, all_rows, num_units(cols(projection), 32), kBlockBytes},
                      result.label);
    expect_multiple_of(cols(projection), 32, result.label + ": columns");
  } else {
    expect_file_shape(entry, {num_experts_, all_rows, result.cols}, result.label);
  }
  result.stride = result.cols * elem_bytes;
  result.offset = (expert * all_rows + first_row) * result.stride;
  return result;
}

StoredMatrix ExpertSource::bias(int64_t expert, Projection projection) const {
  StoredMatrix result = describe(name(expert, projection, "_bias"), DType::kBF16);
  result.rows = 1;
  result.cols = rows(projection);
  expect_file_shape(files_->entry(result.tensor), {num_experts_, result.cols}, result.label);
  result.stride = result.cols * bits(result.dtype) / 8;
  result.offset = expert * result.stride;
  return result;
}

float ExpertSource::scalar(int64_t expert, Projection projection, const StoredPart& part) const {
  const StoredMatrix found = describe(name(expert, projection, part.suffix), part.stored);
  const Tensor value = files_->tensor(found.tensor);
  if (value.numel() != 1) {
    throw InvalidArgument(
        fmt::format("{} has shape {}, expected one value", found.label, to_string(value.shape())));
  }
  const float result = get_float(value, 0);
  // A global scale may be 0, as all weights may be.  An activation is divided by its scale, whose
  // inverse must be finite.
  const float least =
      part.role == PartRole::kGlobalScale ? 0.0f : std::numeric_limits<float>::min();
  if (!std::isfinite(result) || result < least) {
    throw InvalidArgument(fmt::format("{} is {}, expected a finite value of at least {}",
                                      found.label, result, least));
  }
  return result;
}

float ExpertSource::alpha(int64_t expert,
                          Projection projection,
                          const StoredPart& part,
                          float input_scale) const {
  const float global = scalar(expert, projection, part);
  const float result = global * input_scale;
  if (!std::isfinite(result)) {
    throw InvalidArgument(fmt::format("{} is {}, expected a finite product with the input scale {}",
                                      tensor_label(*files_, name(expert, projection, part.suffix)),
                                      global, input_scale));
  }
  return result;
}

void ExpertSource::check_weight_shape(int64_t expert,
                                      Projection projection,
                                      const StoredPart& part) const {
  const std::string tensor = name(expert, projection, part.suffix);
  const StoredMatrix found = describe(tensor, part.stored);
  expect_file_shape(files_->entry(tensor), {2}, found.label);
  const Tensor value = files_->tensor(tensor);
  const int64_t* dims = value.data<int64_t>();
  if (dims[0] != rows(projection) || dims[1] != cols(projection)) {
    throw InvalidArgument(fmt::format("{} is [{}, {}], config.json makes it [{}, {}]", found.label,
                                      dims[0], dims[1], rows(projection), cols(projection)));
  }
}

}  // namespace moebius::checkpoint
