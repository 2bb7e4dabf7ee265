// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency dispatch and combine on GPUs: verified against the CPU's arithmetic, then timed.
//   gpu_low_latency [ranks=N] [gpus=N] [tokens=1,128] [hidden=7168] [topk=8] [experts=256]
//                   [max_tokens=128] [sms=0] [iterations=50] [cast=fp8|none] [timeout_ms=5000]
//                   [combine=bulk,plain,ranks] [unit=0,2]
// Few libraries, so that it can be carried to a machine with GPUs.  Times are medians over
// iterations of the slowest rank, in us:
//   dispatch, combine   each after a barrier of all GPUs, by events
//   send, receive       halves, likewise
//   both                dispatch and combine back to back in a replayed graph, per pair
// combine: how rows go back, by bulk copies or through registers, or sums per rank; unit: parts of
// 1024 elements that a warp sends at a time, 0: computed.  Each list is run in one go. Wire bytes:
// what must cross to other ranks, own rank excluded; GB/s of it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <vector>

#include "bench/gpu_barrier.h"
#include "comm/cuda/low_latency.h"
#include "comm/low_latency_cast.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "moebius/float_types.h"
#include "moebius/low_latency.h"

namespace moebius::bench {
namespace {

struct Config {
  int ranks = 0;
  int gpus = 0;
  std::vector<int64_t> tokens = {1, 128};
  int64_t hidden = 7168;
  int64_t topk = 8;
  int64_t experts = 256;
  int64_t max_tokens = 128;
  int sms = 0;
  int iterations = 50;
  LowLatencyCast cast = LowLatencyCast::kFp8;
  int timeout_ms = 5000;
  std::vector<std::string> combines = {"bulk"};
  std::vector<int64_t> units = {0};
  LowLatencySum sum = LowLatencySum::kSelections;  // of the case at hand
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) {
    items.push_back(item);
  }
  return items;
}

std::vector<int64_t> split_numbers(const std::string& list) {
  std::vector<int64_t> numbers;
  for (const std::string& item : split(list)) {
    numbers.push_back(std::stoll(item));
  }
  return numbers;
}

Config parse(int argc, char** argv) {
  Config c;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t at = argument.find('=');
    const std::string key = argument.substr(0, at);
    const std::string value = at == std::string::npos ? "" : argument.substr(at + 1);
    const auto number = [&] { return std::stoll(value); };
    if (key == "ranks") {
      c.ranks = static_cast<int>(number());
    } else if (key == "gpus") {
      c.gpus = static_cast<int>(number());
    } else if (key == "tokens") {
      c.tokens = split_numbers(value);
    } else if (key == "unit") {
      c.units = split_numbers(value);
    } else if (key == "combine") {
      c.combines = split(value);
    } else if (key == "hidden") {
      c.hidden = number();
    } else if (key == "topk") {
      c.topk = number();
    } else if (key == "experts") {
      c.experts = number();
    } else if (key == "max_tokens") {
      c.max_tokens = number();
    } else if (key == "sms") {
      c.sms = static_cast<int>(number());
    } else if (key == "iterations") {
      c.iterations = static_cast<int>(number());
    } else if (key == "timeout_ms") {
      c.timeout_ms = static_cast<int>(number());
    } else if (key == "cast" && (value == "fp8" || value == "none")) {
      c.cast = value == "fp8" ? LowLatencyCast::kFp8 : LowLatencyCast::kNone;
    } else {
      throw InvalidArgument("unknown argument " + argument);
    }
  }
  const int found = cuda_device_count();
  c.gpus = c.gpus > 0 ? c.gpus : std::max(1, std::min(found, c.ranks > 0 ? c.ranks : found));
  c.ranks = c.ranks > 0 ? c.ranks : c.gpus;
  return c;
}

// Every rank can make every rank's inputs.
struct Input {
  Tensor x;        // bf16 [T, H]
  Tensor ids;      // i32 [T, K]
  Tensor weights;  // f32 [T, K]
};

