// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/experts/grouped_gemm_problem.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/experts/random_operands.h"

namespace moebius::cuda {

using testing::random_uniform;

namespace {

int64_t blocks_of(int64_t size) {
  return (size + kScaleBlock - 1) / kScaleBlock;
}

}  // namespace

std::string to_string(const GemmProblem& p) {
  return fmt::format("{} to {}, N {}, K {}, scales of {}, max_rows {}, rows {}", name(p.dtype),
                     name(p.out), p.n, p.k, p.scale_block, p.max_rows, fmt::join(p.rows, " "));
}

std::vector<int64_t> scale_blocks(DType dtype) {
  return bits(dtype) == 16 ? std::vector<int64_t>{0, 128, 96}
                           : std::vector<int64_t>{0, kScaleBlock};
}

Tensor ints(const std::vector<int>& values) {
  Tensor tensor = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32);
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

GroupedGemm make_operands(const GemmProblem& p, uint32_t seed) {
  const int64_t groups = p.num_groups();
  const auto rows_by = [&](int64_t columns) {
    return p.max_rows > 0 ? Shape{groups, p.max_rows, columns} : Shape{p.num_rows(), columns};
  };
  GroupedGemm gemm;
  const bool is_fp8 = p.dtype == DType::kF8E4M3;
  const float limit = is_fp8 ? 400.0f : 1.0f;
  gemm.a = random_uniform(rows_by(p.k), p.dtype, seed, -limit, limit);
  gemm.b = random_uniform({groups, p.n, p.k}, p.dtype, seed + 1, -limit, limit);
  if (is_fp8) {
    const bool has_blocks = p.scale_block > 0;
    gemm.a_scale = random_uniform(rows_by(has_blocks ? blocks_of(p.k) : 1), DType::kF32, seed + 2,
                                  1e-3f, 4e-3f);
    const Shape columns =
        has_blocks ? Shape{groups, blocks_of(p.n), blocks_of(p.k)} : Shape{groups, p.n};
    (has_blocks ? gemm.b_scale : gemm.column_scale) =
        random_uniform(columns, DType::kF32, seed + 3, 1e-3f, 4e-3f);
  } else if (p.scale_block > 0) {
    gemm.scale_block = p.scale_block;
    gemm.b_scale = random_uniform({groups, (p.k + p.scale_block - 1) / p.scale_block, p.n},
                                  DType::kF32, seed + 3, 0.5f, 2.0f);
  }
  if (bits(p.dtype) == 16 && p.has_bias) {
    gemm.a_scale = random_uniform(rows_by(1), DType::kF32, seed + 2, 0.5f, 2.0f);
  }
  if (p.has_bias) {
    gemm.bias = random_uniform({groups, p.n}, DType::kF32, seed + 4, -8.0f, 8.0f);
  }
  if (p.max_rows > 0) {
    gemm.group_counts = ints(p.rows);
  } else {
    std::vector<int> offsets = {0};
    for (const int rows : p.rows) {
      offsets.push_back(offsets.back() + rows);
    }
    gemm.group_offsets = ints(offsets);
  }
  gemm.out = Tensor::empty(rows_by(p.n), p.out);
  std::memset(gemm.out.raw(), 0xff, static_cast<size_t>(gemm.out.nbytes()));
  return gemm;
}

GroupedGemm scattered(const GroupedGemm& host, uint32_t seed) {
  GroupedGemm out = host;
  const int64_t num_rows = host.a.dim(0);
  const bool has_row_scales = host.a_scale && host.a_scale.dim(0) == num_rows;
  std::mt19937 random(seed);
  std::vector<int> places(static_cast<size_t>(num_rows + 7));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  places.resize(static_cast<size_t>(num_rows));
  for (int64_t row = 1; row < num_rows; row += 5) {
    places[static_cast<size_t>(row)] = places[static_cast<size_t>(row - 1)];
    for (const Tensor& rows : {host.a, has_row_scales ? host.a_scale : Tensor{}}) {
      if (rows) {
        copy(rows.slice(row - 1, row), rows.slice(row, row + 1), Stream::cpu());
      }
    }
  }
  const auto scatter = [&](const Tensor& rows) {
    Tensor to = Tensor::empty({num_rows + 7, rows.dim(1)}, rows.dtype());
    std::memset(to.raw(), 0xff, static_cast<size_t>(to.nbytes()));
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t place = places[static_cast<size_t>(row)];
      copy(rows.slice(row, row + 1), to.slice(place, place + 1), Stream::cpu());
    }
    return to;
  };
  out.a = scatter(host.a);
  out.a_scale = has_row_scales ? scatter(host.a_scale) : host.a_scale;
  out.a_rows = ints(places);
  return out;
}

GroupedGemm on_gpu(const GroupedGemm& host, const Stream& stream) {
  GroupedGemm gemm = host;
  for (Tensor* tensor :
       {&gemm.a, &gemm.a_rows, &gemm.a_scale, &gemm.b, &gemm.b_scale, &gemm.column_scale,
        &gemm.bias, &gemm.group_offsets, &gemm.group_counts, &gemm.out}) {
    *tensor = tensor->defined() ? to_device(*tensor, stream.device(), stream) : Tensor{};
  }
  return gemm;
}

Tensor run_on_gpu(const GroupedGemm& host,
                  const Stream& stream,
                  int num_sms,
                  const Tensor& next_item) {
  GroupedGemm gemm = on_gpu(host, stream);
  gemm.num_sms = num_sms;
  gemm.next_item = next_item;
  if (next_item) {  // some weights have been fetched, and others are
    gemm.fetch = FetchAhead::of(gemm.b, 16, gemm.b.nbytes());
    gemm.evicts_b = true;
  }
  const Support support = sm90_grouped_gemm_supports(gemm);
  EXPECT_TRUE(support) << support.reason;
  sm90_grouped_gemm(gemm, stream);
  Tensor out = to_device(gemm.out, Device::cpu(), stream);
  stream.synchronize();
  return out;
}

Tensor poisoned(const Shape& shape, DType dtype, const Stream& stream) {
  Tensor tensor = Tensor::empty(shape, dtype);
  std::memset(tensor.raw(), 0xff, static_cast<size_t>(tensor.nbytes()));
  tensor = to_device(tensor, stream.device(), stream);
  stream.synchronize();
  return tensor;
}

void expect_same_bytes(const Tensor& expected,
                       const Tensor& actual,
                       const GemmProblem& p,
                       const Stream& stream) {
  const Tensor want = to_device(expected, Device::cpu(), stream);
  const Tensor have = to_device(actual, Device::cpu(), stream);
  stream.synchronize();
  ASSERT_EQ(want.nbytes(), have.nbytes());
  const int64_t row_bytes = have.nbytes() / p.num_rows();
  for (int64_t i = 0; i < have.nbytes(); ++i) {
    ASSERT_EQ(static_cast<int>(have.bytes()[i]), static_cast<int>(want.bytes()[i]))
        << to_string(p) << ": " << name(have.dtype()) << " row " << i / row_bytes << ", byte "
        << i % row_bytes;
  }
}

}  // namespace moebius::cuda
