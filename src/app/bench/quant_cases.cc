// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The cases of quantization: quantize and dequantize are compared bit by bit with `ref`, and their
// rate with that of memcpy.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "app/bench/cases.h"
#include "app/bench/harness.h"
#include "app/forced_setting.h"
#include "app/run/random_tensor.h"
#include "moebius/quantize.h"
#include "quant/impls.h"

namespace moebius::bench {

namespace {

using app::Value;

struct QuantProblem {
  const char* name;
  QuantizeSpec spec;
};

constexpr GroupShape kPerTensor = GroupShape::per_tensor();
constexpr GroupShape kPerToken = GroupShape::per_token();
const QuantProblem kQuantProblems[] = {
    {"fp8_tensor", {QuantFormat::kFp8, kPerTensor}},
    {"fp8_token", {QuantFormat::kFp8, kPerToken}},
    {"fp8_1x128", {QuantFormat::kFp8, {1, 128}}},
    {"fp8_1x128_ue8m0", {QuantFormat::kFp8, {1, 128}, true}},
    {"fp8_128x128", {QuantFormat::kFp8, {128, 128}}},
    {"int8_tensor", {QuantFormat::kInt8, kPerTensor}},
    {"int8_token", {QuantFormat::kInt8, kPerToken}},
    {"int8_1x128", {QuantFormat::kInt8, {1, 128}}},
    {"int4_1x128", {QuantFormat::kInt4, {1, 128}}},
    {"int4_1x128_zero_points", {QuantFormat::kInt4, {1, 128}, false, true}},
    {"mxfp4", {QuantFormat::kMxfp4, {1, 32}}},
    {"mxfp6_e3m2", {QuantFormat::kMxfp6E3M2, {1, 32}}},
    {"mxfp6_e2m3", {QuantFormat::kMxfp6E2M3, {1, 32}}},
    {"mxfp8", {QuantFormat::kMxfp8, {1, 32}}},
    {"nvfp4", {QuantFormat::kNvfp4, {1, 16}}},
};

// The small shape is no multiple of a tile.  The real one is larger than any cache, since the
// question is how near a stage comes to the memory's rate.
Shape shape_of(bool is_small) {
  return is_small ? Shape{37, 384} : Shape{4096, 7168};
}

int64_t bytes_of(const Quantized& q) {
  int64_t bytes = q.values.nbytes() + q.scale.nbytes();
  for (const Tensor* extra : {&q.zero_point, &q.global_scale}) {
    bytes += extra->defined() ? extra->nbytes() : 0;
  }
  return bytes;
}

// Allocates outputs and touches their pages, so that no timed call waits for the system to make
// them.
Quantized allocate_touched(const QuantizeSpec& spec, const Tensor& x) {
  Quantized q = allocate_quantized(spec, x.dim(0), x.dim(1));
  for (const Tensor* tensor : {&q.values, &q.scale}) {
    std::memset(tensor->raw(), 0, static_cast<size_t>(tensor->nbytes()));
  }
  return q;
}

std::optional<std::string> difference(const Quantized& actual, const Quantized& expected) {
  const std::pair<const char*, Tensor Quantized::*> parts[] = {
      {"values", &Quantized::values},
      {"scales", &Quantized::scale},
      {"zero points", &Quantized::zero_point},
      {"global scales", &Quantized::global_scale}};
  for (const auto& [what, part] : parts) {
    if (auto d = byte_difference(what, actual.*part, expected.*part)) {
      return d;
    }
  }
  return std::nullopt;
}

class QuantCases {
 public:
  explicit QuantCases(const CaseSetup& setup)
      : setup_(setup),
        x_(app::random_normal(shape_of(setup.is_small), DType::kBF16, 1)),
        back_(Tensor::zeros(x_.shape(), x_.dtype())),
        memcpy_(setup.is_small ? 0 : memcpy_gb_per_s(setup.stream)) {}

  void run(const QuantProblem& problem, const quant::Impl& impl) {
    const Support support = impl.supports(cpu_features());
    Quantized q = allocate_touched(problem.spec, x_);
    Quantized expected = allocate_touched(problem.spec, x_);
    Case c;
    c.impl = impl.name;
    c.refusal = support.reason;
    c.metrics = [&](double seconds) {
      const double rate = static_cast<double>(x_.nbytes() + bytes_of(q)) / seconds * 1e-9;
      return std::vector<Value>{rate, rate / memcpy_, memcpy_};
    };
    const auto by = [](std::string_view name, auto work) {
      return [name, work] {
        const app::ForcedSetting forced("MOEBIUS_QUANT", std::string(name));
        work();
      };
    };
    c.problem = std::string(problem.name) + "/quantize";
    if (setup_.wants(c.problem, c.impl)) {
      c.call = by(impl.name, [&] { quantize(x_, problem.spec, q, setup_.stream); });
      c.reference = [&] {
        return seconds_of(by("ref", [&] { quantize(x_, problem.spec, expected, setup_.stream); }));
      };
      c.difference = [&] { return difference(q, expected); };
      setup_.visit(c);
    }
    c.problem = std::string(problem.name) + "/dequantize";
    if (setup_.wants(c.problem, c.impl)) {
      const Tensor expected_back = Tensor::zeros(back_.shape(), back_.dtype());
      by("ref", [&] { quantize(x_, problem.spec, q, setup_.stream); })();
      c.call = by(impl.name, [&] { dequantize(q, problem.spec, back_, setup_.stream); });
      c.reference = [&] {
        return seconds_of(
            by("ref", [&] { dequantize(q, problem.spec, expected_back, setup_.stream); }));
      };
      c.difference = [&] { return byte_difference("values", back_, expected_back); };
      setup_.visit(c);
    }
  }

 private:
  const CaseSetup& setup_;
  Tensor x_;
  Tensor back_;
  double memcpy_;
};

}  // namespace

void run_quant_cases(const CaseSetup& setup) {
  const auto is_wanted = [&](const QuantProblem& problem) {
    return std::any_of(quant::impls().begin(), quant::impls().end(), [&](const quant::Impl& impl) {
      return setup.wants(std::string(problem.name) + "/quantize", impl.name) ||
             setup.wants(std::string(problem.name) + "/dequantize", impl.name);
    });
  };
  if (std::none_of(std::begin(kQuantProblems), std::end(kQuantProblems), is_wanted)) {
    return;
  }
  QuantCases cases(setup);
  for (const QuantProblem& problem : kQuantProblems) {
    for (const quant::Impl& impl : quant::impls()) {
      if (impl.device == DeviceType::kCpu) {
        cases.run(problem, impl);
      }
    }
  }
}

}  // namespace moebius::bench