Input make_input(const Config& c, int64_t tokens, int rank) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 * tokens + rank));
  Input in{Tensor::empty({tokens, c.hidden}, DType::kBF16),
           Tensor::empty({tokens, c.topk}, DType::kI32),
           Tensor::empty({tokens, c.topk}, DType::kF32)};
  for (int64_t i = 0; i < in.x.numel(); ++i) {
    const auto bits = static_cast<int32_t>(random() >> 40) - (1 << 23);
    in.x.data<BFloat16>()[i] = BFloat16(static_cast<float>(bits) / static_cast<float>(1 << 21));
  }
  std::vector<int32_t> experts(static_cast<size_t>(c.experts));
  for (size_t e = 0; e < experts.size(); ++e) {
    experts[e] = static_cast<int32_t>(e);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    for (int64_t k = 0; k < c.topk; ++k) {
      in.ids.data<int32_t>()[t * c.topk + k] = experts[static_cast<size_t>(k)];
      in.weights.data<float>()[t * c.topk + k] =
          std::uniform_real_distribution<float>(0.1f, 1.0f)(random);
    }
  }
  return in;
}

// Element h of what expert e makes of token t of rank s.
BFloat16 expert_value(int64_t s, int64_t t, int64_t e, int64_t h) {
  auto v = static_cast<uint32_t>(((s * 131 + t) * 521 + e) * 8191 + h) * 2654435761u;
  v ^= v >> 15;
  return BFloat16(static_cast<float>(static_cast<int32_t>(v & 0xffff) - 0x8000) / 4096.0f);
}

class Case {
 public:
  Case(Group& group, const Config& config, int64_t tokens)
      : group_(group),
        c_(config),
        tokens_(tokens),
        placement_(ExpertPlacement::linear(config.experts, group.size())),
        stream_(Stream::cuda(group.device().index)),
        barrier_(group),
        transport_(group, placement_, options()) {
    for (int r = 0; r < group.size(); ++r) {
      inputs_.push_back(make_input(c_, tokens, r));
    }
    const Input& own = inputs_[static_cast<size_t>(group.rank())];
    x_ = up(own.x);
    ids_ = up(own.ids);
    weights_ = up(own.weights);
    out_ = Tensor::zeros(own.x.shape(), DType::kBF16, group.device());
    y_ =
        Tensor::empty({placement_.num_local(group.rank()), c_.max_tokens * group.size(), c_.hidden},
                      DType::kBF16, group.device());
    for (int warm = 0; warm < 2; ++warm) {  // the tensors of both results
      run_dispatch();
    }
    stream_.synchronize();
  }

  LowLatencyOptions options() const {
    return {c_.max_tokens, c_.hidden, c_.topk, DType::kBF16, c_.sms, c_.sum};
  }

  // Throws Error where a row or a sum is not what it must be.
  void verify();
  void time();

 private:
  struct Marks {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };

  LowLatencyDispatchOutput run_dispatch() {
    return transport_.dispatch(x_, ids_, c_.cast, stream_);
  }
  void run_combine(const LowLatencyDispatchOutput& received) {
    transport_.combine(y_, ids_, weights_, *received.handle, out_, stream_);
  }
  Tensor up(const Tensor& host) const {
    const Tensor there = Tensor::empty(host.shape(), host.dtype(), group_.device());
    cuda::copy_now(there.raw(), host.raw(), host.nbytes(), group_.device().index);
    return there;
  }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.native_handle()); }

  // `before` runs after the host has met and before the GPUs do; `body` is timed.
  double median_us(const std::function<void()>& before,
                   const std::function<void()>& body,
                   const std::function<void()>& after);
  double pair_us();
  double slowest(std::vector<double> own) const;

  Group& group_;
  Config c_;
  int64_t tokens_;
  ExpertPlacement placement_;
  Stream stream_;
  GpuBarrier barrier_;
  LowLatency transport_;
  std::vector<Input> inputs_;
  Tensor x_, ids_, weights_, out_, y_;
};

