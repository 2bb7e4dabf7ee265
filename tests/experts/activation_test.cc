// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares apply_activation, on the CPU and on a GPU, with values worked out by hand, and checks
// its rounding points.
#include "experts/ref/activation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "moebius/experts.h"
#include "problems/expert_problem.h"
#include "problems/place.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"
#include "tests/on_devices.h"

namespace moebius {
namespace {

Tensor matrix(const Shape& shape, const std::vector<float>& values, DType dtype = DType::kF32) {
  Tensor tensor = Tensor::empty(shape, dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    set_float(tensor, static_cast<int64_t>(i), values[i]);
  }
  return tensor;
}

Tensor apply(const ActivationSpec& spec, const Tensor& input, const Stream& stream) {
  const testing::Place place(stream);
  const Tensor output = Tensor::empty({input.dim(0), input.dim(1) / (spec.gated ? 2 : 1)},
                                      input.dtype(), place.device());
  apply_activation(spec, place.take(input), output, stream);
  return place.bring(output);
}
Tensor apply(const ActivationSpec& spec, const Tensor& input, int threads = 1) {
  return apply(spec, input, Stream::cpu(threads));
}

// Computes the specification element by element, with the rounding of the dtype.
Tensor specified(const ActivationSpec& spec, const Tensor& input) {
  const int64_t n = input.dim(1) / (spec.gated ? 2 : 1);
  const Tensor output = Tensor::empty({input.dim(0), n}, input.dtype());
  const Tensor one = Tensor::empty({1}, input.dtype());
  const auto round = [&](float value) {
    set_float(one, 0, value);
    return get_float(one, 0);
  };
  for (int64_t r = 0; r < input.dim(0); ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t gate = r * input.dim(1) + (spec.interleaved ? 2 * i : i);
      const int64_t up = gate + (spec.interleaved ? 1 : n);
      const float value = ref::activate(spec, get_float(input, gate),
                                        spec.gated ? get_float(input, up) : 0.0f, round);
      set_float(output, r * n + i, value);
    }
  }
  return output;
}

constexpr double kNear = 3e-7;

TEST(Activation, SiluByHand) {
  // 2 * sigmoid(2) = 1.7615942, -1 * sigmoid(-1) = -0.26894142.
  const Tensor gated = apply({}, matrix({1, 4}, {2, -1, 3, 10}));
  EXPECT_NEAR(get_float(gated, 0), 5.2847825, 4 * kNear);
  EXPECT_NEAR(get_float(gated, 1), -2.6894142, 4 * kNear);
  const Tensor plain = apply({.gated = false}, matrix({1, 2}, {2, -1}));
  EXPECT_NEAR(get_float(plain, 0), 1.7615942, kNear);
  EXPECT_NEAR(get_float(plain, 1), -0.26894142, kNear);
}

TEST(Activation, GeluByHand) {
  // x * Phi(x): Phi(1) = 0.84134475, Phi(-2) = 0.022750132.
  const Tensor erf = apply({.kind = Activation::kGelu, .gated = false}, matrix({1, 2}, {1, -2}));
  EXPECT_NEAR(get_float(erf, 0), 0.84134475, kNear);
  EXPECT_NEAR(get_float(erf, 1), -0.045500264, kNear);
  // The tanh approximation: 0.8411920 and -0.04540231.
  const Tensor tanh =
      apply({.kind = Activation::kGeluTanh, .gated = false}, matrix({1, 2}, {1, -2}));
  EXPECT_NEAR(get_float(tanh, 0), 0.8411920, kNear);
  EXPECT_NEAR(get_float(tanh, 1), -0.04540231, kNear);
  EXPECT_NEAR(get_float(apply({.kind = Activation::kGelu}, matrix({1, 2}, {1, 2})), 0), 1.6826895,
              2 * kNear);
}

TEST(Activation, SwigluOaiByHand) {
  const ActivationSpec packed = {.kind = Activation::kSwigluOai};
  ActivationSpec interleaved = packed;
  interleaved.interleaved = true;
  // Within the limits: (0.5 + 1) * 2 * sigmoid(3.404) = 2.90348790.
  EXPECT_NEAR(get_float(apply(packed, matrix({1, 2}, {2, 0.5})), 0), 2.9034879, 6e-7);
  // gate 100 -> 7, up -20 -> -7: -6 * 7 * sigmoid(11.914) = -42 * 0.99999332.
  const Tensor clamped = apply(packed, matrix({1, 2}, {100, -20}));
  EXPECT_NEAR(get_float(clamped, 0), -41.999719, 1e-5);
  // A gate below -limit is not clamped: (1 + 1) * -10 * sigmoid(-17.02).
  EXPECT_NEAR(get_float(apply(packed, matrix({1, 2}, {-10, 1})), 0), -20 / (1 + std::exp(17.02)),
              1e-12);
  const Tensor a = apply(packed, matrix({1, 4}, {2, 100, 0.5, -20}));
  const Tensor b = apply(interleaved, matrix({1, 4}, {2, 0.5, 100, -20}));
  EXPECT_EQ(get_float(a, 0), get_float(b, 0));
  EXPECT_EQ(get_float(a, 1), get_float(b, 1));
}

TEST(Activation, SwigluOaiWithAnotherBeta) {
  // Silu with a clamp: 2 * sigmoid(2) * 0.5 within the limits; 7 * sigmoid(7) * -7 at both.
  const ActivationSpec clamped = {.kind = Activation::kSwigluOai, .alpha = 1.0f, .beta = 0.0f};
  EXPECT_NEAR(get_float(apply(clamped, matrix({1, 2}, {2, 0.5})), 0), 0.8807971, kNear);
  EXPECT_NEAR(get_float(apply(clamped, matrix({1, 2}, {100, -20})), 0), -48.955357, 2e-5);
  const Tensor silu = apply({}, matrix({1, 2}, {2, 0.5}));
  EXPECT_NEAR(get_float(apply(clamped, matrix({1, 2}, {2, 0.5})), 0), get_float(silu, 0), kNear);
  // (0.5 - 2) * 2 * sigmoid(3.404), packed and interleaved.
  ActivationSpec spec = {.kind = Activation::kSwigluOai, .beta = -2.0f};
  EXPECT_NEAR(get_float(apply(spec, matrix({1, 2}, {2, 0.5})), 0), -2.9034879, 6e-7);
  spec.interleaved = true;
  EXPECT_NEAR(get_float(apply(spec, matrix({1, 4}, {100, -20, 2, 0.5})), 1), -2.9034879, 6e-7);
}

TEST(Activation, SwigluStepByHand) {
  const ActivationSpec spec = {.kind = Activation::kSwigluStep, .limit = 1.5f};
  // silu(2) = 1.7615942 is cut to 1.5, silu(1) = 0.7310586 is not.
  EXPECT_EQ(get_float(apply(spec, matrix({1, 2}, {2, 0.5})), 0), 0.75f);
  EXPECT_NEAR(get_float(apply(spec, matrix({1, 2}, {1, 10})), 0), 0.7310586 * 1.5, 2 * kNear);
  // silu(-1) = -0.26894142, up cut at both ends.
  EXPECT_NEAR(get_float(apply(spec, matrix({1, 2}, {-1, -10})), 0), 0.26894142 * 1.5, kNear);
  const Tensor pairs = matrix({1, 4}, {2, 0.5, -1, -10});
  const Tensor output =
      apply({.kind = Activation::kSwigluStep, .interleaved = true, .limit = 1.5f}, pairs);
  EXPECT_EQ(get_float(output, 0), 0.75f);
  EXPECT_NEAR(get_float(output, 1), 0.26894142 * 1.5, kNear);
}

TEST(Activation, Relu2ByHand) {
  const Tensor output =
      apply({.kind = Activation::kRelu2, .gated = false}, matrix({1, 3}, {-3, 0, 1.5}));
  EXPECT_EQ(get_float(output, 0), 0.0f);
  EXPECT_EQ(get_float(output, 1), 0.0f);
  EXPECT_EQ(get_float(output, 2), 2.25f);
}

TEST(Activation, SiluRoundsTwiceAndTheClampedOnesOnce) {
  int differs = 0;
  for (float gate = 0.25f; gate < 4; gate += 0.25f) {
    for (float up = 1.0078125f; up < 2; up += 0.125f) {
      const Tensor output = apply({}, matrix({1, 2}, {gate, up}, DType::kBF16));
      const float u = static_cast<float>(BFloat16(up));
      const float act = ref::silu(gate);
      const BFloat16 twice(static_cast<float>(BFloat16(act)) * u);
      EXPECT_EQ(output.data<BFloat16>()[0].bits, twice.bits) << gate << " " << up;
      differs += twice.bits != BFloat16(act * u).bits;

      const Tensor oai =
          apply({.kind = Activation::kSwigluOai}, matrix({1, 2}, {gate, up}, DType::kBF16));
      EXPECT_EQ(oai.data<BFloat16>()[0].bits,
                BFloat16(ref::swiglu_oai(gate, u, 1.702f, 1.0f, 7.0f)).bits);
      const Tensor step =
          apply({.kind = Activation::kSwigluStep}, matrix({1, 2}, {gate, up}, DType::kBF16));
      EXPECT_EQ(step.data<BFloat16>()[0].bits, BFloat16(ref::swiglu_step(gate, u, 7.0f)).bits);
    }
  }
  EXPECT_GT(differs, 0) << "no value tells the two roundings from one";
}

class ActivationOn : public testing::OnDevices {
 protected:
  Tensor apply_there(const ActivationSpec& spec, const Tensor& input) const {
    return apply(spec, input, place_.stream);
  }
};

INSTANTIATE_TEST_SUITE_P(All, ActivationOn, testing::cpu_and_cuda(), testing::device_name);

// Vector code may differ from the specification in the last bits of f32, which moves a few values
// to the next value of a narrower dtype, at each of two roundings.  (1 + tanh) of the specification
// cancels for negative gates, hence the absolute part of the bound: a few units of f32 at inputs
// near 10.  (1 + erf) cancels, too; the CPU uses the specification's erf, and a GPU its own.
TEST_P(ActivationOn, AgreesWithTheSpecificationForEverySpecDtypeAndWidth) {
  std::vector<ActivationSpec> specs;
  for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    specs.push_back({.kind = kind});
    specs.push_back({.kind = kind, .gated = false});
    specs.push_back({.kind = kind, .interleaved = true});
  }
  specs.push_back({.kind = Activation::kSwigluOai, .alpha = 1.5f, .limit = 0.75f});
  specs.push_back({.kind = Activation::kSwigluOai, .interleaved = true});
  specs.push_back({.kind = Activation::kSwigluOai, .alpha = 1.0f, .beta = 0.0f, .limit = 2.0f});
  specs.push_back({.kind = Activation::kSwigluOai, .interleaved = true, .beta = 0.25f});
  specs.push_back({.kind = Activation::kSwigluStep, .limit = 1.25f});
  specs.push_back({.kind = Activation::kSwigluStep, .interleaved = true});
  specs.push_back({.kind = Activation::kRelu2, .gated = false});
  ExpertProblemMaker maker(5);
  for (const ActivationSpec& spec : specs) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t width : {1, 7, 8, 9, 255, 256, 257, 600}) {
        SCOPED_TRACE(std::string(name(spec.kind)) + " " + std::string(name(dtype)) + " " +
                     std::to_string(width));
        const Tensor input = maker.normal({3, width * (spec.gated ? 2 : 1)}, dtype, 3.0f);
        const Tensor expected = specified(spec, input);
        const Tensor actual = apply_there(spec, input);
        const double step = dtype == DType::kF32    ? 0x1p-20
                            : dtype == DType::kBF16 ? 0x1p-7
                                                    : 0x1p-10;
        int64_t differ = 0;
        for (int64_t i = 0; i < expected.numel(); ++i) {
          const double e = get_float(expected, i);
          ASSERT_NEAR(get_float(actual, i), e, 2 * step * std::abs(e) + 2e-6) << i;
          differ += get_float(actual, i) != get_float(expected, i);
        }
        const bool cancels = spec.kind == Activation::kGeluTanh ||
                             (spec.kind == Activation::kGelu && GetParam() == DeviceType::kCuda);
        if (dtype != DType::kF32 && !cancels) {
          EXPECT_LE(differ, 1 + expected.numel() / 200);
        }
      }
    }
  }
}

