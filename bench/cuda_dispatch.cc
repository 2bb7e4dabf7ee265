// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High-throughput dispatch and combine on the GPUs of this machine, a rank thread each.  Every case
// is compared with the CPU's rows first, then timed with events inside a CUDA graph, right after a
// call that lets all ranks start together.  Needs few libraries, so that it can be carried to a GPU
// host.
//
//   cuda_dispatch [name=value ...]
//   ranks=8 gpus=8 (all) tokens=4096 hidden=7168 topk=8 experts=256 iterations=20
//   sms=8,16 warps=0 stages=0 dtypes=fp8,bf16 combine_warps=0 combine_stages=0
//
// One JSON line per case.  wire: bytes to other ranks; logical: bytes received, own rank included,
// as DeepEP counts them.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "moebius/dispatch.h"
#include "tests/comm/cuda/beside_cpu.h"

namespace moebius {
namespace {

using cuda::check_cuda;

struct Options {
  std::map<std::string, std::string> values;

  int64_t number(const std::string& name, int64_t fallback) const {
    const auto found = values.find(name);
    return found == values.end() ? fallback : std::stoll(found->second);
  }
  std::vector<std::string> list(const std::string& name, const std::string& fallback) const {
    const auto found = values.find(name);
    std::string text = found == values.end() ? fallback : found->second;
    std::vector<std::string> items;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      items.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return items;
  }
};

struct Input {
  Tensor x;  // bf16 [T, H], or fp8 and scales
  Tensor scales;
  Tensor ids;
  Tensor weights;
};

Input make_input(const Options& options, const std::string& dtype, int rank) {
  const int64_t tokens = options.number("tokens", 4096);
  const int64_t hidden = options.number("hidden", 7168);
  const int64_t topk = options.number("topk", 8);
  const int64_t experts = options.number("experts", 256);
  std::mt19937 random(static_cast<uint32_t>(1234 + rank));
  Input in;
  in.x = Tensor::empty({tokens, hidden}, dtype == "fp8" ? DType::kF8E4M3 : DType::kBF16);
  auto* words = reinterpret_cast<uint32_t*>(in.x.raw());
  for (int64_t i = 0; i < in.x.nbytes() / 4; ++i) {
    words[i] = random() & 0xbf7fbf7fu;  // no NaN in bf16, none of its infinities
  }
  if (dtype == "fp8") {
    in.scales = Tensor::empty({tokens, hidden / 128}, DType::kF32);
    for (int64_t i = 0; i < in.scales.numel(); ++i) {
      in.scales.data<float>()[i] = static_cast<float>(random() % 1000);
    }
  }
  in.ids = Tensor::empty({tokens, topk}, DType::kI32);
  in.weights = Tensor::empty({tokens, topk}, DType::kF32);
  std::vector<int32_t> all(static_cast<size_t>(experts));
  for (size_t e = 0; e < all.size(); ++e) {
    all[e] = static_cast<int32_t>(e);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      std::swap(all[static_cast<size_t>(k)],
                all[static_cast<size_t>(k) + random() % static_cast<size_t>(experts - k)]);
      in.ids.data<int32_t>()[t * topk + k] = all[static_cast<size_t>(k)];
      in.weights.data<float>()[t * topk + k] = static_cast<float>(random() % 100 + 1) / 64.0f;
    }
  }
  return in;
}

class Rank {
 public:
  Rank(const Options& options, Group& gpu, Group& host)
      : options_(options),
        gpu_(gpu),
        host_(host),
        device_(gpu.device()),
        stream_(Stream::cuda(device_.index)),
        placement_(ExpertPlacement::linear(options.number("experts", 256), host.size())) {
    for (cudaEvent_t* event : {&begin_, &end_}) {
      check_cuda(cudaEventCreate(event), "cudaEventCreate");
    }
  }