void Case::verify() {
  const int device = group_.device().index;
  const bool is_cast = c_.cast != LowLatencyCast::kNone;
  const auto received = run_dispatch();
  stream_.synchronize();
  transport_.check();
  const int64_t num_local = placement_.num_local(group_.rank());
  const int64_t row_bytes = c_.hidden * (is_cast ? 1 : 2);
  const int64_t num_groups = c_.hidden / 128;
  std::vector<int32_t> counts(static_cast<size_t>(num_local));
  cuda::copy_now(counts.data(), received.expert_num_tokens.raw(), 4 * num_local, device);
  std::vector<std::vector<std::byte>> rows(static_cast<size_t>(num_local));
  std::vector<std::vector<float>> scales(static_cast<size_t>(num_local));
  for (int64_t l = 0; l < num_local; ++l) {
    const int64_t n = counts[static_cast<size_t>(l)];
    auto& to = rows[static_cast<size_t>(l)];
    to.resize(static_cast<size_t>(n * row_bytes));
    if (n > 0) {
      cuda::copy_now(to.data(), received.x[l].raw(), n * row_bytes, device);
      if (is_cast) {
        scales[static_cast<size_t>(l)].resize(static_cast<size_t>(n * num_groups));
        cuda::copy_now(scales[static_cast<size_t>(l)].data(), received.x_scale[l].raw(),
                       4 * n * num_groups, device);
      }
    }
  }
  std::vector<int64_t> next(static_cast<size_t>(num_local), 0);
  std::vector<std::vector<BFloat16>> results(static_cast<size_t>(num_local));
  std::vector<uint8_t> values(static_cast<size_t>(c_.hidden));
  std::vector<float> expected_scales(static_cast<size_t>(num_groups));
  for (int s = 0; s < group_.size(); ++s) {
    const Input& in = inputs_[static_cast<size_t>(s)];
    for (int64_t t = 0; t < tokens_; ++t) {
      bool is_ready = false;
      for (int64_t k = 0; k < c_.topk; ++k) {
        const int32_t e = in.ids.data<int32_t>()[t * c_.topk + k];
        if (placement_.rank_of(e) != group_.rank()) {
          continue;
        }
        const auto l = static_cast<size_t>(placement_.local_index(e));
        const int64_t row = next[l]++;
        const std::byte* sent = in.x.bytes() + t * c_.hidden * 2;
        if (is_cast && !is_ready) {
          cast_row(DType::kBF16, sent, c_.hidden, c_.cast, values.data(), expected_scales.data());
          is_ready = true;
        }
        const std::byte* expected =
            is_cast ? reinterpret_cast<const std::byte*>(values.data()) : sent;
        const bool has_row = row < counts[l];
        if (!has_row ||
            std::memcmp(rows[l].data() + row * row_bytes, expected,
                        static_cast<size_t>(row_bytes)) != 0 ||
            (is_cast && std::memcmp(scales[l].data() + row * num_groups, expected_scales.data(),
                                    static_cast<size_t>(4 * num_groups)) != 0)) {
          throw Error(
              fmt::format("rank {}: dispatch is wrong: local expert {}, row {} of {} "
                          "(token {} of rank {})",
                          group_.rank(), l, row, counts[l], t, s));
        }
        for (int64_t h = 0; h < c_.hidden; ++h) {
          results[l].push_back(expert_value(s, t, e, h));
        }
      }
    }
  }
  for (size_t l = 0; l < next.size(); ++l) {
    if (next[l] != counts[l]) {
      throw Error(
          fmt::format("rank {}: dispatch is wrong: local expert {} has {} rows, expected {}",
                      group_.rank(), l, counts[l], next[l]));
    }
    if (next[l] > 0) {
      cuda::copy_now(y_[static_cast<int64_t>(l)].raw(), results[l].data(),
                     static_cast<int64_t>(results[l].size()) * 2, device);
    }
  }
  run_combine(received);
  stream_.synchronize();
  transport_.check();
  const bool sums_ranks = c_.sum == LowLatencySum::kRanks;
  std::vector<BFloat16> out(static_cast<size_t>(tokens_ * c_.hidden));
  cuda::copy_now(out.data(), out_.raw(), out_.nbytes(), device);
  const Input& own = inputs_[static_cast<size_t>(group_.rank())];
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t h = 0; h < c_.hidden; ++h) {
      float sum = 0.0f;
      std::vector<float> sums(static_cast<size_t>(group_.size()), 0.0f);
      for (int64_t k = 0; k < c_.topk; ++k) {
        const int32_t e = own.ids.data<int32_t>()[t * c_.topk + k];
        float& to = sums_ranks ? sums[static_cast<size_t>(placement_.rank_of(e))] : sum;
        to += own.weights.data<float>()[t * c_.topk + k] *
              static_cast<float>(expert_value(group_.rank(), t, e, h));
      }
      for (const float of_rank : sums) {
        sum += static_cast<float>(BFloat16(of_rank));  // 0 unless sums_ranks
      }
      const BFloat16 got = out[static_cast<size_t>(t * c_.hidden + h)];
      if (got.bits != BFloat16(sum).bits) {
        throw Error(fmt::format("rank {}: combine is wrong: token {}, element {}: {}, expected {}",
                                group_.rank(), t, h, static_cast<float>(got),
                                static_cast<float>(BFloat16(sum))));
      }
    }
  }
  group_.barrier("verified");
}