// The bits of a row depend on that row alone.
TEST_P(ActivationOn, ManyRowsAreAsEachOfThem) {
  for (const int64_t width : {24, 37}) {
    const Tensor input = ExpertProblemMaker(7).normal({20011, 2 * width}, DType::kBF16, 2.0f);
    const Tensor all = apply_there({}, input);
    for (int64_t row = 0; row < input.dim(0); row += 1999) {
      const Tensor one = apply_there({}, input.slice(row, row + 1));
      EXPECT_EQ(std::memcmp(all[row].raw(), one.raw(), static_cast<size_t>(one.nbytes())), 0)
          << "row " << row << " of width " << width;
    }
  }
}

TEST(Activation, SameBitsForAnyNumberOfThreads) {
  const Tensor input = ExpertProblemMaker(6).normal({37, 522}, DType::kBF16, 2.0f);
  const Tensor one = apply({}, input, 1);
  for (const int threads : {2, 3, 7}) {
    const Tensor more = apply({}, input, threads);
    EXPECT_EQ(std::memcmp(one.raw(), more.raw(), static_cast<size_t>(one.nbytes())), 0);
  }
}

TEST_P(ActivationOn, ExtremesAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor output =
      apply_there({.gated = false}, matrix({1, 8}, {-1e30f, -200, -90, 90, 1e30f, nan, 0, inf}));
  EXPECT_NEAR(get_float(output, 0), 0, 1e-6);
  EXPECT_NEAR(get_float(output, 1), 0, 1e-30);
  EXPECT_NEAR(get_float(output, 2), 0, 1e-30);
  EXPECT_EQ(get_float(output, 3), 90);
  EXPECT_EQ(get_float(output, 4), 1e30f);
  EXPECT_TRUE(std::isnan(get_float(output, 5)));
  EXPECT_EQ(get_float(output, 6), 0);
  EXPECT_EQ(get_float(output, 7), inf);
  for (const Activation kind : {Activation::kSwigluOai, Activation::kSwigluStep}) {
    const Tensor clamped = apply_there({.kind = kind}, matrix({3, 2}, {nan, 1, 1, nan, inf, -inf}));
    EXPECT_TRUE(std::isnan(get_float(clamped, 0))) << name(kind);
    EXPECT_TRUE(std::isnan(get_float(clamped, 1))) << name(kind);
    EXPECT_TRUE(std::isfinite(get_float(clamped, 2))) << name(kind);
  }
}

