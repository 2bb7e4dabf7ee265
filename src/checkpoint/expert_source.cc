// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/expert_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/unpack.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

// Whether two shapes differ in dimensions of 1 only, which do not change where elements lie.
bool same_but_ones(const Shape& a, const Shape& b) {
  const auto without_ones = [](const Shape& shape) {
    std::vector<int64_t> dims;
    for (int i = 0; i < shape.size(); ++i) {
      if (shape[i] != 1) {
        dims.push_back(shape[i]);
      }
    }
    return dims;
  };
  return without_ones(a) == without_ones(b);
}

// Scales and zero points may be stored with or without dimensions of 1.
void expect_part_shape(const SafetensorsEntry& entry,
                       const StoredPart& part,
                       const Shape& expected,
                       const std::string& label) {
  if (part.role == PartRole::kWeight || !same_but_ones(entry.shape, expected)) {
    expect_file_shape(entry, expected, label);
  }
}

// A suffix as fused tensors have it: "experts.gate_up_proj" has ".weight", and
// "experts.gate_up_proj_scale_inv" has ".weight_scale_inv".
std::string_view fused_suffix(std::string_view suffix) {
  constexpr std::string_view kWeight = ".weight";
  return suffix.starts_with(kWeight) ? suffix.substr(kWeight.size()) : suffix;
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
  } else {
    transpose_elements(elem_bytes, src, stride, dst, dst_stride,
                       {take_rows.size(), take_cols.size()});
  }
}

Range StoredMatrix::span(Range take_rows, Range take_cols) const {
  const Range outer = is_transposed ? take_cols : take_rows;
  const Range inner = is_transposed ? take_rows : take_cols;
  const int64_t elem_bytes = bits(dtype) / 8;
  return outer.size() > 0 ? Range{offset + outer.begin * stride + inner.begin * elem_bytes,
                                  offset + (outer.end - 1) * stride + inner.end * elem_bytes}
                          : Range{offset, offset};
}

void StoredMatrix::will_read(Range take_rows, Range take_cols) const {
  const Range bytes = span(take_rows, take_cols);
  files->will_read(tensor, bytes.begin, bytes.end);
  files->count_read(take_rows.size() * take_cols.size() * bits(dtype) / 8);
}

void StoredMatrix::release(Range take_rows, Range take_cols) const {
  const Range bytes = span(take_rows, take_cols);
  files->release(tensor, bytes.begin, bytes.end);
}

ExpertSource ExpertSource::routed(const Safetensors& files,
                                  const ModelConfig& config,
                                  const LayerNames& names,
                                  int64_t first) {
  ExpertSource source(files, config);
  source.names_ = names.experts;
  source.num_experts_ = config.info.num_experts;
  source.hidden_ = config.info.hidden;
  source.intermediate_ = config.info.intermediate;
  // Experts with alternating rows of gate and up exist in fused form only.
  if (config.activation.interleaved && source.names_.fused_up.empty()) {
    source.names_.fused_up = source.names_.path + ".gate_up_proj";
    source.names_.fused_down = source.names_.path + ".down_proj";
  }
  source.is_fused_ = !source.names_.fused_up.empty();
  source.read_scheme(first);
  source.is_transposed_ = source.is_fused_ && source.finds_transposed();
  return source;
}

ExpertSource ExpertSource::shared(const Safetensors& files,
                                  const ModelConfig& config,
                                  const LayerNames& names) {
  ExpertSource source(files, config);
  source.names_ = names.shared;
  source.is_routed_ = false;
  source.hidden_ = config.info.hidden;
  source.intermediate_ = config.info.shared_intermediate;
  source.is_fused_ = !source.names_.fused_up.empty();
  source.read_scheme(0);
  return source;
}

bool ExpertSource::finds_transposed() const {
  if (scheme_.stored != WeightFormat::kFloat && scheme_.stored != WeightFormat::kFp8Channel) {
    return false;
  }
  const int64_t up_rows = is_gated() ? 2 * intermediate_ : intermediate_;
  for (const auto& [projection, rows, cols] : {std::tuple(Projection::kUp, up_rows, hidden_),
                                               {Projection::kDown, hidden_, intermediate_}}) {
    const std::string tensor = name(0, projection, ".weight");
    if (rows == cols || !files_->contains(tensor)) {
      continue;
    }
    const Shape& shape = files_->entry(tensor).shape;
    if (shape == Shape{num_experts_, rows, cols} || shape == Shape{num_experts_, cols, rows}) {
      return shape == Shape{num_experts_, cols, rows};
    }
  }
  return config_->family->is_transposed;
}

WeightScheme ExpertSource::scheme_of(const std::string& module, const std::string& weight) const {
  const bool is_unquantized = files_->contains(weight) && is_float(files_->entry(weight).dtype);
  return is_unquantized ? WeightScheme{} : config_->quantization.of(module);
}

