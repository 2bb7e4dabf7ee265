// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs that activate as they store are compared with the GEMM followed by the activation's
// own kernel.
#include <cmath>
#include <vector>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/activation/activation_codes.h"
#include "tests/experts/grouped_gemm_problem.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

using ActivatedGemmTest = HopperTest;

// Expects what the GEMM to bf16 and then the activation in a kernel of its own give, with the same
// rows left alone.
void check_activated(const GemmProblem& p, uint32_t seed, bool power_of_two_scale) {
  const Stream stream = Stream::cuda(0);
  GroupedGemm host = make_operands(p, seed);
  set_float(host.a, (p.num_rows() - 1) * p.k + 1, NAN);
  if (host.a_scale) {
    set_float(host.a_scale, 0, INFINITY);
  }
  if (p.has_bias) {
    host.column_scale = random_uniform({p.num_groups(), p.n}, DType::kF32, seed + 5, 0.5f, 2.0f);
  }
  const GroupedGemm elsewhere = p.max_rows > 0 ? GroupedGemm{} : scattered(host, seed);
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
  spec.group = {1, kScaleBlock};
  spec.power_of_two_scale = power_of_two_scale;
  const Tensor in = gemm.out.view({p.num_rows(), p.n});
  if (is_fp8) {
    expected.block = kScaleBlock;
    expected.scale = room(width / kScaleBlock, DType::kF32);
    activate_to_codes({}, spec, rows, in, expected, stream);
  } else {
    activate({}, rows, in, expected.values, stream);
  }
  const Tensor next_item = Tensor::zeros({2}, DType::kI32, stream.device());
  for (const bool is_elsewhere : {false, true}) {
    if (is_elsewhere) {
      if (!elsewhere.a) {
        break;
      }
      gemm = on_gpu(elsewhere, stream);
    }
    gemm.activates = true;
    gemm.power_of_two_scale = power_of_two_scale;
    for (const bool draws : {false, true}) {
      gemm.out = room(width, p.dtype);
      gemm.out_scale = is_fp8 ? room(width / kScaleBlock, DType::kF32) : Tensor{};
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
}

TEST_F(ActivatedGemmTest, ActivatesAsAKernelOfItsOwn) {
  uint32_t seed = 5000;
  for (const DType dtype : kGemmFormats) {
    const auto check_both = [&](GemmProblem p) {
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

TEST_F(ActivatedGemmTest, WhatItCannotActivateIsRefused) {
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

}  // namespace
}  // namespace moebius::cuda