// The slowest rank of each iteration, then the median.
double Case::slowest(std::vector<double> own) const {
  std::vector<double> all(own.size() * static_cast<size_t>(group_.size()));
  all_gather_bytes(group_, "times", own.data(), static_cast<int64_t>(own.size() * sizeof(double)),
                   all.data());
  for (size_t i = 0; i < own.size(); ++i) {
    for (size_t r = 0; r < static_cast<size_t>(group_.size()); ++r) {
      own[i] = std::max(own[i], all[r * own.size() + i]);
    }
  }
  std::sort(own.begin(), own.end());
  return own[own.size() / 2];
}

double Case::median_us(const std::function<void()>& before,
                       const std::function<void()>& body,
                       const std::function<void()>& after) {
  constexpr int kWarmUp = 5;
  std::vector<Marks> marks(static_cast<size_t>(c_.iterations));
  for (Marks& m : marks) {
    cuda::check_cuda(cudaEventCreate(&m.begin), "cudaEventCreate");
    cuda::check_cuda(cudaEventCreate(&m.end), "cudaEventCreate");
  }
  for (int i = -kWarmUp; i < c_.iterations; ++i) {
    before();
    group_.barrier("iteration");
    barrier_.launch(stream_);
    Marks& m = marks[static_cast<size_t>(std::max(i, 0))];
    cuda::check_cuda(cudaEventRecord(m.begin, native()), "cudaEventRecord");
    body();
    cuda::check_cuda(cudaEventRecord(m.end, native()), "cudaEventRecord");
    after();
  }
  stream_.synchronize();
  transport_.check();
  std::vector<double> times;
  for (const Marks& m : marks) {
    float ms = 0.0f;
    cuda::check_cuda(cudaEventElapsedTime(&ms, m.begin, m.end), "cudaEventElapsedTime");
    times.push_back(1e3 * static_cast<double>(ms));
    cudaEventDestroy(m.begin);
    cudaEventDestroy(m.end);
  }
  return slowest(times);
}

double Case::pair_us() {
  constexpr int kPairs = 20;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda::check_cuda(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kPairs; ++i) {
    run_combine(run_dispatch());
  }
  cuda::check_cuda(cudaStreamEndCapture(native(), &graph), "cudaStreamEndCapture");
  cuda::check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cuda::check_cuda(cudaGraphUpload(exec, native()), "cudaGraphUpload");
  stream_.synchronize();
  const auto nothing = [] {};
  const double us = median_us(
      nothing, [&] { cuda::check_cuda(cudaGraphLaunch(exec, native()), "cudaGraphLaunch"); },
      nothing);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return us / kPairs;
}

