// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests dequantize_weight_rows() with every weight format and scale layout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "moebius/error.h"
#include "moebius/quantize.h"
#include "quant/impls.h"
#include "tests/error_text.h"
#include "tests/quant/forced_quant.h"
#include "tests/quant/tensors.h"

namespace moebius {
namespace {

using Floats = std::vector<float>;

Floats rows_of(const Tensor& w,
               const QuantDesc& desc,
               const WeightRows& rows,
               const Tensor& gscale = {}) {
  Floats out(static_cast<size_t>((rows.end - rows.begin) * w.dim(2)), -7.0f);
  dequantize_weight_rows(w, desc, rows, out.data(), gscale);
  return out;
}

QuantDesc desc_of(QuantFormat format, std::optional<GroupShape> shape, Tensor scale) {
  QuantDesc desc;
  desc.format = format;
  desc.shape = shape;
  desc.scale = std::move(scale);
  return desc;
}

// Experts that were quantized one by one and then put together as a weight.
struct Experts {
  Tensor w;  // [L, N, K]
  QuantDesc desc;
  std::vector<Floats> expected;  // per expert [N * K]
};

Experts quantized_experts(const QuantizeSpec& spec,
                          std::optional<GroupShape> shape,
                          int64_t num_experts,
                          int64_t rows,
                          int64_t cols) {
  Experts result;
  std::vector<Quantized> parts;
  for (int64_t e = 0; e < num_experts; ++e) {
    const Tensor x = random_matrix(rows, cols, DType::kF32, static_cast<uint32_t>(100 + e));
    parts.push_back(quantize(x, spec));
    const Tensor out = Tensor::empty({rows, cols}, DType::kF32);
    dequantize(parts.back(), spec, out, Stream{});
    result.expected.push_back(floats(out));
  }
  const auto stacked = [&](Tensor Quantized::*member) {
    const Tensor& first = parts[0].*member;
    if (!first.defined()) {
      return Tensor{};
    }
    const Tensor all = Tensor::empty({num_experts, first.dim(0), first.dim(1)}, first.dtype());
    for (int64_t e = 0; e < num_experts; ++e) {
      std::memcpy(all[e].raw(), (parts[static_cast<size_t>(e)].*member).raw(),
                  static_cast<size_t>(first.nbytes()));
    }
    return all;
  };
  result.w = stacked(&Quantized::values);
  result.desc = desc_of(spec.format, shape, stacked(&Quantized::scale));
  result.desc.zero_point = stacked(&Quantized::zero_point);
  return result;
}

struct WeightCase {
  std::string what;
  QuantizeSpec spec;
  std::optional<GroupShape> shape;  // the shape in the config's desc
};

std::vector<WeightCase> weight_cases() {
  const GroupShape channel = GroupShape::per_token();
  return {
      {"fp8 channel", QuantizeSpec{QuantFormat::kFp8, channel}, channel},
      {"fp8 block", QuantizeSpec{QuantFormat::kFp8, {48, 64}}, GroupShape{48, 64}},
      {"int8 channel", QuantizeSpec{QuantFormat::kInt8, channel}, std::nullopt},
      {"int8 group", QuantizeSpec{QuantFormat::kInt8, {1, 32}}, GroupShape{0, 32}},
      {"int4 group", QuantizeSpec{QuantFormat::kInt4, {1, 32}}, GroupShape{0, 32}},
      {"int4 group, zero points", QuantizeSpec{QuantFormat::kInt4, {1, 32}, false, true},
       GroupShape{1, 32}},
      {"int4 channel", QuantizeSpec{QuantFormat::kInt4, channel}, std::nullopt},
      {"mxfp4", QuantizeSpec{QuantFormat::kMxfp4, {1, 32}}, std::nullopt},
      {"mxfp6_e3m2", QuantizeSpec{QuantFormat::kMxfp6E3M2, {1, 32}}, std::nullopt},
      {"mxfp6_e2m3", QuantizeSpec{QuantFormat::kMxfp6E2M3, {1, 32}}, std::nullopt},
      {"mxfp8", QuantizeSpec{QuantFormat::kMxfp8, {1, 32}}, std::nullopt},
  };
}

TEST(WeightRows, AgreeWithDequantizeForEveryImplementation) {
  const int64_t num_experts = 3;
  const int64_t rows = 100;
  const int64_t cols = 160;
  for (const quant::Impl& impl : quant::impls()) {
    if (impl.device != DeviceType::kCpu || !impl.supports(cpu_features())) {
      continue;
    }
    const quant::ForcedQuant forced(impl.name);
    for (const WeightCase& c : weight_cases()) {
      SCOPED_TRACE(std::string(impl.name) + " " + c.what);
      const Experts experts = quantized_experts(c.spec, c.shape, num_experts, rows, cols);
      for (int64_t e = 0; e < num_experts; ++e) {
        const Floats& all = experts.expected[static_cast<size_t>(e)];
        ASSERT_EQ(rows_of(experts.w, experts.desc, {e, 0, rows, rows}), all);
        const Floats part(all.begin() + 33 * cols, all.begin() + 57 * cols);
        ASSERT_EQ(rows_of(experts.w, experts.desc, {e, 33, 57, rows}), part);
      }
    }
  }
}

// Rows with more groups than a kernel gets at once.
TEST(WeightRows, LongRowsAreReadWhole) {
  const QuantizeSpec spec{QuantFormat::kMxfp4, {1, 32}};
  const Experts experts = quantized_experts(spec, std::nullopt, 1, 2, 32 * 600);
  EXPECT_EQ(rows_of(experts.w, experts.desc, {0, 0, 2, 2}), experts.expected[0]);
}

TEST(WeightRows, PlainWeightsAreCopied) {
  for (const DType dtype : quant::kFloatTypes) {
    const Tensor w = convert(random_matrix(6, 10, DType::kF32, 3), dtype).view({2, 3, 10});
    const Floats all = floats(w);
    EXPECT_EQ(rows_of(w, QuantDesc{}, {1, 1, 3, 3}), Floats(all.begin() + 40, all.begin() + 60));
    EXPECT_TRUE(rows_of(w, QuantDesc{}, {0, 2, 2, 3}).empty());
  }
}

TEST(WeightRows, BlocksRestartAtTheUpHalf) {
  // Gate and up have 3 rows each; blocks of 2 rows leave one ragged block in each half.
  const Tensor w = Tensor::empty({1, 6, 2}, DType::kF8E4M3);
  for (int64_t i = 0; i < 12; ++i) {
    set_float(w, i, 1.0f);
  }
  const QuantDesc gated =
      desc_of(QuantFormat::kFp8, GroupShape{2, 2}, tensor_of({1, 4, 1}, {10, 20, 30, 40}));
  EXPECT_EQ(rows_of(w, gated, {0, 0, 6, 3}),
            (Floats{10, 10, 10, 10, 20, 20, 30, 30, 30, 30, 40, 40}));
  const QuantDesc whole =
      desc_of(QuantFormat::kFp8, GroupShape{2, 2}, tensor_of({1, 3, 1}, {10, 20, 30}));
  EXPECT_EQ(rows_of(w, whole, {0, 0, 6, 6}),
            (Floats{10, 10, 10, 10, 20, 20, 20, 20, 30, 30, 30, 30}));
}

TEST(WeightRows, ScalesPerTensorAndChannelOfAnyFloatType) {
  const Tensor w = tensor_of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, DType::kI8);
  for (const DType dtype : quant::kFloatTypes) {
    const QuantDesc tensor =
        desc_of(QuantFormat::kInt8, std::nullopt, tensor_of({2}, {2, 0.5f}, dtype));
    EXPECT_EQ(rows_of(w, tensor, {0, 0, 2, 2}), (Floats{2, 4, 6, 8}));
    EXPECT_EQ(rows_of(w, tensor, {1, 0, 2, 2}), (Floats{2.5f, 3, 3.5f, 4}));
    const Tensor scales = tensor_of({2, 2}, {1, 2, 3, 4}, dtype);
    const QuantDesc channel = desc_of(QuantFormat::kInt8, GroupShape::per_token(), scales);
    EXPECT_EQ(rows_of(w, channel, {1, 0, 2, 2}), (Floats{15, 18, 28, 32}));
    const QuantDesc column = desc_of(QuantFormat::kInt8, std::nullopt, scales.view({2, 2, 1}));
    EXPECT_EQ(rows_of(w, column, {1, 0, 2, 1}), (Floats{15, 18, 28, 32}));
  }
}

TEST(WeightRows, ZeroPointsAreUnsigned) {
  const Tensor int4 = bytes_of({1, 1, 4}, {0x51, 0xf8}, DType::kU4);
  QuantDesc desc = desc_of(QuantFormat::kInt4, GroupShape{0, 2}, tensor_of({1, 1, 2}, {1, 10}));
  EXPECT_EQ(rows_of(int4, desc, {0, 0, 1, 1}), (Floats{-7, -3, 0, 70}));
  desc.zero_point = bytes_of({1, 1, 2}, {1, 15}, DType::kU8);
  EXPECT_EQ(rows_of(int4, desc, {0, 0, 1, 1}), (Floats{0, 4, -70, 0}));

  const Tensor int8 = tensor_of({1, 1, 2}, {-128, 127}, DType::kI8);
  desc = desc_of(QuantFormat::kInt8, std::nullopt, tensor_of({1, 1, 1}, {1}));
  EXPECT_EQ(rows_of(int8, desc, {0, 0, 1, 1}), (Floats{-128, 127}));
  desc.zero_point = bytes_of({1, 1, 1}, {128}, DType::kU8);
  EXPECT_EQ(rows_of(int8, desc, {0, 0, 1, 1}), (Floats{-128, 127}));
  desc.zero_point = bytes_of({1, 1, 1}, {0}, DType::kU8);
  EXPECT_EQ(rows_of(int8, desc, {0, 0, 1, 1}), (Floats{0, 255}));
}

TEST(WeightRows, Nvfp4MultipliesGroupAndGlobalScales) {
  // Two experts have one row of gate and one of up with 32 columns.  The first column is -6, the
  // others are 0.5.
  const int64_t cols = 32;
  const Tensor w = Tensor::empty({2, 2, cols}, DType::kF4E2M1);
  for (int64_t i = 0; i < w.numel(); ++i) {
    set_float(w, i, i % cols == 0 ? -6.0f : 0.5f);
  }
  const Tensor scale = tensor_of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, DType::kF8E4M3);
  QuantDesc desc = desc_of(QuantFormat::kNvfp4, std::nullopt, scale);
  Floats row = rows_of(w, desc, {0, 1, 2, 1});
  EXPECT_EQ(row[0], -18);
  EXPECT_EQ(row[1], 1.5f);
  EXPECT_EQ(row[16], 2);

