// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs on a GPU against float64 products of the same elements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "experts/cuda/activation.h"
#include "experts/cuda/activation_codes.h"
#include "experts/cuda/grouped_gemm.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

constexpr int64_t kBlock = 128;

int64_t blocks_of(int64_t size) {
  return (size + kBlock - 1) / kBlock;
}

struct Problem {
  DType dtype = DType::kBF16;
  DType out = DType::kBF16;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<int> rows;   // per group
  int64_t max_rows = 0;    // 0: one after the other
  int64_t spare_rows = 0;  // of no group, at the end
  bool has_bias = false;
  int64_t scale_block = 0;  // bf16: see GroupedGemm; 0: no b_scale

  int64_t num_groups() const { return static_cast<int64_t>(rows.size()); }
  int64_t num_rows() const {
    return max_rows > 0 ? max_rows * num_groups()
                        : std::accumulate(rows.begin(), rows.end(), spare_rows);
  }
  int64_t first_row(int64_t group) const {
    return max_rows > 0 ? max_rows * group
                        : std::accumulate(rows.begin(), rows.begin() + group, int64_t{0});
  }
};

std::string to_string(const Problem& p) {
  return fmt::format("{} to {}, N {}, K {}, scales of {}, max_rows {}, rows {}", name(p.dtype),
                     name(p.out), p.n, p.k, p.scale_block, p.max_rows, fmt::join(p.rows, " "));
}

Tensor ints(const std::vector<int>& values) {
  Tensor tensor = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32);
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

// All on the host; `out` is poison.
GroupedGemm make_operands(const Problem& p, uint32_t seed) {
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
    gemm.a_scale = random_uniform(rows_by(blocks_of(p.k)), DType::kF32, seed + 2, 1e-3f, 4e-3f);
    gemm.b_scale = random_uniform({groups, blocks_of(p.n), blocks_of(p.k)}, DType::kF32, seed + 3,
                                  1e-3f, 4e-3f);
  }
  if (p.scale_block > 0) {
    gemm.scale_block = p.scale_block;
    gemm.b_scale = random_uniform({groups, (p.k + p.scale_block - 1) / p.scale_block, p.n},
                                  DType::kF32, seed + 3, 0.5f, 2.0f);
  }
  if (p.dtype == DType::kBF16 && p.has_bias) {
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

std::vector<double> widened(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    values[static_cast<size_t>(i)] = static_cast<double>(get_float(tensor, i));
  }
  return values;
}

// With the scales multiplied in; they are constant over `rows` x 128 elements, or all of a row's.
std::vector<double> scaled(const Tensor& tensor, const Tensor& scale, int64_t rows, int64_t k) {
  std::vector<double> values = widened(tensor);
  if (!scale.defined()) {
    return values;
  }
  const int64_t groups = rows == 1 ? 1 : tensor.dim(0);
  const int64_t per_group = tensor.numel() / k / groups;
  const int64_t scale_rows = (per_group + rows - 1) / rows;
  const int64_t blocks = scale.shape().back();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const int64_t row = i / k % per_group;
    const int64_t group = i / k / per_group;
    const int64_t block = blocks > 1 ? i % k / kBlock : 0;
    const int64_t at = (group * scale_rows + row / rows) * blocks + block;
    values[static_cast<size_t>(i)] *= static_cast<double>(scale.data<float>()[at]);
  }
  return values;
}

