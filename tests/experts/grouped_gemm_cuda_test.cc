// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs on a GPU are compared with float64 products of the same elements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moebius/graph.h"
#include "tests/experts/grouped_gemm_problem.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

std::vector<double> widened(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    values[static_cast<size_t>(i)] = static_cast<double>(get_float(tensor, i));
  }
  return values;
}

// The values with their scales, which are constant over `rows` x 128 elements or over a whole row.
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
    const int64_t block = blocks > 1 ? i % k / kScaleBlock : 0;
    const int64_t at = (group * scale_rows + row / rows) * blocks + block;
    values[static_cast<size_t>(i)] *= static_cast<double>(scale.data<float>()[at]);
  }
  return values;
}

std::vector<double> scaled_weights(const GemmProblem& p, const GroupedGemm& host) {
  if (p.scale_block == 0 || p.dtype == DType::kF8E4M3) {
    std::vector<double> values = scaled(host.b, host.b_scale, kScaleBlock, p.k);
    for (int64_t i = 0; host.column_scale && i < host.b.numel(); ++i) {
      values[static_cast<size_t>(i)] *= static_cast<double>(get_float(host.column_scale, i / p.k));
    }
    return values;
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

void expect_products(const GemmProblem& p, const GroupedGemm& host, const Tensor& out) {
  const std::vector<double> a = scaled(host.a, host.a_scale, 1, p.k);
  const std::vector<double> b = scaled_weights(p, host);
  // This is what the tensor core may drop of a sum: for 16 bits those below 2^-23 of it each time;
  // for 128 fp8 products bits below 2^-13, four times.
  const bool is_fp8 = p.dtype == DType::kF8E4M3;
  const double dropped = is_fp8 ? 0x1p-11 : 0x1p-17;
  const double rounded = p.out == DType::kBF16 ? 0x1p-8 : p.out == DType::kF16 ? 0x1p-11 : 0x1p-22;
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
  const double limit = p.out == DType::kBF16  ? 3e-3
                       : is_fp8               ? 1e-3
                       : p.out == DType::kF16 ? 4e-4
                                              : 1e-5;
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

class Sm90GroupedGemmTest : public HopperTest {
 protected:
  void check(GemmProblem p, uint32_t seed, int num_sms = 0) {
    for (const int64_t block : scale_blocks(p.dtype)) {
      p.scale_block = block;
      check_one(p, seed, num_sms);
    }
  }

 private:
  void check_one(const GemmProblem& p, uint32_t seed, int num_sms) {
    const GroupedGemm host = make_operands(p, seed);
    const Tensor out = run_on_gpu(host, Stream::cuda(0), num_sms);
    expect_products(p, host, out);
    // The result is the same when any free cluster takes the next item and weights are fetched
    // ahead, twice.
    const Stream stream = Stream::cuda(0);
    const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
    for (int round = 0; round < 2; ++round) {
      const Tensor again = run_on_gpu(host, stream, num_sms, next_item);
      EXPECT_EQ(std::memcmp(out.raw(), again.raw(), static_cast<size_t>(out.nbytes())), 0)
          << to_string(p) << ": run " << round + 2 << " differs";
    }
    // It is also the same with as few clusters as there can be.
    const Tensor by_two = run_on_gpu(host, stream, 2);
    EXPECT_EQ(std::memcmp(out.raw(), by_two.raw(), static_cast<size_t>(out.nbytes())), 0)
        << to_string(p) << ": by one cluster differs";
  }
};

constexpr DType kOuts[] = {DType::kBF16, DType::kF32};

TEST_F(Sm90GroupedGemmTest, OneTileOfEachKind) {
  uint32_t seed = 1;
  for (const DType dtype : kGemmFormats) {
    for (const DType out : kOuts) {
      for (const int rows : {1, 31, 33, 64, 65, 128, 129, 256}) {
        check({dtype, out, 512, 256, {rows}}, seed += 10);
      }
    }
  }
}

TEST_F(Sm90GroupedGemmTest, OperandsAndResultsOfF16) {
  uint32_t seed = 500;
  for (const auto& [dtype, out] : {std::pair(DType::kF16, DType::kF16),
                                   {DType::kF16, DType::kF32},
                                   {DType::kBF16, DType::kF16},
                                   {DType::kF8E4M3, DType::kF16}}) {
    for (const int rows : {1, 33, 65, 129}) {
      check({dtype, out, 512, 256, {rows, 0, 31}}, seed += 10);
    }
    check({dtype, out, 320, 576, {5, 257, 200}, 0, 37, true}, seed += 10);
    check({dtype, out, 320, 192, {600, 0, 257}, 0, 37, true}, seed += 10);
  }
}

TEST_F(Sm90GroupedGemmTest, UnevenGroupsSomeEmpty) {
  uint32_t seed = 1000;
  for (const DType dtype : kGemmFormats) {
    for (const DType out : kOuts) {
      check({dtype, out, 320, 576, {0, 5, 0, 131, 64, 257, 0, 1, 200, 0}, 0, 37, true}, seed += 10);
      check({dtype, out, 64, 64, {3, 0, 129}, 0, 1, false}, seed += 10);
      check({dtype, out, 768, 1152, {333}, 0, 0, true}, seed += 10);
      check({dtype, out, 320, 192, {600, 0, 257}, 0, 37, true}, seed += 10);  // stored in bulk
    }
  }
}

TEST_F(Sm90GroupedGemmTest, BatchedGroups) {
  uint32_t seed = 2000;
  for (const DType dtype : kGemmFormats) {
    for (const DType out : kOuts) {
      check({dtype, out, 448, 320, {0, 5, 200, 33, 150}, 200, 0, true}, seed += 10);
      check({dtype, out, 256, 704, {1, 0, 7}, 8, 0, false}, seed += 10);
    }
  }
}

TEST_F(Sm90GroupedGemmTest, ManyTilesPerCta) {
  uint32_t seed = 3000;
  for (const DType dtype : kGemmFormats) {
    check({dtype, DType::kBF16, 1280, 192, {700, 32, 0, 20, 64, 129, 383}, 0, 3, false}, seed += 10,
          2);
    check({dtype, DType::kBF16, 576, 192, {2600, 100}, 0, 0, false}, seed += 10, 7);
  }
}

TEST_F(Sm90GroupedGemmTest, RandomGroups) {
  std::mt19937 random(7);
  for (uint32_t round = 0; round < 12; ++round) {
    GemmProblem p;
    p.dtype = kGemmFormats[round % 2];
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

// The same rows are in groups of other sizes with the same weights, and so in other tiles with
// other neighbours.
TEST_F(Sm90GroupedGemmTest, ARowDoesNotDependOnItsPlace) {
  const auto same_wherever = [](const GemmProblem& whole) {
    const GroupedGemm one = make_operands(whole, 50);
    const Tensor expected = run_on_gpu(one, Stream::cuda(0));
    const std::vector<int> sizes = {1, 37, 0, 64, 128, 3, 65, 215};
    GemmProblem parts = whole;
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
    repeat(split.column_scale, one.column_scale);
    repeat(split.bias, one.bias);
    const Tensor out = run_on_gpu(split, Stream::cuda(0));
    int64_t differing = 0;
    for (int64_t i = 0; i < out.numel(); ++i) {
      differing += out.data<float>()[i] != expected.data<float>()[i] ? 1 : 0;
    }
    EXPECT_EQ(differing, 0) << to_string(whole) << ", of " << out.numel();
  };
  for (const DType dtype : kGemmFormats) {
    for (const int64_t block : scale_blocks(dtype)) {
      same_wherever({dtype, DType::kF32, 320, 640, {513}, 0, 0, true, block});
    }
  }
}

// Columns are computed one block after the other, into an out that has all of them.
TEST_F(Sm90GroupedGemmTest, ColumnsAlone) {
  const Stream stream = Stream::cuda(0);
  const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
  uint32_t seed = 6000;
  for (const DType dtype : kGemmFormats) {
    for (const int64_t n : {576, 704, 1024}) {
      GemmProblem p{dtype, DType::kBF16, n, 384, {0, 5, 300, 64, 129, 0, 200}, 0, 3, true};
      if (n == 704) {
        p.rows = {513, 300};  // stored in bulk
      }
      p.scale_block = n == 576 ? 0 : kScaleBlock;
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

// Problems with a scale for each row and column.
const std::vector<GemmProblem>& problems_by_row() {
  static const std::vector<GemmProblem> problems = {
      {.out = DType::kBF16, .n = 320, .k = 576, .rows = {0, 5, 200, 33, 150}, .spare_rows = 3},
      {.out = DType::kF32, .n = 512, .k = 320, .rows = {31, 64, 65, 1, 0, 257}, .has_bias = true},
      {.out = DType::kBF16, .n = 448, .k = 192, .rows = {5, 0, 200, 40}, .max_rows = 200},
      {.out = DType::kBF16, .n = 320, .k = 192, .rows = {600, 0, 257}},
  };
  return problems;
}

// Scales of rows and columns of f8e4m3 may be shared by all rows or columns, and those of columns
// may be in 16 bits.
TEST_F(Sm90GroupedGemmTest, Fp8ByRowsAndColumns) {
  const Stream stream = Stream::cuda(0);
  uint32_t seed = 8000;
  for (GemmProblem p : problems_by_row()) {
    p.dtype = DType::kF8E4M3;
    GroupedGemm host = make_operands(p, seed += 20);
    const Tensor of_rows = host.a_scale;
    const int64_t groups = p.num_groups();
    for (const Shape& scales : {of_rows.shape(), Shape{groups, 1, 1}, Shape{1, 1}}) {
      for (const int64_t columns : {p.n, int64_t{1}}) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
          host.a_scale = random_uniform(scales, DType::kF32, ++seed, 1e-3f, 4e-3f);
          host.column_scale = random_uniform({groups, columns}, dtype, ++seed, 1e-3f, 4e-3f);
          const Tensor out = run_on_gpu(host, stream);
          // The same scales, each told for every row and column.
          GroupedGemm told = host;
          told.a_scale = of_rows.clone();
          told.column_scale = Tensor::empty({groups, p.n}, DType::kF32);
          for (int64_t g = 0; g < groups; ++g) {
            for (int64_t n = 0; n < p.n; ++n) {
              told.column_scale.data<float>()[g * p.n + n] =
                  get_float(host.column_scale, g * columns + n % columns);
            }
            for (int64_t i = 0; i < p.rows[static_cast<size_t>(g)]; ++i) {
              const int64_t row = p.first_row(g) + i;
              const int64_t at = host.a_scale.numel() == of_rows.numel() ? row
                                 : host.a_scale.numel() > 1              ? g
                                                                         : 0;
              told.a_scale.data<float>()[row] = host.a_scale.data<float>()[at];
            }
          }
          expect_products(p, told, out);
          const Tensor again = run_on_gpu(told, stream);
          EXPECT_EQ(std::memcmp(again.raw(), out.raw(), static_cast<size_t>(out.nbytes())), 0)
              << to_string(p) << ": " << to_string(scales) << ", " << columns << " columns in "
              << name(dtype);
        }
      }
    }
  }
}

TEST_F(Sm90GroupedGemmTest, OperandsWithoutTheirScalesAreRefused) {
  const Stream stream = Stream::cuda(0);
  GroupedGemm gemm =
      on_gpu(make_operands({DType::kF8E4M3, DType::kBF16, 128, 128, {4}}, 1), stream);
  EXPECT_TRUE(sm90_grouped_gemm_supports(gemm));
  const Tensor columns = gemm.column_scale;
  gemm.column_scale = {};
  EXPECT_EQ(sm90_grouped_gemm_supports(gemm).reason, "f8e4m3 without scales of a or of b");
  gemm.column_scale = Tensor::borrow(columns.raw(), columns.shape(), DType::kU8, stream.device());
  EXPECT_EQ(sm90_grouped_gemm_supports(gemm).reason, "scales of columns in u8, of a in f8e4m3");
}

// Sums are exact, so every element is known to the bit.
TEST_F(Sm90GroupedGemmTest, Int8) {
  const Stream stream = Stream::cuda(0);
  uint32_t seed = 6000;
  for (GemmProblem p : problems_by_row()) {
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
        const DType dtype = scales == rows ? DType::kBF16 : DType::kF32;
        host.column_scale = take({p.num_groups(), columns}, dtype, 1e-3f, 4e-3f);
        const bool is_per_row = scales == rows;
        const GroupedGemm elsewhere = p.max_rows == 0 ? scattered(host, seed) : host;
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
                               get_float(host.column_scale, g * columns + n % columns);
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
  const auto check_same = [&](const GemmProblem& p, int num_sms) {
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
  for (const DType dtype : kGemmFormats) {
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
        check_both({700, 129}, 320, 192, 4);
      }
    }
  }
}

// The rows are never read: there is not that much memory.
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
  GemmProblem p{DType::kBF16, DType::kF32, 128, 192, {4}};
  p.scale_block = 48;
  EXPECT_EQ(sm90_grouped_gemm_supports(on_gpu(make_operands(p, 1), Stream::cuda(0))).reason,
            "scales of 48 columns of K, not of a multiple of 32");
}

TEST_F(Sm90GroupedGemmTest, SizesAreReadWhenAGraphRuns) {
  const Stream stream = Stream::cuda(0);
  const GemmProblem p{DType::kBF16, DType::kF32, 256, 256, {40, 60, 30}, 0, 0, false};
  const GemmProblem other{DType::kBF16, DType::kF32, 256, 256, {0, 129, 1}, 0, 0, false};
  const GroupedGemm host = make_operands(p, 60);
  const GroupedGemm gemm = on_gpu(host, stream);
  stream.synchronize();
  sm90_grouped_gemm(gemm, stream);
  const Graph graph(stream, [&] { sm90_grouped_gemm(gemm, stream); });
  for (const GemmProblem& now : {other, p}) {
    const GroupedGemm sizes = make_operands(now, 60);
    copy(sizes.group_offsets, gemm.group_offsets, stream);
    copy(host.out, gemm.out, stream);
    graph.launch();
    const Tensor out = to_device(gemm.out, Device::cpu(), stream);
    stream.synchronize();
    expect_products(now, host, out);
  }
}

}  // namespace
}  // namespace moebius::cuda