  void run(const std::string& dtype) {
    const Input in = make_input(options_, dtype, host_.rank());
    HighThroughput cpu(host_, placement_, DispatchConfig::for_dispatch(1),
                       DispatchConfig::for_combine(1));
    const Stream cpu_stream = Stream::cpu();
    DispatchInput request{{in.x}, in.ids, in.weights, 1, {}};
    if (in.scales) {
      request.payloads.push_back(in.scales);
    }
    const DispatchOutput expected = cpu.dispatch(request, cpu_stream);
    Tensor expected_sum;
    const bool combines = dtype == "bf16";
    if (combines) {
      expected_sum =
          cpu.combine({expected.payloads[0], {}, {}, {}}, *expected.handle, cpu_stream).x;
    }
    DispatchInput on_gpu = request;
    for (Tensor& payload : on_gpu.payloads) {
      payload = to_device(payload, device_, stream_);
    }
    on_gpu.topk_ids = to_device(in.ids, device_, stream_);
    on_gpu.topk_weights = to_device(in.weights, device_, stream_);
    stream_.synchronize();

    for (const std::string& sms : options_.list("sms", "8,16")) {
      for (const std::string& warps : options_.list("warps", "0")) {
        for (const std::string& stages : options_.list("stages", "0")) {
          DispatchConfig config = DispatchConfig::for_dispatch(1);
          config.num_sms = std::stoi(sms);
          config.num_warps = std::stoi(warps);
          config.num_stages = std::stoi(stages);
          DispatchConfig back = config;
          back.num_warps = static_cast<int>(options_.number("combine_warps", 0));
          back.num_stages = static_cast<int>(options_.number("combine_stages", 0));
          try {
            time_case(dtype, config, back, on_gpu, expected, expected_sum);
          } catch (const InvalidArgument& error) {
            if (host_.rank() == 0) {
              fmt::print("{{\"sms\":{},\"warps\":{},\"stages\":{},\"refused\":\"{}\"}}\n", sms,
                         warps, stages, error.what());
            }
          }
        }
      }
    }
  }

 private:
  void expect_same(const Tensor& actual, const Tensor& expected, std::string_view what) {
    const Tensor got = to_device(actual, Device::cpu(), stream_);
    if (got.nbytes() != expected.nbytes() ||
        std::memcmp(got.raw(), expected.raw(), static_cast<size_t>(got.nbytes())) != 0) {
      throw Error(fmt::format("rank {}: {} differs from the CPU's", host_.rank(), what));
    }
  }

  // Median over iterations of the slowest rank's time.
  template <typename Work>
  double time_us(HighThroughput& aligner, const DispatchInput& nothing, const Work& work) {
    const auto stream = cuda::as_stream(stream_.native_handle());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    aligner.dispatch(nothing, stream_);
    check_cuda(cudaEventRecordWithFlags(begin_, stream, cudaEventRecordExternal), "event");
    work();
    check_cuda(cudaEventRecordWithFlags(end_, stream, cudaEventRecordExternal), "event");
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphUpload(executable, stream), "cudaGraphUpload");
    stream_.synchronize();
    std::vector<double> times;
    const int64_t iterations = options_.number("iterations", 20);
    for (int64_t i = -3; i < iterations; ++i) {
      host_.barrier("iteration");
      check_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      stream_.synchronize();
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      const int64_t ns = all_reduce_max(host_, "time", static_cast<int64_t>(ms * 1e6f));
      if (i >= 0) {
        times.push_back(static_cast<double>(ns) / 1e3);
      }
    }
    check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void report(const char* op,
              const std::string& dtype,
              const DispatchConfig& config,
              double us,
              int64_t row_bytes,
              int64_t sent,
              int64_t own) {
    int64_t most = all_reduce_max(host_, "rows", sent - own);
    const int64_t received = all_reduce_max(host_, "rows", sent);
    if (host_.rank() == 0) {
      fmt::print(
          "{{\"op\":\"{}\",\"dtype\":\"{}\",\"ranks\":{},\"sms\":{},\"warps\":{},\"stages\":{},"
          "\"us\":{:.1f},\"wire_mb\":{:.1f},\"wire_gb_s\":{:.1f},\"logical_gb_s\":{:.1f}}}\n",
          op, dtype, host_.size(), config.num_sms, config.num_warps, config.num_stages, us,
          static_cast<double>(most * row_bytes) / 1e6,
          static_cast<double>(most * row_bytes) / us / 1e3,
          static_cast<double>(received * row_bytes) / us / 1e3);
      std::fflush(stdout);
    }
  }