std::vector<double> scaled_weights(const Problem& p, const GroupedGemm& host) {
  if (p.scale_block == 0) {
    return scaled(host.b, host.b_scale, kBlock, p.k);
  }
  std::vector<double> values = widened(host.b);
  for (int64_t i = 0; i < host.b.numel(); ++i) {
    const int64_t group = i / p.k / p.n;
    const int64_t block = i % p.k / p.scale_block;
    const int64_t at = (group * host.b_scale.dim(1) + block) * p.n + i / p.k % p.n;
    values[static_cast<size_t>(i)] *= static_cast<double>(host.b_scale.data<float>()[at]);
  }
  return values;
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
                  int num_sms = 0,
                  const Tensor& next_item = {}) {
  GroupedGemm gemm = on_gpu(host, stream);
  gemm.num_sms = num_sms;
  gemm.next_item = next_item;
  const Support support = sm90_grouped_gemm_supports(gemm);
  EXPECT_TRUE(support) << support.reason;
  sm90_grouped_gemm(gemm, stream);
  Tensor out = to_device(gemm.out, Device::cpu(), stream);
  stream.synchronize();
  return out;
}

void expect_products(const Problem& p, const GroupedGemm& host, const Tensor& out) {
  const std::vector<double> a = scaled(host.a, host.a_scale, 1, p.k);
  const std::vector<double> b = scaled_weights(p, host);
  // What the tensor core may drop of a sum: bits below 2^-23 of it each time for bf16; of 128 fp8
  // products, below 2^-13 four times.
  const double dropped = p.dtype == DType::kBF16 ? 0x1p-17 : 0x1p-11;
  const double rounded = p.out == DType::kBF16 ? 0x1p-8 : 0x1p-22;
  std::vector<bool> is_used(static_cast<size_t>(p.num_rows()));
  double error2 = 0;
  double norm2 = 0;
  for (int64_t g = 0; g < p.num_groups(); ++g) {
    for (int64_t i = 0; i < p.rows[static_cast<size_t>(g)]; ++i) {
      const int64_t row = p.first_row(g) + i;
      is_used[static_cast<size_t>(row)] = true;
      for (int64_t n = 0; n < p.n; ++n) {
        const double* x = a.data() + row * p.k;
        const double* w = b.data() + (g * p.n + n) * p.k;
        double sum = p.has_bias ? static_cast<double>(host.bias.data<float>()[g * p.n + n]) : 0.0;
        double size = std::abs(sum);
        for (int64_t k = 0; k < p.k; ++k) {
          sum += x[k] * w[k];
          size += std::abs(x[k] * w[k]);
        }
        const double actual = static_cast<double>(get_float(out, row * p.n + n));
        error2 += (actual - sum) * (actual - sum);
        norm2 += sum * sum;
        const double bound = dropped * size + rounded * std::abs(sum);
        ASSERT_LE(std::abs(actual - sum), bound)
            << to_string(p) << ": group " << g << " row " << i << " column " << n << " is "
            << actual << ", expected " << sum;
      }
    }
  }
  const double limit = p.out == DType::kBF16 ? 3e-3 : p.dtype == DType::kBF16 ? 1e-5 : 1e-3;
  EXPECT_LE(std::sqrt(error2), limit * std::sqrt(norm2)) << to_string(p);
  const int64_t row_size = p.n * bits(p.out) / 8;
  for (int64_t row = 0; row < p.num_rows(); ++row) {
    if (is_used[static_cast<size_t>(row)]) {
      continue;
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(out.bytes()) + row * row_size;
    ASSERT_TRUE(std::all_of(bytes, bytes + row_size, [](uint8_t byte) { return byte == 0xff; }))
        << to_string(p) << ": row " << row << " of no group was written";
  }
}

// Such as end with a stage of the kernel, and such as end within one.
std::vector<int64_t> scale_blocks(DType dtype) {
  return dtype == DType::kBF16 ? std::vector<int64_t>{0, 128, 96} : std::vector<int64_t>{0};
}

class Sm90GroupedGemmTest : public HopperTest {
 protected:
  void check(Problem p, uint32_t seed, int num_sms = 0) {
    for (const int64_t block : scale_blocks(p.dtype)) {
      p.scale_block = block;
      check_one(p, seed, num_sms);
    }
  }

 private:
  void check_one(const Problem& p, uint32_t seed, int num_sms) {
    const GroupedGemm host = make_operands(p, seed);
    const Tensor out = run_on_gpu(host, Stream::cuda(0), num_sms);
    expect_products(p, host, out);
    // The same by whichever cluster is free, twice.
    const Stream stream = Stream::cuda(0);
    const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
    for (int round = 0; round < 2; ++round) {
      const Tensor again = run_on_gpu(host, stream, num_sms, next_item);
      EXPECT_EQ(std::memcmp(out.raw(), again.raw(), static_cast<size_t>(out.nbytes())), 0)
          << to_string(p) << ": run " << round + 2 << " differs";
    }
  }
};

constexpr DType kFormats[] = {DType::kBF16, DType::kF8E4M3};
constexpr DType kOuts[] = {DType::kBF16, DType::kF32};

TEST_F(Sm90GroupedGemmTest, OneTileOfEachKind) {
  uint32_t seed = 1;
  for (const DType dtype : kFormats) {
    for (const DType out : kOuts) {
      for (const int rows : {1, 31, 33, 64, 65, 128, 129, 256}) {
        check({dtype, out, 512, 256, {rows}}, seed += 10);
      }
    }
  }
}

TEST_F(Sm90GroupedGemmTest, UnevenGroupsSomeEmpty) {
  uint32_t seed = 1000;
  for (const DType dtype : kFormats) {
    for (const DType out : kOuts) {
      check({dtype, out, 320, 576, {0, 5, 0, 131, 64, 257, 0, 1, 200, 0}, 0, 37, true}, seed += 10);
      check({dtype, out, 64, 64, {3, 0, 129}, 0, 1, false}, seed += 10);
      check({dtype, out, 768, 1152, {333}, 0, 0, true}, seed += 10);
    }
  }
}

TEST_F(Sm90GroupedGemmTest, BatchedGroups) {
  uint32_t seed = 2000;
  for (const DType dtype : kFormats) {
    for (const DType out : kOuts) {
      check({dtype, out, 448, 320, {0, 5, 200, 33, 150}, 200, 0, true}, seed += 10);
      check({dtype, out, 256, 704, {1, 0, 7}, 8, 0, false}, seed += 10);
    }
  }
}

TEST_F(Sm90GroupedGemmTest, ManyTilesPerCta) {
  uint32_t seed = 3000;
  for (const DType dtype : kFormats) {
    check({dtype, DType::kBF16, 1280, 192, {700, 32, 0, 20, 64, 129, 383}, 0, 3, false}, seed += 10,
          2);
    check({dtype, DType::kBF16, 576, 192, {2600, 100}, 0, 0, false}, seed += 10, 7);
  }
}

TEST_F(Sm90GroupedGemmTest, RandomGroups) {
  std::mt19937 random(7);
  for (uint32_t round = 0; round < 12; ++round) {
    Problem p;
    p.dtype = kFormats[round % 2];
    p.out = kOuts[round / 2 % 2];
    p.n = 64 * (1 + static_cast<int64_t>(random() % 9));
    p.k = 64 * (1 + static_cast<int64_t>(random() % 9));
    p.has_bias = random() % 2 == 0;
    for (uint32_t g = 0; g < 1 + random() % 40; ++g) {
      p.rows.push_back(random() % 3 == 0 ? 0 : static_cast<int>(random() % (1u << random() % 9)));
    }
    p.spare_rows = static_cast<int64_t>(random() % 70) + 1;
    check(p, 4000 + 10 * round);
  }
}

// The same rows in groups of other sizes, with the same weights: other tiles, other neighbours.
TEST_F(Sm90GroupedGemmTest, ARowDoesNotDependOnItsPlace) {
  const auto same_wherever = [](const Problem& whole) {
    const GroupedGemm one = make_operands(whole, 50);
    const Tensor expected = run_on_gpu(one, Stream::cuda(0));
    const std::vector<int> sizes = {1, 37, 0, 64, 128, 3, 65, 215};
    Problem parts = whole;
    parts.rows = sizes;
    GroupedGemm split = make_operands(parts, 50);
    const auto repeat = [&](Tensor& to, const Tensor& from) {
      for (int64_t g = 0; to.defined() && g < parts.num_groups(); ++g) {
        std::memcpy(to[g].raw(), from.raw(), static_cast<size_t>(from.nbytes()));
      }
    };
    split.a = one.a;
    split.a_scale = one.a_scale;
    repeat(split.b, one.b);
    repeat(split.b_scale, one.b_scale);
    repeat(split.bias, one.bias);
    const Tensor out = run_on_gpu(split, Stream::cuda(0));
    int64_t differing = 0;
    for (int64_t i = 0; i < out.numel(); ++i) {
      differing += out.data<float>()[i] != expected.data<float>()[i] ? 1 : 0;
    }
    EXPECT_EQ(differing, 0) << to_string(whole) << ", of " << out.numel();
  };
  for (const DType dtype : kFormats) {
    for (const int64_t block : scale_blocks(dtype)) {
      same_wherever({dtype, DType::kF32, 320, 640, {513}, 0, 0, true, block});
    }
  }
}

// Some columns after the other, into an out that has all of them.
TEST_F(Sm90GroupedGemmTest, ColumnsAlone) {
  const Stream stream = Stream::cuda(0);
  const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
  uint32_t seed = 6000;
  for (const DType dtype : kFormats) {
    for (const int64_t n : {576, 1024}) {
      const Problem p{dtype, DType::kBF16, n, 384, {0, 5, 300, 64, 129, 0, 200}, 0, 3, true};
      const GroupedGemm host = make_operands(p, seed += 10);
      const Tensor whole = run_on_gpu(host, stream);
      GroupedGemm gemm = on_gpu(host, stream);
      gemm.next_item = next_item;
      const int64_t bounds[] = {0, 128, 512, n};
      for (size_t i = 1; i < std::size(bounds); ++i) {
        gemm.first_column = bounds[i - 1];
        gemm.num_columns = bounds[i] - bounds[i - 1];
        ASSERT_TRUE(sm90_grouped_gemm_supports(gemm)) << to_string(p);
        sm90_grouped_gemm(gemm, stream);
      }
      const Tensor by_parts = to_device(gemm.out, Device::cpu(), stream);
      EXPECT_EQ(std::memcmp(whole.raw(), by_parts.raw(), static_cast<size_t>(whole.nbytes())), 0)
          << to_string(p);
      gemm.first_column = 64;
      EXPECT_FALSE(sm90_grouped_gemm_supports(gemm));
      gemm.first_column = n;
      EXPECT_FALSE(sm90_grouped_gemm_supports(gemm));
    }
  }
}

// Rows that lie somewhere else, some of them several times: the bits of rows in order.
GroupedGemm scattered(const GroupedGemm& host, uint32_t seed) {
  GroupedGemm out = host;
  const int64_t num_rows = host.a.dim(0);
  std::mt19937 random(seed);
  std::vector<int> places(static_cast<size_t>(num_rows + 7));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  places.resize(static_cast<size_t>(num_rows));
  for (int64_t row = 1; row < num_rows; row += 5) {
    places[static_cast<size_t>(row)] = places[static_cast<size_t>(row - 1)];
    for (const Tensor& rows : {host.a, host.a_scale}) {
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
  out.a_scale = host.a_scale ? scatter(host.a_scale) : Tensor{};
  out.a_rows = ints(places);
  return out;
}

// Sums are exact, so every element is known to the bit.
TEST_F(Sm90GroupedGemmTest, Int8) {
  const Stream stream = Stream::cuda(0);
  const std::vector<Problem> problems = {
      {.out = DType::kBF16, .n = 320, .k = 576, .rows = {0, 5, 200, 33, 150}, .spare_rows = 3},
      {.out = DType::kF32, .n = 512, .k = 320, .rows = {31, 64, 65, 1, 0, 257}, .has_bias = true},
      {.out = DType::kBF16, .n = 448, .k = 192, .rows = {5, 0, 200, 40}, .max_rows = 200},
  };
  uint32_t seed = 6000;
  for (Problem p : problems) {
    p.dtype = DType::kI8;
    const auto take = [&](const Shape& shape, DType dtype, float low, float high) {
      return random_uniform(shape, dtype, ++seed, low, high);
    };
    GroupedGemm host = make_operands(p, seed);
    host.a = take(host.a.shape(), DType::kI8, -128.0f, 127.0f);
    host.b = take(host.b.shape(), DType::kI8, -128.0f, 127.0f);
    const Shape rows =
        p.max_rows > 0 ? Shape{p.num_groups(), p.max_rows, 1} : Shape{p.num_rows(), 1};
    for (const Shape& scales : {rows, Shape{p.num_groups(), 1, 1}, Shape{1, 1}}) {
      for (const int64_t columns : {p.n, int64_t{1}}) {
        host.a_scale = take(scales, DType::kF32, 1e-3f, 4e-3f);
        host.column_scale = take({p.num_groups(), columns}, DType::kF32, 1e-3f, 4e-3f);
        const bool is_per_row = scales == rows;
        const bool scatters = is_per_row && p.max_rows == 0;
        const GroupedGemm elsewhere = scatters ? scattered(host, seed) : host;
        const Tensor out =
            run_on_gpu(host, stream, 0, Tensor::zeros({2}, DType::kI32, stream.device()));
        const Tensor again = run_on_gpu(elsewhere, stream);
        EXPECT_EQ(std::memcmp(again.raw(), out.raw(), static_cast<size_t>(out.nbytes())), 0)
            << to_string(p);
        for (int64_t g = 0; g < p.num_groups(); ++g) {
          for (int64_t i = 0; i < p.rows[static_cast<size_t>(g)]; ++i) {
            const int64_t row = p.first_row(g) + i;
            const int64_t at = is_per_row ? row : host.a_scale.numel() > 1 ? g : 0;
            for (int64_t n = 0; n < p.n; ++n) {
              const auto* a = host.a.data<int8_t>() + row * p.k;
              const auto* b = host.b.data<int8_t>() + (g * p.n + n) * p.k;
              const int32_t sum = std::inner_product(a, a + p.k, b, 0);
              float expected = static_cast<float>(sum) * host.a_scale.data<float>()[at] *
                               host.column_scale.data<float>()[g * columns + n % columns];
              expected += p.has_bias ? host.bias.data<float>()[g * p.n + n] : 0.0f;
              if (p.out == DType::kBF16) {
                expected = static_cast<float>(BFloat16(expected));
              }
              ASSERT_EQ(get_float(out, row * p.n + n), expected)
                  << to_string(p) << ": group " << g << " row " << i << " column " << n;
            }
          }
        }
      }
    }
  }
}

TEST_F(Sm90GroupedGemmTest, RowsByIndex) {
  const Stream stream = Stream::cuda(0);
  uint32_t seed = 7000;
  const auto check_same = [&](const Problem& p, int num_sms) {
    const GroupedGemm host = make_operands(p, seed += 10);
    const GroupedGemm elsewhere = scattered(host, seed);
    const Tensor expected = run_on_gpu(host, stream, num_sms);
    for (const bool draws : {false, true}) {
      const Tensor next_item = draws ? Tensor::zeros({2}, DType::kI32, stream.device()) : Tensor{};
      const Tensor out = run_on_gpu(elsewhere, stream, num_sms, next_item);
      EXPECT_EQ(std::memcmp(out.raw(), expected.raw(), static_cast<size_t>(out.nbytes())), 0)
          << to_string(p) << " on " << num_sms << " SMs" << (draws ? ", drawn" : "");
    }
  };
  for (const DType dtype : kFormats) {
    for (const int64_t block : scale_blocks(dtype)) {
      for (const bool has_row_scales : {false, true}) {
        const auto check_both = [&](const std::vector<int>& rows, int64_t n, int64_t k, int sms) {
          check_same({dtype, DType::kBF16, n, k, rows, 0, 3, has_row_scales, block}, sms);
        };
        for (const int rows : {1, 31, 33, 64, 65, 128, 129, 256}) {
          check_both({rows}, 512, 256, 0);
        }
        check_both({0, 5, 0, 131, 64, 257, 0, 1, 200, 0}, 320, 576, 0);
        check_both({700, 32, 0, 20, 64, 129, 383}, 1280, 192, 2);
        check_both({333, 64, 3}, 768, 64, 4);
      }
    }
  }
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
                       const Problem& p,
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

// The GEMM to bf16, then the activation in a kernel of its own, with the same rows left alone.
void check_activated(const Problem& p, uint32_t seed, bool power_of_two_scale) {
  const Stream stream = Stream::cuda(0);
  GroupedGemm host = make_operands(p, seed);
  set_float(host.a, (p.num_rows() - 1) * p.k + 1, NAN);
  if (host.a_scale) {
    set_float(host.a_scale, 0, INFINITY);
  }
  if (p.has_bias) {
    host.column_scale = random_uniform({p.num_groups(), p.n}, DType::kF32, seed + 5, 0.5f, 2.0f);
  }
  GroupedGemm gemm = on_gpu(host, stream);
  sm90_grouped_gemm(gemm, stream);
  const RowGroups rows =
      p.max_rows > 0
          ? RowGroups::batched(gemm.group_counts.data<int32_t>(), p.max_rows, p.num_groups())
          : RowGroups::sorted(gemm.group_offsets.data<int32_t>(), p.num_groups());
  const bool is_fp8 = p.dtype == DType::kF8E4M3;
  const auto room = [&](int64_t columns, DType dtype) {
    return poisoned({p.num_rows(), columns}, dtype, stream);
  };
  const int64_t width = p.n / 2;
  RowOperand expected;
  expected.values = room(width, p.dtype);
  QuantizeSpec spec;
  spec.group = {1, kBlock};
  spec.power_of_two_scale = power_of_two_scale;
  const Tensor in = gemm.out.view({p.num_rows(), p.n});
  if (is_fp8) {
    expected.block = kBlock;
    expected.scale = room(width / kBlock, DType::kF32);
    activate_to_codes({}, spec, rows, in, expected, stream);
  } else {
    activate({}, rows, in, expected.values, stream);
  }
  gemm.activates = true;
  gemm.power_of_two_scale = power_of_two_scale;
  const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
  for (const bool draws : {false, true}) {
    gemm.out = room(width, p.dtype);
    gemm.out_scale = is_fp8 ? room(width / kBlock, DType::kF32) : Tensor{};
    gemm.next_item = draws ? next_item : Tensor{};
    const Support support = sm90_grouped_gemm_supports(gemm);
    ASSERT_TRUE(support) << support.reason;
    sm90_grouped_gemm(gemm, stream);
    expect_same_bytes(expected.values, gemm.out, p, stream);
    if (is_fp8) {
      expect_same_bytes(expected.scale, gemm.out_scale, p, stream);
    }
  }
}

TEST_F(Sm90GroupedGemmTest, ActivatesAsAKernelOfItsOwn) {
  uint32_t seed = 5000;
  for (const DType dtype : kFormats) {
    const auto check_both = [&](Problem p) {
      p.dtype = dtype;
      for (const int64_t block : scale_blocks(dtype)) {
        p.scale_block = block;
        p.has_bias = false;
        check_activated(p, seed += 10, false);
        p.has_bias = true;
        check_activated(p, seed += 10, true);
      }
    };
    for (const int rows : {1, 31, 33, 64, 65, 128, 129, 256}) {
      check_both({.n = 512, .k = 256, .rows = {rows}});
    }
    check_both(
        {.n = 768, .k = 576, .rows = {0, 5, 0, 131, 64, 257, 0, 1, 200, 0}, .spare_rows = 37});
    check_both({.n = 256, .k = 320, .rows = {0, 5, 200, 33, 150}, .max_rows = 200});
    check_both({.n = 1280, .k = 192, .rows = {700, 32, 0, 20, 64, 129, 383, 40, 50, 3}});
  }
}

TEST_F(Sm90GroupedGemmTest, WhatItCannotActivateIsRefused) {
  const Stream stream = Stream::cuda(0);
  const auto refusal = [&](DType dtype, DType out, int64_t n) {
    GroupedGemm gemm = on_gpu(make_operands({dtype, out, n, 128, {4}}, 1), stream);
    gemm.activates = true;
    return sm90_grouped_gemm_supports(gemm).reason;
  };
  EXPECT_EQ(refusal(DType::kBF16, DType::kBF16, 256), "");
  EXPECT_EQ(refusal(DType::kBF16, DType::kBF16, 384),
            "N 384 is not a multiple of 256, as gate and up have to be");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32, 256), "activated out is f32, of a in bf16");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF8E4M3, 256), "activated out is f8e4m3, of a in bf16");
  EXPECT_EQ(refusal(DType::kF8E4M3, DType::kBF16, 256), "activated out is bf16, of a in f8e4m3");
}

