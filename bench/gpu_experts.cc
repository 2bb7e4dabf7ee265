// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The experts stage on one GPU, at the shapes of published models: a whole apply() as a CUDA graph
// with a cold L2, and the activation between the GEMMs by itself.  Compares the first tokens with
// the CPU before it times a case: a wrong kernel gets no number.  Sizes and counts stay on the GPU.
//   gpu_experts [TEXT]    only cases whose name contains TEXT
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/check.h"
#include "experts/cuda/activation.h"
#include "experts/cuda/activation_codes.h"
#include "moebius/weight_and_reduce.h"
#include "tests/conformance/experts_runs.h"

namespace moebius {
namespace {

constexpr int64_t kCheckedTokens = 8;

constexpr Problem kProblems[] = {
    {"dsv3_prefill", 4096, 32, 8, 7168, 2048},  // 1024 rows per expert
    {"dsv3_decode", 128, 32, 8, 7168, 2048},    // 32
    {"qwen3_prefill", 4096, 16, 8, 2048, 768},  // 2048
};

constexpr Scheme kBenchSchemes[] = {
    kSchemes[0],
    {"fp8_block", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kBlock, {128, 128}},
    {"int8_w8a8_token", QuantFormat::kInt8, QuantFormat::kInt8, WeightScales::kChannel, {}, true},
    {"int4_w4a16", std::nullopt, QuantFormat::kInt4, WeightScales::kGroup, {1, 32}},
    {"mxfp4_w4a16", std::nullopt, QuantFormat::kMxfp4, WeightScales::kGroup, {1, 32}},
};

class Bench {
 public:
  Bench() : place_(DeviceType::kCuda) {
    cuda::check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    flush_ = Tensor::zeros({int64_t{256} << 20}, DType::kU8, place_.device());
  }

  const testing::Place& place() const { return place_; }
  Tensor empty(const Shape& shape, DType dtype) const {
    return Tensor::empty(shape, dtype, place_.device());
  }

  // Median microseconds of a graph of `work`.
  double time(const std::function<void()>& work) const {
    const cudaStream_t stream = cuda::as_stream(place_.stream.native_handle());
    work();  // a first call may load kernels
    place_.stream.synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
    work();
    cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      cuda::check_cuda(
          cudaMemsetAsync(flush_.raw(), i, static_cast<size_t>(flush_.nbytes()), stream),
          "cudaMemsetAsync");
      cuda::check_cuda(cudaEventRecord(begin_, stream), "cudaEventRecord");
      cuda::check_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      cuda::check_cuda(cudaEventRecord(end_, stream), "cudaEventRecord");
      cuda::check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float ms = 0.0f;
      cuda::check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      if (i >= 2) {
        times.push_back(ms * 1000.0f);
      }
    }
    cuda::check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    cuda::check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    return static_cast<double>(times[5]);
  }

