// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Expert GEMMs whose weights are decoded some groups at a time are compared with GEMMs that read
// codes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "experts/cuda/gemm/expert_gemm.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_bytes;
using testing::random_uniform;

constexpr int64_t kN = 192;
constexpr int64_t kK = 320;
const std::vector<int> kRows = {5, 0, 300, 70, 1, 129};  // per group
constexpr int64_t kMaxRows = 301;
const auto kGroups = static_cast<int64_t>(kRows.size());

struct Case {
  const char* name;
  WeightOperand w;
  RowOperand a;  // without values
};

Tensor weight_codes(QuantFormat format) {
  return random_bytes({kGroups, kN, kK}, storage_dtype(format), 0, 255, 1);
}

Case make_case(const char* name, QuantFormat format) {
  Case c;
  c.name = name;
  c.w.values = weight_codes(format);
  c.w.quant.format = format;
  c.w.gate_rows = kN / 2;
  return c;
}

// A case of codes whose products with their scales bf16 does not hold.
Case make_grouped(
    const char* name, QuantFormat format, int64_t group, DType scales, uint32_t seed) {
  Case c = make_case(name, format);
  const int64_t blocks = (kK + group - 1) / group;
  c.w.quant.shape = GroupShape{1, group};
  c.w.quant.scale = random_uniform({kGroups, kN, blocks}, scales, seed, 0.5f, 2.0f);
  return c;
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  Case mxfp4 = make_case("mxfp4", QuantFormat::kMxfp4);
  mxfp4.w.quant.scale = random_bytes({kGroups, kN, kK / 32}, DType::kE8M0, 120, 130, 2);
  mxfp4.w.quant.bias = random_uniform({kGroups, kN}, DType::kF32, 3, -2.0f, 2.0f);
  cases.push_back(mxfp4);

  Case mxfp8 = make_case("mxfp8", QuantFormat::kMxfp8);
  mxfp8.w.values = random_uniform({kGroups, kN, kK}, DType::kF8E4M3, 1, -400.0f, 400.0f);
  mxfp8.w.quant.scale = mxfp4.w.quant.scale;
  cases.push_back(mxfp8);

  for (const QuantFormat format : {QuantFormat::kMxfp6E3M2, QuantFormat::kMxfp6E2M3}) {
    Case mxfp6 = make_case("mxfp6", format);
    mxfp6.w.quant.scale = mxfp4.w.quant.scale;
    cases.push_back(mxfp6);
  }

  Case nvfp4 = make_case("nvfp4", QuantFormat::kNvfp4);
  nvfp4.w.quant.scale = random_bytes({kGroups, kN, kK / 16}, DType::kF8E4M3, 0x28, 0x48, 4);
  nvfp4.w.quant.alpha_or_gscale = random_uniform({kGroups, 2}, DType::kF32, 5, 0.5f, 2.0f);
  nvfp4.a.scales = RowScales::kPerGroup;
  nvfp4.a.scale = random_uniform({kGroups}, DType::kF32, 6, 0.5f, 2.0f);
  nvfp4.a.divides = true;
  cases.push_back(nvfp4);

  Case int8 = make_case("int8 with a scale and a zero point per column", QuantFormat::kInt8);
  int8.w.quant.scale = random_uniform({kGroups, kN, 1}, DType::kF32, 7, 0.5f, 2.0f);
  int8.w.quant.zero_point = random_bytes({kGroups, kN, 1}, DType::kU8, 0, 255, 8);
  int8.w.quant.shape = GroupShape{1, -1};
  cases.push_back(int8);

  cases.push_back(make_grouped("int4 by 32", QuantFormat::kInt4, 32, DType::kBF16, 10));
  cases.push_back(make_grouped("int4 by 128", QuantFormat::kInt4, 128, DType::kF32, 11));
  Case zero_points =
      make_grouped("int4 by 64, zero points", QuantFormat::kInt4, 64, DType::kF16, 12);
  zero_points.w.quant.zero_point = random_bytes({kGroups, kN, kK / 64}, DType::kU8, 0, 15, 13);
  zero_points.w.quant.bias = random_uniform({kGroups, kN}, DType::kF32, 14, -2.0f, 2.0f);
  cases.push_back(zero_points);
  Case int8_groups =
      make_grouped("int8 by 64, zero points", QuantFormat::kInt8, 64, DType::kBF16, 15);
  int8_groups.w.quant.zero_point = random_bytes({kGroups, kN, kK / 64}, DType::kU8, 0, 255, 16);
  cases.push_back(int8_groups);

  Case fp8 = make_case("fp8 per column, rows with scales", QuantFormat::kFp8);
  fp8.w.values = mxfp8.w.values;
  fp8.w.quant.scale = int8.w.quant.scale;
  fp8.w.quant.shape = GroupShape{1, -1};
  fp8.a.scales = RowScales::kPerRow;
  cases.push_back(fp8);
  Case fp8_tensor = fp8;
  fp8_tensor.name = "fp8 per tensor";
  fp8_tensor.w.quant.scale = random_uniform({kGroups}, DType::kF32, 17, 0.5f, 2.0f);
  fp8_tensor.w.quant.shape = GroupShape{-1, -1};
  fp8_tensor.a.scales = RowScales::kAll;
  fp8_tensor.a.scale = random_uniform({1}, DType::kF32, 18, 0.5f, 2.0f);
  cases.push_back(fp8_tensor);
  return cases;
}