TEST_P(ActivationOn, NoRows) {
  const Tensor input = place_.take(matrix({1, 8}, {1, 2, 3, 4, 5, 6, 7, 8}));
  const Tensor guard = place_.take(matrix({1, 4}, {7, 7, 7, 7}));
  apply_activation({}, input.slice(0, 0), guard.slice(0, 0), place_.stream);
  const Tensor left = place_.bring(guard);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(get_float(left, i), 7) << i;
  }
}

std::string refusal(const ActivationSpec& spec,
                    const Tensor& input,
                    const Tensor& output,
                    const Stream& stream = Stream::cpu(1)) {
  return testing::message_of([&] { apply_activation(spec, input, output, stream); });
}

TEST(Activation, RefusalsNameBothValues) {
  using testing::expect_mentions;
  const Tensor input = Tensor::zeros({2, 8}, DType::kF32);
  expect_mentions(refusal({}, input, Tensor::zeros({2, 8}, DType::kF32)), "[2, 4]");
  expect_mentions(refusal({}, input, Tensor::zeros({2, 4}, DType::kBF16)), "bf16");
  expect_mentions(refusal({}, Tensor::zeros({2, 8}, DType::kI8), input), "i8");
  expect_mentions(refusal({}, Tensor::zeros({2, 7}, DType::kF32), input), "7");
  expect_mentions(refusal({.kind = Activation::kRelu2}, input, input), "relu2");
  expect_mentions(refusal({.gated = false, .interleaved = true}, input, input), "interleaved");
  for (const Activation kind : {Activation::kSwigluOai, Activation::kSwigluStep}) {
    const std::string called(name(kind));
    expect_mentions(refusal({.kind = kind, .gated = false}, input, input), called);
    expect_mentions(refusal({.kind = kind, .limit = 0.0f}, input, input),
                    called + " has limit 0, expected above 0");
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
    ActivationSpec spec{.kind = Activation::kSwigluOai, .alpha = value};
    expect_mentions(refusal(spec, input, input),
                    fmt::format("swiglu_oai has alpha {}, expected finite", value));
    spec = {.kind = Activation::kSwigluOai, .beta = value};
    expect_mentions(refusal(spec, input, input),
                    fmt::format("swiglu_oai has beta {}, expected finite", value));
    // Other activations have no alpha and no beta.
    spec = {.kind = Activation::kSwigluStep, .alpha = value, .beta = value};
    apply_activation(spec, input, Tensor::zeros({2, 4}, DType::kF32), Stream::cpu(1));
  }
}

class ActivationOnGpu : public GpuTest {};

TEST_F(ActivationOnGpu, OperandsElsewhereAreNamed) {
  const testing::Place place{DeviceType::kCuda};
  const Tensor input = Tensor::zeros({2, 8}, DType::kF32);
  const Tensor output = Tensor::zeros({2, 4}, DType::kF32);
  using testing::expect_mentions;
  expect_mentions(refusal({}, place.take(input), output, place.stream),
                  "device of output is cpu, expected cuda:0");
  expect_mentions(refusal({}, place.take(input), place.take(output)),
                  "device of the stream is cpu, expected cuda:0");
  expect_mentions(refusal({}, input, output, place.stream),
                  "device of the stream is cuda:0, expected cpu");
}

}  // namespace
}  // namespace moebius
