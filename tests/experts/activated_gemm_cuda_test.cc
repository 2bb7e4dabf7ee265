// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs that activate as they store are compared with the GEMM followed by the activation's
// own kernel.
#include <cmath>
#include <vector>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/activation/activation_codes.h"
#include "moebius/quantize.h"
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
  const bool has_codes = p.dtype == DType::kF8E4M3 && p.scale_block > 0;
  const DType dtype = has_codes ? DType::kF8E4M3 : DType::kBF16;
  const auto room = [&](int64_t columns, DType of) {
    return poisoned({p.num_rows(), columns}, of, stream);
  };
  const int64_t width = p.n / 2;
  RowOperand expected;
  expected.values = room(width, dtype);
  QuantizeSpec spec;
  spec.group = {1, kScaleBlock};
  spec.power_of_two_scale = power_of_two_scale;
  const Tensor in = gemm.out.view({p.num_rows(), p.n});
  if (has_codes) {
    expected.block = kScaleBlock;
    expected.scale = room(width / kScaleBlock, DType::kF32);
    activate_to_codes({{}, spec}, rows, in, expected, stream);
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
      gemm.out = room(width, dtype);
      gemm.out_scale = has_codes ? room(width / kScaleBlock, DType::kF32) : Tensor{};
      gemm.next_item = draws ? next_item : Tensor{};
      const Support support = sm90_grouped_gemm_supports(gemm);
      ASSERT_TRUE(support) << support.reason;
      sm90_grouped_gemm(gemm, stream);
      expect_same_bytes(expected.values, gemm.out, p, stream);
      if (has_codes) {
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

// Expects the codes that quantizing the activated rows in bf16 gives.
void check_static_codes(const GemmProblem& p, uint32_t seed, bool is_per_group) {
  const Stream stream = Stream::cuda(0);
  const GroupedGemm host = make_operands(p, seed);
  GroupedGemm gemm = on_gpu(host, stream);
  gemm.activates = true;
  const int64_t width = p.n / 2;
  gemm.out = poisoned({p.num_rows(), width}, DType::kBF16, stream);
  sm90_grouped_gemm(gemm, stream);
  const Tensor activated = to_device(gemm.out, Device::cpu(), stream);
  const Tensor scale =
      random_uniform({is_per_group ? p.num_groups() : 1}, DType::kF32, seed + 7, 1e-2f, 0.5f);
  gemm.out = poisoned({p.num_rows(), width}, DType::kF8E4M3, stream);
  gemm.out_scale = to_device(scale, stream.device(), stream);
  const Support support = sm90_grouped_gemm_supports(gemm);
  ASSERT_TRUE(support) << support.reason;
  sm90_grouped_gemm(gemm, stream);
  const Tensor expected =
      to_device(poisoned({p.num_rows(), width}, DType::kF8E4M3, stream), Device::cpu(), stream);
  stream.synchronize();
  QuantizeSpec spec;
  spec.group = GroupShape::per_tensor();
  for (int64_t g = 0; g < p.num_groups(); ++g) {
    const int64_t begin = p.first_row(g);
    const int64_t end = begin + p.rows[static_cast<size_t>(g)];
    if (begin == end) {
      continue;
    }
    Quantized codes = allocate_quantized(spec, end - begin, width);
    quantize(activated.slice(begin, end), spec, codes, Stream::cpu(),
             is_per_group ? scale.slice(g, g + 1) : scale);
    copy(codes.values, expected.slice(begin, end), Stream::cpu());
  }
  expect_same_bytes(to_device(expected, stream.device(), stream), gemm.out, p, stream);
}

TEST_F(ActivatedGemmTest, CodesMayHaveAGivenScale) {
  uint32_t seed = 9000;
  for (const bool is_per_group : {false, true}) {
    const auto check = [&](GemmProblem p) {
      p.dtype = DType::kF8E4M3;
      check_static_codes(p, seed += 10, is_per_group);
    };
    for (const int rows : {1, 33, 64, 65, 129}) {
      check({.n = 512, .k = 256, .rows = {rows}});
    }
    check({.n = 768, .k = 576, .rows = {0, 5, 0, 131, 64, 257, 0, 1, 200, 0}, .spare_rows = 37});
    check({.n = 256, .k = 320, .rows = {0, 5, 200, 33, 150}, .max_rows = 200});
  }
}

TEST_F(ActivatedGemmTest, WhatItCannotActivateIsRefused) {
  const Stream stream = Stream::cuda(0);
  const auto refusal = [&](DType dtype, DType out, int64_t n, int64_t scale_block = 0) {
    GemmProblem p{dtype, out, n, 128, {4}};
    p.scale_block = scale_block;
    GroupedGemm gemm = on_gpu(make_operands(p, 1), stream);
    gemm.activates = true;
    return sm90_grouped_gemm_supports(gemm).reason;
  };
  EXPECT_EQ(refusal(DType::kBF16, DType::kBF16, 256), "");
  EXPECT_EQ(refusal(DType::kBF16, DType::kBF16, 384),
            "N 384 is not a multiple of 256, as gate and up have to be");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF32, 256), "activated out is f32, of a in bf16");
  EXPECT_EQ(refusal(DType::kBF16, DType::kF8E4M3, 256), "activated out is f8e4m3, of a in bf16");
  EXPECT_EQ(refusal(DType::kF8E4M3, DType::kBF16, 256), "");
  EXPECT_EQ(refusal(DType::kF8E4M3, DType::kF8E4M3, 256), "");
  EXPECT_EQ(refusal(DType::kF8E4M3, DType::kBF16, 256, kScaleBlock),
            "activated out is bf16, of a in f8e4m3");
}

}  // namespace
}  // namespace moebius::cuda