int64_t decoded_elements(const WeightOperand& w, DType rows, int64_t expected_rows) {
  GemmDesc desc;
  desc.rows.dtype = rows;
  desc.out = DType::kF32;
  desc.weights = facts_of(w);
  return choose_gemm(desc, cuda_device_info(0), expected_rows).decoded_elements;
}

class DecodedGemmTest : public HopperTest {
 protected:
  Tensor room(const Shape& shape, DType dtype) const {
    return there(Tensor::zeros(shape, dtype, Device::cpu()));
  }

  bool is_zero(const Tensor& tensor) {
    const Tensor host = here(tensor);
    const auto* bytes = reinterpret_cast<const uint8_t*>(host.raw());
    return std::all_of(bytes, bytes + host.nbytes(), [](uint8_t byte) { return byte == 0; });
  }

  // The error is relative to the largest element.
  void expect_near(const Tensor& expected, const Tensor& actual, const std::string& what) {
    const Tensor want = here(expected);
    const Tensor have = here(actual);
    float largest = 0.0f;
    float error = 0.0f;
    for (int64_t i = 0; i < want.numel(); ++i) {
      largest = std::max(largest, std::abs(get_float(want, i)));
      error = std::max(error, std::abs(get_float(want, i) - get_float(have, i)));
    }
    EXPECT_GT(largest, 0.0f) << what;
    EXPECT_LE(error, 1e-5f * largest) << what;
  }
};

TEST_F(DecodedGemmTest, AgreesWithCodesHoweverManyGroupsAtOnce) {
  for (Case& c : make_cases()) {
    for (Tensor* tensor : {&c.w.values, &c.w.quant.scale, &c.w.quant.zero_point,
                           &c.w.quant.alpha_or_gscale, &c.w.quant.bias, &c.a.scale}) {
      *tensor = there(*tensor);
    }
    for (const auto& [dtype, is_batched] : {std::pair(DType::kBF16, false),
                                            {DType::kBF16, true},
                                            {DType::kF16, false},
                                            {DType::kF16, true}}) {
      const int64_t all = decoded_elements(c.w, dtype, kManyRows);
      ASSERT_GT(all, 0) << c.name;
      const GroupedRows rows = grouped(kRows, is_batched ? kMaxRows : 0);
      const int64_t num_rows = rows.num_rows;
      ExpertGemm gemm;
      gemm.a = c.a;
      gemm.a.values = there(random_uniform({num_rows, kK}, dtype, 9, -1.0f, 1.0f));
      if (c.a.scales == RowScales::kPerRow) {
        gemm.a.scale = there(random_uniform({num_rows, 1}, DType::kF32, 19, 0.5f, 2.0f));
        gemm.a.block = kK;
      }
      gemm.w = &c.w;
      gemm.rows = rows.groups;
      const auto run = [&](int64_t groups_at_once) {
        gemm.out = room({num_rows, kN}, DType::kF32);
        gemm.decoded =
            groups_at_once > 0 ? room({all / kGroups * groups_at_once}, DType::kBF16) : Tensor();
        run_expert_gemm(gemm, stream_);
        EXPECT_EQ(groups_at_once > 0, gemm.decoded && !is_zero(gemm.decoded)) << c.name;
        return gemm.out;
      };
      const Tensor expected = run(0);
      for (const int64_t at_once : {int64_t{1}, int64_t{2}, kGroups}) {
        expect_near(expected, run(at_once),
                    std::string(c.name) + " " + std::string(name(dtype)) +
                        (is_batched ? ", batched, " : ", sorted, ") + std::to_string(at_once) +
                        " groups at once");
      }
    }
  }
}

TEST_F(DecodedGemmTest, CodesWhoseScalesAreOfFewerThan32AreNotDecoded) {
  WeightOperand int4;
  int4.values = there(weight_codes(QuantFormat::kInt4));
  int4.quant.format = QuantFormat::kInt4;
  int4.quant.shape = GroupShape{1, 16};
  int4.quant.scale = room({kGroups, kN, kK / 16}, DType::kF32);
  int4.gate_rows = kN;
  EXPECT_EQ(decoded_elements(int4, DType::kBF16, kManyRows), 0);
  int4.quant.shape = GroupShape{1, 32};
  int4.quant.scale = room({kGroups, kN, kK / 32}, DType::kF32);
  EXPECT_GT(decoded_elements(int4, DType::kBF16, kManyRows), 0);
  std::vector<Case> cases = make_cases();
  cases[0].w.values = there(cases[0].w.values);
  const WeightFacts mxfp4 = facts_of(cases[0].w);
  const int64_t least = least_decoded_rows(mxfp4, DType::kBF16) * kGroups;
  EXPECT_GT(decoded_elements(cases[0].w, DType::kBF16, least), 0);
  EXPECT_EQ(decoded_elements(cases[0].w, DType::kBF16, least - 1), 0);
  EXPECT_GT(decoded_elements(cases[0].w, DType::kF16, 2 * least), 0);
  EXPECT_EQ(decoded_elements(cases[0].w, DType::kF32, kManyRows), 0);
}

}  // namespace
}  // namespace moebius::cuda