void Case::time() {
  const auto nothing = [] {};
  LowLatencyDispatchOutput received;
  Pending<LowLatencyDispatchOutput> pending;
  Pending<void> back;
  const auto forget = [&] { received = {}; };
  const auto dispatch = [&] { received = run_dispatch(); };
  const double dispatch_us = median_us(forget, dispatch, nothing);
  const double combine_us = median_us(
      dispatch, [&] { run_combine(received); }, forget);
  const auto send = [&] { pending = transport_.dispatch_async(x_, ids_, c_.cast, stream_); };
  const auto receive = [&] { received = pending.receive(); };
  const auto send_back = [&] {
    back = transport_.combine_async(y_, ids_, weights_, *received.handle, out_, stream_);
  };
  const auto finish_back = [&] {
    back.receive();
    back = {};
    pending = {};
    received = {};
  };
  const double send_us = median_us(nothing, send, [&] {
    receive();
    pending = {};
    received = {};
  });
  const double receive_us = median_us(send, receive, [&] {
    pending = {};
    received = {};
  });
  const auto both_halves = [&] {
    send();
    receive();
  };
  const double send_back_us = median_us(both_halves, send_back, finish_back);
  const double receive_back_us = median_us(
      [&] {
        both_halves();
        send_back();
      },
      [&] { back.receive(); },
      [&] {
        back = {};
        pending = {};
        received = {};
      });
  const double both_us = pair_us();

  const Input& own = inputs_[static_cast<size_t>(group_.rank())];
  int64_t copies = 0;
  int64_t selections = 0;
  for (int64_t t = 0; t < tokens_; ++t) {
    std::vector<bool> to(static_cast<size_t>(group_.size()), false);
    for (int64_t k = 0; k < c_.topk; ++k) {
      const int r = placement_.rank_of(own.ids.data<int32_t>()[t * c_.topk + k]);
      selections += r != group_.rank();
      copies += r != group_.rank() && !to[static_cast<size_t>(r)];
      to[static_cast<size_t>(r)] = true;
    }
  }
  const bool is_cast = c_.cast != LowLatencyCast::kNone;
  const auto dispatch_bytes =
      static_cast<double>(copies * (is_cast ? c_.hidden + c_.hidden / 32 : 2 * c_.hidden));
  const auto combine_bytes =
      static_cast<double>((c_.sum == LowLatencySum::kRanks ? copies : selections) * 2 * c_.hidden);
  if (group_.rank() == 0) {
    fmt::print(
        "{:>4} tokens  dispatch {:7.2f} us ({:5.1f} GB/s)  combine {:7.2f} us ({:5.1f} GB/s)"
        "  both {:7.2f} us  halves {:.2f} + {:.2f}, {:.2f} + {:.2f} us\n",
        tokens_, dispatch_us, dispatch_bytes / dispatch_us * 1e-3, combine_us,
        combine_bytes / combine_us * 1e-3, both_us, send_us, receive_us, send_back_us,
        receive_back_us);
    fmt::print(
        "{{\"bench\": \"low_latency\", \"device\": \"cuda\", \"ranks\": {}, \"gpus\": {}, "
        "\"tokens\": {}, \"hidden\": {}, \"topk\": {}, \"experts\": {}, \"cast\": \"{}\", "
        "\"sms\": {}, \"combine\": \"{}\", \"unit\": {}, \"dispatch_us\": {:.2f}, \"combine_us\": "
        "{:.2f}, \"both_us\": {:.2f}, "
        "\"dispatch_send_us\": {:.2f}, \"dispatch_receive_us\": {:.2f}, \"combine_send_us\": "
        "{:.2f}, \"combine_receive_us\": {:.2f}, \"dispatch_wire_bytes\": {}, "
        "\"combine_wire_bytes\": {}, \"window_bytes\": {}}}\n",
        group_.size(), c_.gpus, tokens_, c_.hidden, c_.topk, c_.experts, is_cast ? "fp8" : "none",
        c_.sms,
        c_.sum == LowLatencySum::kRanks ? "ranks"
        : combine_tuning.in_bulk        ? "bulk"
                                        : "plain",
        combine_tuning.unit_parts, dispatch_us, combine_us, both_us, send_us, receive_us,
        send_back_us, receive_back_us, static_cast<int64_t>(dispatch_bytes),
        static_cast<int64_t>(combine_bytes),
        LowLatency::size_hint(options(), group_.size(), c_.experts, group_.device()));
    std::fflush(stdout);
  }
  group_.barrier("timed");
}

int run(int argc, char** argv) {
  Config c = parse(argc, argv);
  if (cuda_device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 0;
  }
  ThreadGroupOptions options;
  options.num_ranks = c.ranks;
  options.timeout = std::chrono::milliseconds(c.timeout_ms);
  for (int r = 0; r < c.ranks; ++r) {
    options.devices.push_back(Device::cuda(r % c.gpus));
  }
  for (const std::string& combine : c.combines) {
    for (const int64_t unit : c.units) {
      c.sum = combine == "ranks" ? LowLatencySum::kRanks : LowLatencySum::kSelections;
      combine_tuning = {combine == "bulk", static_cast<int>(unit)};
      fmt::print("combine by {}, unit {}\n", combine, unit);
      run_thread_ranks(options, [&](Group& group) {
        for (const int64_t tokens : c.tokens) {
          Case one(group, c, tokens);
          one.verify();
          one.time();
        }
      });
    }
  }
  return 0;
}

}  // namespace
}  // namespace moebius::bench

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return moebius::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_low_latency: {}\n", error.what());
    return 1;
  }
}