  desc.alpha_or_gscale = tensor_of({2}, {10, 100});
  EXPECT_EQ(rows_of(w, desc, {1, 0, 1, 1})[1], 250);
  desc.alpha_or_gscale = tensor_of({2, 2}, {1, 10, 100, 1000});
  EXPECT_EQ(rows_of(w, desc, {0, 0, 1, 1})[1], 0.5f);
  EXPECT_EQ(rows_of(w, desc, {0, 1, 2, 1})[1], 15);
  EXPECT_EQ(rows_of(w, desc, {1, 0, 1, 1})[16], 300);
  EXPECT_EQ(rows_of(w, desc, {1, 1, 2, 1})[16], 4000);
  EXPECT_EQ(rows_of(w, desc, {1, 1, 2, 2})[16],
            400);  // not gated, so the first factor is used everywhere
  // Accumulators of quantized activations are divided by their global scale; weights alone are not.
  EXPECT_EQ(rows_of(w, desc, {0, 1, 2, 1}, tensor_of({1}, {4}))[1], 60);
  EXPECT_EQ(rows_of(w, desc, {1, 0, 1, 1}, tensor_of({2}, {4, 2}))[16], 600);
}

TEST(WeightRows, RefuseWhatDoesNotFit) {
  using testing::expect_mentions;
  using testing::message_of;
  const Tensor w = Tensor::zeros({2, 4, 64}, DType::kF8E4M3);
  const QuantDesc good =
      desc_of(QuantFormat::kFp8, GroupShape{2, 32}, Tensor::zeros({2, 2, 2}, DType::kF32));
  EXPECT_EQ(rows_of(w, good, {1, 0, 4, 4}).size(), 256u);
  expect_mentions(message_of([&] { rows_of(w, good, {2, 0, 4, 4}); }), "local expert is 2");
  expect_mentions(message_of([&] { rows_of(w, good, {0, 0, 5, 4}); }), "row_end is 5");
  expect_mentions(message_of([&] { rows_of(w, good, {0, 0, 4, 5}); }), "gate_rows is 5");
  // Gate has 1 row and up has 3, so there are 1 + 2 blocks.
  expect_mentions(message_of([&] { rows_of(w, good, {0, 0, 4, 1}); }), "[2, 3, 2]");
  expect_mentions(message_of([&] { rows_of(w, QuantDesc{}, {0, 0, 4, 4}); }), "f8e4m3");

  QuantDesc desc = good;
  desc.format = QuantFormat::kInt8;
  expect_mentions(message_of([&] { rows_of(w, desc, {0, 0, 4, 4}); }), "i8");
  desc = good;
  desc.scale = Tensor{};
  expect_mentions(message_of([&] { rows_of(w, desc, {0, 0, 4, 4}); }), "scale");
  desc.scale = Tensor::zeros({2, 2, 2}, DType::kE8M0);
  expect_mentions(message_of([&] { rows_of(w, desc, {0, 0, 4, 4}); }), "e8m0");
  desc.scale = Tensor::zeros({2, 4}, DType::kF32);
  expect_mentions(message_of([&] { rows_of(w, desc, {0, 0, 4, 4}); }), "blocks of {2, 32}");
  desc.format = QuantFormat::kMxfp8;
  desc.scale = Tensor::zeros({2, 4, 1}, DType::kE8M0);
  expect_mentions(message_of([&] { rows_of(w, desc, {0, 0, 4, 4}); }), "[2, 4, 2]");
  desc = desc_of(QuantFormat::kInt4, GroupShape{0, 32}, Tensor::zeros({2, 4, 2}, DType::kF32));
  desc.zero_point = Tensor::zeros({2, 4, 1}, DType::kU8);
  const Tensor int4 = Tensor::zeros({2, 4, 64}, DType::kU4);
  expect_mentions(message_of([&] { rows_of(int4, desc, {0, 0, 4, 4}); }), "zero points");
  desc = good;
  desc.zero_point = Tensor::zeros({2, 2, 2}, DType::kU8);
  expect_mentions(message_of([&] {
                    rows_of(w, desc, {0, 0, 4, 4});
                  }),
                  "weight has zero points but is fp8");
  // Group 1 would begin within a byte.
  desc = desc_of(QuantFormat::kInt4, GroupShape{1, 3}, Tensor::zeros({1, 1, 2}, DType::kF32));
  expect_mentions(message_of([&] {
                    rows_of(Tensor::zeros({1, 1, 6}, DType::kU4), desc, {0, 0, 1, 1});
                  }),
                  "weight is int4 in groups of {1, 3}: their columns must be a multiple of 2");
}