 private:
  testing::Place place_;
  cudaEvent_t begin_{};
  cudaEvent_t end_{};
  Tensor flush_;
};

// How far the first tokens are from the CPU's.
double error_of(const ExpertProblem& p, const Tensor& output) {
  ExpertsInput first = p.input;
  first.x = p.input.x.slice(0, kCheckedTokens);
  first.topk_ids = p.input.topk_ids.slice(0, kCheckedTokens);
  first.topk_weights = p.input.topk_weights.slice(0, kCheckedTokens);
  const Stream stream = Stream::cpu();
  const auto experts = make_experts(p.desc, p.weights, stream, "cpu_portable");
  const Tensor rows = experts_suite::apply(*experts, first, stream);
  const Tensor sums = Tensor::empty({kCheckedTokens, p.desc.hidden}, rows.dtype());
  make_weight_and_reduce(WeightAndReduceKind::kContiguous)
      ->apply({rows, first.topk_weights, first.topk_ids, false}, sums, stream);
  return relative_error(output.slice(0, kCheckedTokens), sums);
}

// fp8 products are summed to 14 bits or so on the tensor cores: a code of a2 in a hundred lands one
// step apart, and not one in a thousand.
double allowed_error(const ExpertProblem& p, const Scheme& scheme) {
  const double codes = scheme.activation == QuantFormat::kFp8
                           ? std::sqrt(1e-2) * relative_step(QuantFormat::kFp8) / 2
                           : 0.0;
  return experts_suite::tolerance_of(p, scheme) + codes;
}

void run_case(const Bench& bench, const Problem& problem, const Scheme& scheme) {
  const std::string name = fmt::format("{}/{}", problem.name, scheme.name);
  const ExpertProblem p = ExpertProblemMaker(1).make(problem, {.scheme = scheme});
  const testing::Place& place = bench.place();
  const auto experts = make_experts(p.desc, p.weights, place.stream);
  const ExpertsInput input = experts_suite::placed(p.input, place);
  const ExpertsWorkspace ws = experts->workspace(problem.num_tokens);
  const Tensor output = bench.empty(ws.output, ws.dtype);
  const Tensor workspace13 = bench.empty(ws.workspace13, ws.dtype);
  const Tensor workspace2 = bench.empty(ws.workspace2, ws.dtype);
  const Tensor scratch = bench.empty({ws.scratch_bytes}, DType::kU8);
  const auto call = [&] {
    experts->apply(input, output, workspace13, workspace2, scratch, place.stream);
  };
  call();
  const double error = error_of(p, place.bring(output));
  if (!(error <= allowed_error(p, scheme))) {
    fmt::print("{:<32} WRONG: relative error {:.2e}, allowed {:.2e}\n", name, error,
               allowed_error(p, scheme));
    return;
  }
  const double us = bench.time(call);
  const double flops = 2.0 * static_cast<double>(problem.num_tokens * problem.topk) *
                       static_cast<double>(problem.hidden * problem.intermediate * 3);
  const auto weights = static_cast<double>(p.weights.w1.nbytes() + p.weights.w2.nbytes());
  fmt::print("{:<32} {:9.1f} us {:7.0f} TFLOP/s   weights {:5.2f} TB/s   error {:.1e}\n", name, us,
             flops / us * 1e-6, weights / us * 1e-6, error);
  std::fflush(stdout);
}

// Of 32768 rows, as dsv3_prefill has them.
void run_activation(const Bench& bench) {
  constexpr int64_t kRows = 32768;
  constexpr int64_t kWidth = 2048;
  const Stream& stream = bench.place().stream;
  const Tensor in =
      bench.place().take(ExpertProblemMaker(2).normal({kRows, 2 * kWidth}, DType::kBF16));
  const Tensor plain = bench.empty({kRows, kWidth}, DType::kBF16);
  const auto rows = cuda::RowGroups::all(kRows);
  const auto report = [&](std::string_view name, int64_t bytes, const std::function<void()>& work) {
    const double us = bench.time(work);
    fmt::print("{:<32} {:9.1f} us {:7.2f} TB/s\n", name, us,
               static_cast<double>(bytes) / us * 1e-6);
  };
  report("activation/bf16", in.nbytes() + plain.nbytes(),
         [&] { cuda::activate({}, rows, in, plain, stream); });
  for (const bool is_fp8 : {true, false}) {
    QuantizeSpec spec;
    spec.format = is_fp8 ? QuantFormat::kFp8 : QuantFormat::kInt8;
    spec.group = is_fp8 ? GroupShape{1, 128} : GroupShape::per_token();
    cuda::RowOperand out;
    out.values = bench.empty({kRows, kWidth}, storage_dtype(spec.format));
    out.scales = cuda::RowScales::kPerRow;
    out.block = is_fp8 ? 128 : kWidth;
    out.scale = bench.empty({kRows, kWidth / out.block}, DType::kF32);
    report(is_fp8 ? "activation/fp8_1x128" : "activation/int8_token",
           in.nbytes() + out.values.nbytes() + out.scale.nbytes(),
           [&] { cuda::activate_to_codes({}, spec, rows, in, out, stream); });
  }
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  using namespace moebius;
  if (cuda_device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 0;
  }
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  const Bench bench;
  if (std::string_view("activation").find(wanted) != std::string_view::npos) {
    run_activation(bench);
  }
  for (const Problem& problem : kProblems) {
    for (const Scheme& scheme : kBenchSchemes) {
      const std::string name = fmt::format("{}/{}", problem.name, scheme.name);
      if (name.find(wanted) != std::string::npos) {
        run_case(bench, problem, scheme);
      }
    }
  }
  return 0;
}