// Nothing of them is read.
TEST_F(Sm90GroupedGemmTest, RowsByIndexInMoreThan4GiBAreRefused) {
  const Stream stream = Stream::cuda(0);
  const auto refusal = [&](int64_t rows_of_a) {
    GroupedGemm gemm =
        on_gpu(make_operands({DType::kBF16, DType::kBF16, 128, 1024, {4}}, 1), stream);
    gemm.a_rows = to_device(ints({3, 2, 1, 0}), stream.device(), stream);
    gemm.a = Tensor::borrow(gemm.a.raw(), {rows_of_a, 1024}, DType::kBF16, stream.device());
    return sm90_grouped_gemm_supports(gemm).reason;
  };
  EXPECT_EQ(refusal((1 << 21) - 1), "");
  EXPECT_EQ(refusal(1 << 21), "rows by index in 4294967296 bytes, more than 32 bits tell");
}

TEST_F(Sm90GroupedGemmTest, ScalesOfOddBlocksAreRefused) {
  Problem p{DType::kBF16, DType::kF32, 128, 192, {4}};
  p.scale_block = 48;
  EXPECT_EQ(sm90_grouped_gemm_supports(on_gpu(make_operands(p, 1), Stream::cuda(0))).reason,
            "scales of 48 columns of K, not of a multiple of 32");
}