TEST(WeightRows, RefuseWhatIsNotOnTheCpu) {
  const Tensor codes = Tensor::zeros({1, 1, 32}, DType::kF4E2M1);
  QuantDesc good =
      desc_of(QuantFormat::kNvfp4, std::nullopt, Tensor::zeros({1, 1, 2}, DType::kF8E4M3));
  good.alpha_or_gscale = tensor_of({1}, {1});
  const Tensor gscale = tensor_of({1}, {1});
  EXPECT_EQ(rows_of(codes, good, {0, 0, 1, 1}, gscale).size(), 32u);
  const auto there = [](const Tensor& tensor) {
    return Tensor::borrow(tensor.raw(), tensor.shape(), tensor.dtype(), Device::cuda(0));
  };
  const auto expect_refused = [&](const QuantDesc& desc, const Tensor& activation_gscale,
                                  const std::string& what) {
    const std::string message = testing::message_of<Unsupported>([&] {
      rows_of(codes, desc, {0, 0, 1, 1}, activation_gscale);
    });
    EXPECT_EQ(message.find(what + " is on cuda:0"), 0u) << message;
  };
  QuantDesc desc = good;
  desc.scale = there(good.scale);
  expect_refused(desc, gscale, "scale");
  desc = good;
  desc.alpha_or_gscale = there(good.alpha_or_gscale);
  expect_refused(desc, gscale, "alpha");
  expect_refused(good, there(gscale), "activation global scale");
  const Tensor int4 = Tensor::zeros({1, 1, 2}, DType::kU4);
  desc = desc_of(QuantFormat::kInt4, std::nullopt, tensor_of({1, 1}, {1}));
  desc.zero_point = there(Tensor::zeros({1, 1}, DType::kU8));
  EXPECT_THROW(rows_of(int4, desc, {0, 0, 1, 1}), Unsupported);
}

}  // namespace
}  // namespace moebius