void ExpertSource::read_scheme(int64_t expert) {
  const std::vector<Projection> projections =
      is_gated() ? std::vector{Projection::kGate, Projection::kUp, Projection::kDown}
                 : std::vector{Projection::kUp, Projection::kDown};
  const auto of = [&](Projection projection) {
    return scheme_of(name(expert, projection, ""), name(expert, projection, ".weight"));
  };
  scheme_ = of(projections.front());
  for (const Projection projection : projections) {
    const WeightScheme other = of(projection);
    if (other != scheme_ && (other.format || scheme_.format)) {
      throw Unsupported(fmt::format(
          "{}: quantization_config makes {} {}, but {} {}, supported: one format for the experts "
          "of a layer",
          config_->file, in_quotes(name(expert, projections.front(), "")), scheme_.name,
          in_quotes(name(expert, projection, "")), other.name));
    }
  }
  parts_ = stored_parts(scheme_, DType::kBF16);
  for (StoredPart& part : parts_) {
    const auto found = std::find_if(part.suffixes.begin(), part.suffixes.end(), [&](auto suffix) {
      return files_->contains(name(expert, projections.front(), suffix));
    });
    part.suffixes = {found == part.suffixes.end() ? part.suffixes.front() : *found};
  }
}

std::string ExpertSource::scheme_text() const {
  return fmt::format("(quantization: {})", scheme_.name);
}

const StoredPart* ExpertSource::part(PartRole role) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const StoredPart& part) { return part.role == role; });
  return found == parts_.end() ? nullptr : &*found;
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
    return fmt::format("{}{}",
                       projection == Projection::kDown ? names_.fused_down : names_.fused_up,
                       names_.has_fused_modules ? suffix : fused_suffix(suffix));
  }
  const ExpertModules& modules = names_.modules;
  const std::string_view module = projection == Projection::kGate ? modules.gate
                                  : projection == Projection::kUp ? modules.up
                                                                  : modules.down;
  return is_routed_ ? fmt::format("{}.{}.{}{}", names_.path, expert, module, suffix)
                    : fmt::format("{}.{}{}", names_.path, module, suffix);
}