TEST_F(Sm90GroupedGemmTest, SizesAreReadWhenAGraphRuns) {
  const Stream stream = Stream::cuda(0);
  const Problem p{DType::kBF16, DType::kF32, 256, 256, {40, 60, 30}, 0, 0, false};
  const Problem other{DType::kBF16, DType::kF32, 256, 256, {0, 129, 1}, 0, 0, false};
  const GroupedGemm host = make_operands(p, 60);
  const GroupedGemm gemm = on_gpu(host, stream);
  stream.synchronize();
  sm90_grouped_gemm(gemm, stream);
  const auto native = as_stream(stream.native_handle());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), "begin");
  sm90_grouped_gemm(gemm, stream);
  check_cuda(cudaStreamEndCapture(native, &graph), "end");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (const Problem& now : {other, p}) {
    const GroupedGemm sizes = make_operands(now, 60);
    copy(sizes.group_offsets, gemm.group_offsets, stream);
    copy(host.out, gemm.out, stream);
    check_cuda(cudaGraphLaunch(exec, native), "launch");
    const Tensor out = to_device(gemm.out, Device::cpu(), stream);
    stream.synchronize();
    expect_products(now, host, out);
  }
  check_cuda(cudaGraphExecDestroy(exec), "destroy");
  check_cuda(cudaGraphDestroy(graph), "destroy");
}

}  // namespace
}  // namespace moebius::cuda