  void time_case(const std::string& dtype,
                 const DispatchConfig& config,
                 const DispatchConfig& back,
                 const DispatchInput& on_gpu,
                 const DispatchOutput& expected,
                 const Tensor& expected_sum) {
    HighThroughput transport(gpu_, placement_, config, back);
    HighThroughput aligner(gpu_, placement_, config, back);
    DispatchOutput output = transport.dispatch(on_gpu, stream_);
    for (size_t i = 0; i < output.payloads.size(); ++i) {
      expect_same(output.payloads[i], expected.payloads[i], "a payload");
    }
    expect_same(output.topk_ids, expected.topk_ids, "topk_ids");
    expect_same(output.topk_weights, expected.topk_weights, "topk_weights");
    expect_same(output.expert_num_tokens, expected.expert_num_tokens, "expert_num_tokens");
    const auto statistics = transport.statistics();
    int64_t own = 0;
    const Tensor ranks = to_device(output.handle->source_rank(), Device::cpu(), stream_);
    own = std::count(ranks.data<int32_t>(), ranks.data<int32_t>() + ranks.numel(), host_.rank());

    DispatchInput nothing{{}, Tensor::empty({0, 1}, DType::kI32, device_), {}, 1, {}, 1};
    aligner.dispatch(nothing, stream_);
    DispatchInput fixed = on_gpu;
    fixed.capacity = all_reduce_max(host_, "capacity", output.handle->num_rows()) + 64;
    const auto fixed_handle = transport.dispatch(fixed, stream_).handle;
    transport.dispatch(fixed, stream_);  // another bank, for what the graphs give
    stream_.synchronize();

    int64_t row_bytes = 0;
    for (const Tensor& payload : on_gpu.payloads) {
      row_bytes += payload.nbytes() / payload.dim(0);
    }
    const double us = time_us(aligner, nothing, [&] { transport.dispatch(fixed, stream_); });
    report("dispatch", dtype, config, us, row_bytes, statistics.copies, own);
    const double cached_us = time_us(aligner, nothing, [&] {
      transport.dispatch_cached(fixed.payloads, *fixed_handle, stream_);
    });
    report("cached dispatch", dtype, config, cached_us, row_bytes, statistics.copies, own);
    if (expected_sum) {
      HighThroughput::CombineInput rows{output.payloads[0], {}, {}, {}};
      const auto combined = transport.combine(rows, *output.handle, stream_);
      expect_same(combined.x, expected_sum, "the sum");
      const double combine_us = time_us(
          aligner, nothing, [&] { transport.combine(rows, *output.handle, stream_, combined.x); });
      report("combine", dtype, back, combine_us, row_bytes, statistics.copies, own);
    }
  }

  const Options& options_;
  Group& gpu_;
  Group& host_;
  Device device_;
  Stream stream_;
  ExpertPlacement placement_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    options.values[text.substr(0, equals)] =
        equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  const int gpus = cuda_device_count();
  if (gpus == 0) {
    fmt::print("no GPU\n");
    return 1;
  }
  ThreadGroupOptions group;
  group.num_ranks = static_cast<int>(options.number("ranks", gpus));
  group.timeout = std::chrono::milliseconds(options.number("timeout_ms", 20000));
  const auto used = static_cast<int>(options.number("gpus", gpus));
  for (int r = 0; r < group.num_ranks; ++r) {
    group.devices.push_back(Device::cuda(r % std::max(used, 1)));
  }
  try {
    testing::run_beside_cpu(group, [&](Group& gpu, Group& host) {
      Rank rank(options, gpu, host);
      for (const std::string& dtype : options.list("dtypes", "fp8,bf16")) {
        rank.run(dtype);
      }
    });
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  // Ranks may share a GPU: no two streams on one queue, nothing loaded while kernels wait.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return moebius::run(argc, argv);
}