StoredMatrix ExpertSource::describe(const std::string& tensor, const StoredPart& part) const {
  const SafetensorsEntry& entry = files_->entry(tensor);
  StoredMatrix result;
  result.files = files_;
  result.tensor = tensor;
  result.label = tensor_label(*files_, tensor);
  result.dtype = entry.dtype;
  const std::string_view expected = safetensors_dtype(part.dtype).name;
  const bool is_scale = part.role == PartRole::kScale;
  const bool is_e8m0 = entry.dtype == DType::kE8M0 || entry.dtype_name == "U8";
  std::string others;
  bool fits = entry.dtype_name == expected;
  if (is_float(part.dtype)) {
    // Scales of blocks may be powers of two.
    const bool takes_e8m0 = is_scale && scheme_.stored == WeightFormat::kFp8Block;
    fits = is_float(entry.dtype) || (takes_e8m0 && is_e8m0);
    others = takes_e8m0 ? "BF16, F16, F32, F8_E8M0 or U8" : "BF16, F16 or F32";
  } else if (part.dtype == DType::kU8) {
    // Bytes of two e2m1 have either sign, and e8m0 has a name of its own.
    fits = fits || (is_scale ? is_e8m0 : entry.dtype == DType::kI8);
  }
  if (!fits) {
    throw InvalidArgument(fmt::format("{} has dtype {}, expected {} {}", result.label,
                                      entry.dtype_name, others.empty() ? expected : others,
                                      scheme_text()));
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
  StoredMatrix result = describe(name(expert, projection, part.suffixes.front()), part);
  result.rows = num_units(rows(projection), part.row_unit);
  result.cols = num_units(cols(projection), part.col_unit);
  result.is_transposed = part.is_transposed;
  result.stride = (part.is_transposed ? result.rows : result.cols) * bits(result.dtype) / 8;
  const SafetensorsEntry& entry = files_->entry(result.tensor);
  const Shape expected =
      part.is_transposed ? Shape{result.cols, result.rows} : Shape{result.rows, result.cols};
  expect_part_shape(entry, part, expected, result.label);
  return result;
}

StoredMatrix ExpertSource::fused_matrix(int64_t expert,
                                        Projection projection,
                                        const StoredPart& part) const {
  StoredMatrix result = describe(name(expert, projection, part.suffixes.front()), part);
  const bool is_half =
      is_gated() && (projection == Projection::kGate || projection == Projection::kUp);
  if (part.row_unit != 1) {
    // Rows of gate and of up must not share a value.
    const bool is_whole = part.row_unit > 1 && part.unpack == Unpack::kNone &&
                          projection != Projection::kGateUp &&
                          (!is_half || rows(projection) % part.row_unit == 0);
    if (!is_whole) {
      throw Unsupported(fmt::format(
          "{} has a value for {} rows of {} {}, supported: 1, or whole blocks of gate and of up",
          result.label, part.row_unit == 0 ? "all" : fmt::format("{}", part.row_unit),
          rows(projection), scheme_text()));
    }
  }
  result.rows = num_units(rows(projection), part.row_unit);
  result.cols = num_units(cols(projection), part.col_unit);
  result.is_transposed = part.role == PartRole::kWeight && is_transposed_;
  const int64_t all_rows = (is_half ? 2 : 1) * result.rows;
  const SafetensorsEntry& entry = files_->entry(result.tensor);
  const int64_t elem_bytes = bits(result.dtype) / 8;
  const int64_t first_row = is_half && projection == Projection::kUp ? result.rows : 0;
  if (result.is_transposed) {
    expect_file_shape(entry, {num_experts_, result.cols, all_rows}, result.label);
    result.stride = all_rows * elem_bytes;
    result.offset = expert * result.cols * result.stride + first_row * elem_bytes;
    return result;
  }
  if (!is_routed_) {  // a module whose rows are those of gate, then those of up
    expect_part_shape(entry, part, {all_rows, result.cols}, result.label);
  } else if (part.suffixes.front() == "_blocks") {
    constexpr int64_t kBlockBytes = 16;  // 32 elements
    expect_file_shape(entry, {num_experts_, all_rows, num_units(cols(projection), 32), kBlockBytes},
                      result.label);
    expect_multiple_of(cols(projection), 32, result.label + ": columns");
  } else {
    expect_part_shape(entry, part, {num_experts_, all_rows, result.cols}, result.label);
  }
  result.stride = result.cols * elem_bytes;
  result.offset = (expert * all_rows + first_row) * result.stride;
  return result;
}

StoredMatrix ExpertSource::bias(int64_t expert, Projection projection) const {
  StoredMatrix result =
      describe(name(expert, projection, "_bias"), {PartRole::kWeight, {"_bias"}, DType::kBF16});
  result.rows = 1;
  result.cols = rows(projection);
  expect_file_shape(files_->entry(result.tensor), {num_experts_, result.cols}, result.label);
  result.stride = result.cols * bits(result.dtype) / 8;
  result.offset = expert * result.stride;
  return result;
}

float ExpertSource::scalar(int64_t expert, Projection projection, const StoredPart& part) const {
  const StoredMatrix found = describe(name(expert, projection, part.suffixes.front()), part);
  const Tensor value = files_->tensor(found.tensor);
  if (value.numel() != 1) {
    throw InvalidArgument(
        fmt::format("{} has shape {}, expected one value", found.label, to_string(value.shape())));
  }
  files_->count_read(value.nbytes());
  const float result = get_float(value, 0);
  // A global scale may be 0, as all weights may be.  An activation is divided by its scale, whose
  // inverse must be finite.
  const bool may_be_zero =
      part.role == PartRole::kGlobalScale && scheme_.stored != WeightFormat::kNvfp4Packed;
  const float least = may_be_zero ? 0.0f : std::numeric_limits<float>::min();
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
  const float stored = scalar(expert, projection, part);
  const float global = scheme_.stored == WeightFormat::kNvfp4Packed ? 1.0f / stored : stored;
  const float result = global * input_scale;
  if (!std::isfinite(result)) {
    throw InvalidArgument(
        fmt::format("{} is {}, expected a finite product with the input scale {}",
                    tensor_label(*files_, name(expert, projection, part.suffixes.front())), stored,
                    input_scale));
  }
  return result;
}

void ExpertSource::check_weight_shape(int64_t expert,
                                      Projection projection,
                                      const StoredPart& part) const {
  const std::string tensor = name(expert, projection, part.suffixes.front());
  const StoredMatrix found = describe(tensor, part);
  expect_file_shape(files_->entry(tensor), {2}, found.label);
  const Tensor value = files_->tensor(tensor);
  files_->count_read(value.nbytes());
  const int64_t* dims = value.data<int64_t>();
  if (dims[0] != rows(projection) || dims[1] != cols(projection)) {
    throw InvalidArgument(fmt::format("{} is [{}, {}], config.json makes it [{}, {}]", found.label,
                                      dims[0], dims[1], rows(projection), cols(projection)));
  }
}

std::vector<int64_t> ExpertSource::group_order(int64_t expert,
                                               Projection projection,
                                               const StoredPart& part) const {
  const StoredMatrix found = describe(name(expert, projection, part.suffixes.front()), part);
  const int64_t size = cols(projection);
  expect_file_shape(files_->entry(found.tensor), {size}, found.label);
  const int64_t columns = scheme_.group.col > 0 ? scheme_.group.col : size;
  const int64_t num_groups = num_units(size, columns);
  const Tensor value = files_->tensor(found.tensor);
  files_->count_read(value.nbytes());
  const int32_t* index = value.data<int32_t>();
  std::vector<int64_t> order;
  for (int64_t k = 0; k < size; ++k) {
    if (index[k] < 0 || index[k] >= num_groups) {
      throw InvalidArgument(fmt::format("{} is {} at [{}], expected 0 to {}", found.label, index[k],
                                        k, num_groups - 1));
    }
    if (k % columns == 0) {
      order.push_back(index[k]);
    } else if (index[k] != order.back()) {
      throw Unsupported(
          fmt::format("{} is {} at [{}] and {} at [{}] (act-order), supported: groups of {} "
                      "columns beside each "
                      "other, as desc_act false, static_groups and act_group_aware give them",
                      found.label, order.back(), k - 1, index[k], k, columns));
    }
  }
  return order;
}

}  // namespace moebius::checkpoint
