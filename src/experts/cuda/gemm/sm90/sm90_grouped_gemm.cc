// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/runtime.h"
#include "experts/cuda/gemm/grouped_gemm.h"
#include "experts/cuda/gemm/sm90/launch.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "experts/int8_depth.h"

namespace moebius::cuda {

namespace {

constexpr int kMajor = 9;      // the architecture of the kernels
constexpr int kMultiple = 64;  // N and K are multiples of it
constexpr uintptr_t kAlignment = 16;

int block_elements(const Tensor& tensor) {
  return sm90::kBlockBytes * 8 / static_cast<int>(bits(tensor.dtype()));
}

// `dims` has the innermost dimension first, whose box is kBlockBytes wide.
CUtensorMap make_map(const Tensor& tensor,
                     std::initializer_list<MapDim> dims,
                     Lines lines = Lines::kPairs) {
  return make_tensor_map(
      tensor.raw(),
      bits(tensor.dtype()) == 16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      CU_TENSOR_MAP_SWIZZLE_128B, dims, lines);
}

CUtensorMap map_of_a(const Tensor& a, int64_t num_rows, int64_t k, int box_rows) {
  return make_map(a, {{k, 1, block_elements(a)}, {num_rows, k, box_rows}});
}

CUtensorMap map_of_b(const Tensor& b, int box_rows, Lines lines) {
  const int64_t k = b.dim(2);
  constexpr int kInOrder = sm90::kColumnsInOrder;
  return make_map(b,
                  {{k, 1, block_elements(b)},
                   {2, k, 2},
                   {4, 8 * k, 4},
                   {4, 2 * k, 4},
                   {b.numel() / k / kInOrder, kInOrder * k, box_rows / kInOrder}},
                  lines);
}

// Columns from `end_column` on are not stored.
CUtensorMap map_of_out(const Tensor& out, int64_t end_column) {
  const int64_t n = out.dim(out.num_dims() - 1);
  constexpr int kInOrder = sm90::kColumnsInOrder;
  return make_tensor_map(out.raw(), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_SWIZZLE_NONE,
                         {{kInOrder, 1, kInOrder},
                          {out.numel() / n, n, sm90::kStoreRows},
                          {end_column / kInOrder, kInOrder, sm90::kTileColumns / kInOrder}});
}

std::optional<sm90::Operands> operands_of(const GroupedGemm& gemm) {
  switch (gemm.a.dtype()) {
    case DType::kBF16:
      return gemm.b_scale ? sm90::Operands::kScaledBF16 : sm90::Operands::kBF16;
    case DType::kF16:
      return gemm.b_scale ? sm90::Operands::kScaledF16 : sm90::Operands::kF16;
    case DType::kF8E4M3:
      return gemm.b_scale ? sm90::Operands::kScaledF8E4M3 : sm90::Operands::kF8E4M3;
    case DType::kI8:
      return sm90::Operands::kInt8;
    default:
      return std::nullopt;
  }
}

// nullopt: out has a dtype that no kernel stores.
std::optional<sm90::Result> result_of(const GroupedGemm& gemm) {
  switch (gemm.out.dtype()) {
    case DType::kF32:
      return gemm.activates ? std::nullopt : std::optional(sm90::Result::kF32);
    case DType::kBF16:
      return gemm.activates ? sm90::Result::kActivatedBF16 : sm90::Result::kBF16;
    case DType::kF16:
      return gemm.activates ? std::nullopt : std::optional(sm90::Result::kF16);
    case DType::kF8E4M3:
      return gemm.activates ? std::optional(sm90::Result::kActivatedF8E4M3) : std::nullopt;
    default:
      return std::nullopt;
  }
}

template <typename T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace

Support sm90_grouped_gemm_supports(const GroupedGemm& gemm) {
  const DType dtype = gemm.a.dtype();
  if (!gemm.a.device().is_cuda()) {
    return Support::no("a is on " + to_string(gemm.a.device()));
  }
  const CudaDeviceInfo gpu = cuda_device_info(gemm.a.device().index);
  if (gpu.major != kMajor) {
    return Support::no(fmt::format("{} is of architecture {}.{}, not 9.0",
                                   to_string(gemm.a.device()), gpu.major, gpu.minor));
  }
  const auto operands = operands_of(gemm);
  if (!operands || gemm.b.dtype() != dtype) {
    return Support::no(fmt::format("a is {} and b is {}, not both bf16, f16, f8e4m3 or int8",
                                   name(dtype), name(gemm.b.dtype())));
  }
  if (bits(dtype) == 8 && (!gemm.a_scale || (!gemm.b_scale && !gemm.column_scale))) {
    return Support::no(fmt::format("{} without scales of a or of b", name(dtype)));
  }
  if (gemm.column_scale && gemm.column_scale.dtype() != DType::kF32 &&
      ((operands != sm90::Operands::kF8E4M3 && operands != sm90::Operands::kInt8) ||
       bits(gemm.column_scale.dtype()) != 16)) {
    return Support::no(fmt::format("scales of columns in {}, of a in {}",
                                   name(gemm.column_scale.dtype()), name(dtype)));
  }
  if (dtype == DType::kI8 && gemm.b.dim(2) > kMaxS8Depth) {
    return Support::no(fmt::format("K {} of int8 is more than {}", gemm.b.dim(2), kMaxS8Depth));
  }
  if (sm90::has_scaled_sums(*operands) && gemm.scale_block % sm90::kScaleStep != 0) {
    return Support::no(fmt::format("scales of {} columns of K, not of a multiple of {}",
                                   gemm.scale_block, sm90::kScaleStep));
  }
  const auto result = result_of(gemm);
  if (!result || !sm90::can_launch(*operands, *result)) {
    return Support::no(fmt::format("{}out is {}, of a in {}", gemm.activates ? "activated " : "",
                                   name(gemm.out.dtype()), name(dtype)));
  }
  if (gemm.activates && gemm.b.dim(1) % sm90::kTileColumns != 0) {
    return Support::no(fmt::format("N {} is not a multiple of {}, as gate and up have to be",
                                   gemm.b.dim(1), sm90::kTileColumns));
  }
  const int64_t end_column = gemm.first_column + gemm.num_columns;
  if (gemm.num_columns > 0 &&
      (gemm.activates || gemm.first_column % sm90::kBoxRowsB != 0 || end_column > gemm.b.dim(1) ||
       (end_column % sm90::kBoxRowsB != 0 && end_column != gemm.b.dim(1)))) {
    return Support::no(fmt::format("columns {} to {} of {} are not whole blocks of {}",
                                   gemm.first_column, end_column, gemm.b.dim(1), sm90::kBoxRowsB));
  }
  const int64_t num_groups = gemm.b.dim(0);
  if (num_groups > sm90::kMaxGroups) {
    return Support::no(fmt::format("{} groups, more than {}", num_groups, sm90::kMaxGroups));
  }
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
  const int64_t k = gemm.b.dim(2);
  for (const Tensor& rows : {gemm.a, gemm.b}) {
    if (k > 0 && rows.numel() / k > kMostRows) {
      return Support::no(
          fmt::format("{} rows of an operand, more than {}", rows.numel() / k, kMostRows));
    }
  }
  if (gemm.a_rows && gemm.a.nbytes() > std::numeric_limits<uint32_t>::max()) {
    return Support::no(
        fmt::format("rows by index in {} bytes, more than 32 bits tell", gemm.a.nbytes()));
  }
  for (const int dim : {1, 2}) {
    if (gemm.b.dim(dim) % kMultiple != 0 || gemm.b.dim(dim) == 0) {
      return Support::no(fmt::format("{} {} is not a multiple of {}", dim == 1 ? "N" : "K",
                                     gemm.b.dim(dim), kMultiple));
    }
  }
  const Tensor columns = dtype == DType::kI8 ? Tensor{} : gemm.column_scale;
  for (const Tensor& tensor : {gemm.a, gemm.b, gemm.b_scale, columns, gemm.bias, gemm.out}) {
    if (tensor.defined() && reinterpret_cast<uintptr_t>(tensor.raw()) % kAlignment != 0) {
      return Support::no(fmt::format("a tensor is not {}-byte aligned", kAlignment));
    }
  }
  return Support::yes();
}

ColumnMaps column_maps(const Tensor& b, Lines lines) {
  return {map_of_b(b, sm90::kBoxRowsB, lines), map_of_b(b, sm90::kNarrowColumns / 2, lines)};
}

void sm90_grouped_gemm(const GroupedGemm& gemm, const Stream& on) {
  assert(sm90_grouped_gemm_supports(gemm));
  assert(gemm.group_offsets.defined() != gemm.group_counts.defined());
  const bool is_batched = gemm.group_counts.defined();
  assert(gemm.a.num_dims() == (is_batched ? 3 : 2));
  assert(!gemm.a_rows || !is_batched);
  assert(gemm.a_rows || gemm.arrivals.words == nullptr);
  const int64_t num_groups = gemm.decode != nullptr ? gemm.column_scale.dim(0) : gemm.b.dim(0);
  const int64_t n = gemm.b.dim(1);
  const int64_t k = gemm.b.dim(2);
  const int64_t rows_of_a = gemm.a.numel() / k;
  const int64_t num_rows = gemm.a_rows ? gemm.a_rows.dim(0) : rows_of_a;
  if (num_rows == 0 || num_groups == 0) {
    return;
  }
  const sm90::Operands operands = *operands_of(gemm);
  const sm90::Result result = *result_of(gemm);
  const int index = on.device().index;
  const DeviceGuard guard(index);
  sm90::Args args{};
  if (!gemm.a_rows) {
    args.a = map_of_a(gemm.a, rows_of_a, k, sm90::kBoxRowsA);
    args.a_tiles = map_of_a(gemm.a, rows_of_a, k, sm90::kTileRows);
  }
  args.a_rows = data_or_null<const int32_t>(gemm.a_rows);
  args.a_values = gemm.a.raw();
  args.arrivals = gemm.arrivals;
  args.first_expert = static_cast<int>(gemm.first_expert);
  const ColumnMaps b_maps =
      gemm.b_maps != nullptr ? *gemm.b_maps : column_maps(gemm.b, lines_of(gemm.evicts_b));
  args.b = b_maps.wide;
  args.b_narrow = b_maps.narrow;
  args.a_scale = data_or_null<const float>(gemm.a_scale);
  args.b_scale = data_or_null<const float>(gemm.b_scale);
  args.scale_block = static_cast<int>(std::min(gemm.scale_block, k));
  if (gemm.a_scale && operands != sm90::Operands::kScaledF8E4M3) {
    const int dims = gemm.a_scale.num_dims();
    const bool has_rows = gemm.a_scale.dim(dims - 2) > 1;
    args.a_row_step = has_rows ? 1 : 0;
    args.a_group_step = !has_rows && dims == 3 ? 1 : 0;
  }
  args.column_scale = gemm.column_scale ? gemm.column_scale.raw() : nullptr;
  args.column_dtype = gemm.column_scale ? gemm.column_scale.dtype() : DType::kF32;
  args.column_step = gemm.column_scale && gemm.column_scale.dim(1) > 1 ? 1 : 0;
  args.bias = data_or_null<const float>(gemm.bias);
  args.out = gemm.out.raw();
  args.out_scale = data_or_null<float>(gemm.out_scale);
  args.out_scale_step = gemm.out_scale && gemm.out_scale.numel() > 1 ? 1 : 0;
  args.power_of_two_scale = gemm.power_of_two_scale;
  args.offsets = data_or_null<const int32_t>(gemm.group_offsets);
  args.counts = data_or_null<const int32_t>(gemm.group_counts);
  args.fetch = gemm.fetch;
  args.evicts_b = gemm.evicts_b;
  args.settled_groups = gemm.settled_groups;
  args.lets_next_begin = gemm.num_sms == 0 && gemm.arrivals.words == nullptr;
  args.next_item = data_or_null<int>(gemm.next_item);
  if (gemm.decode != nullptr) {
    args.decode = *gemm.decode;
    args.slots = static_cast<int>(gemm.b.dim(0));
    args.decode_counters = gemm.decode_counters.data<int>();
  }
  args.max_rows = is_batched ? static_cast<int>(gemm.a.dim(1)) : 0;
  args.num_rows = static_cast<int>(num_rows);
  args.num_groups = static_cast<int>(num_groups);
  args.n = static_cast<int>(n);
  args.k = static_cast<int>(k);
  args.first_column = static_cast<int>(gemm.first_column);
  args.end_column =
      static_cast<int>(gemm.num_columns > 0 ? gemm.first_column + gemm.num_columns : n);
  args.in_bulk = sm90::stores_in_bulk(operands, result, num_rows, num_groups);
  if (args.in_bulk) {
    args.out_boxes = map_of_out(gemm.out, args.end_column);
  }
  const int sms = num_sms(index);
  sm90::launch(args, operands, result, gemm.num_sms > 0 ? std::min(gemm.num_sms, sms) : sms, index,
               as_stream(on.native_handle()));
}

}  // namespace moebius::cuda
