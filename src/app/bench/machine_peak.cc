// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/machine_peak.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "app/bench/cases.h"
#include "app/bench/gpu/peak.h"
#include "app/bench/peak_kernels.h"
#include "app/machine.h"
#include "core/cpu_features.h"
#include "core/has_cuda.h"
#include "core/host_allocator.h"
#include "core/parallel.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

struct PeakKernel {
  std::string_view name;
  Operand operand;
  bool CpuFeatures::*feature;  // nullptr: used only where no other kernel is
  int64_t (*run)(int64_t rounds);
};

// Multiply-adds for processors that have no other kernel.
int64_t run_portable(int64_t rounds) {
  constexpr int kChains = 8;
  float sum[kChains] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    for (float& chain : sum) {
      chain = chain * 0.75f + 0.5f;
    }
  }
  for (const float chain : sum) {
    [[maybe_unused]] volatile float used = chain;
  }
  return rounds * kChains * 2;
}

// The kernels that the build has.  On x86 it has all of them, elsewhere only the last one.
constexpr PeakKernel kKernels[] = {
#ifdef MOEBIUS_HAVE_AMX
    {"AMX bf16", Operand::kBF16, &CpuFeatures::amx_bf16, run_amx_bf16},
    {"AMX int8", Operand::kInt8, &CpuFeatures::amx_int8, run_amx_int8},
    {"AVX-512 bf16", Operand::kBF16, &CpuFeatures::avx512_bf16, run_avx512_bf16},
    {"AVX-512 int8", Operand::kInt8, &CpuFeatures::avx512_vnni, run_avx512_vnni},
    {"AVX-512 f32", Operand::kF32, &CpuFeatures::avx512, run_avx512_fma},
    {"AVX2 f32", Operand::kF32, &CpuFeatures::avx2, run_avx2_fma},
#endif
    {"portable f32", Operand::kF32, nullptr, run_portable},
};

constexpr int kRepeats = 7;

double taken(const std::vector<double>& rates, Take take) {
  return take == Take::kBest ? *std::max_element(rates.begin(), rates.end()) : app::median(rates);
}

// Returns a number of rounds that takes a millisecond or two.
int64_t rounds_of(const PeakKernel& kernel) {
  int64_t rounds = 1000;
  while (seconds_of([&] { kernel.run(rounds); }) < 1e-3) {
    rounds *= 2;
  }
  return rounds;
}

double gflops_of(const PeakKernel& kernel, int64_t rounds, int tasks, const Stream& stream) {
  std::atomic<int64_t> operations{0};
  const double seconds = seconds_of([&] {
    parallel_tasks(stream, int64_t{tasks} * stream.num_threads(),
                   [&](int64_t, int) { operations += kernel.run(rounds); });
  });
  return static_cast<double>(operations.load()) / seconds * 1e-9;
}

double gflops_of(const PeakKernel& kernel, const Stream& stream, Take take) {
  constexpr int kTasks = 16;  // about 25 ms
  const int64_t rounds = rounds_of(kernel);
  std::vector<double> rates;
  for (int i = 0; i < kRepeats; ++i) {
    rates.push_back(gflops_of(kernel, rounds, kTasks, stream));
  }
  return taken(rates, take);
}

struct FoundPeak {
  const PeakKernel* kernel = nullptr;
  double gflops = 0;
};

FoundPeak find_peak(Operand operand, const Stream& stream, Take take) {
  const Operand multiplied = operand == Operand::kFp8 ? Operand::kBF16 : operand;
  FoundPeak best;
  for (const PeakKernel& kernel : kKernels) {
    const bool fits = kernel.operand == multiplied || kernel.operand == Operand::kF32;
    const bool is_usable =
        kernel.feature != nullptr ? cpu_features().*kernel.feature : best.kernel == nullptr;
    const double gflops = fits && is_usable ? gflops_of(kernel, stream, take) : 0;
    if (gflops > best.gflops) {
      best = {&kernel, gflops};
    }
  }
  return best;
}

// A way of reading: from how many places at once, and how far ahead lines are fetched, to L1 (3) or
// L2 (2).
template <int kPlaces, int64_t kAhead, int kLocality>
uint64_t sum_words(const std::byte* from, int64_t bytes) {
  // Why vectors: additions of words took twice as long as reading.
  typedef uint64_t Words __attribute__((vector_size(16)));
  constexpr int64_t kLine = 64;
  constexpr int64_t kWords = kLine / static_cast<int64_t>(sizeof(Words));
  const int64_t part = bytes / kPlaces;
  Words sums[kWords] = {};
  for (int64_t at = 0; at < part; at += kLine) {
#pragma GCC unroll 2  // this file may be compiled for size
    for (int64_t place = 0; place < kPlaces; ++place) {
      const std::byte* line = from + place * part + at;
      __builtin_prefetch(line + kAhead, 0, kLocality);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kWords; ++i) {
        Words words;
        std::memcpy(&words, line + i * static_cast<int64_t>(sizeof(Words)), sizeof(Words));
        sums[i] += words;
      }
    }
  }
  uint64_t total = 0;
  for (const Words& sum : sums) {
    total += sum[0] + sum[1];
  }
  return total;
}

// The fastest of 16 ways on a Zen 3, whose own prefetching works page by page, and on a Sapphire
// Rapids.
constexpr std::array kReadingWays = {&sum_words<2, 1024, 3>, &sum_words<1, 4096, 3>,
                                     &sum_words<1, 4096, 2>};

// A buffer that is larger than the last-level cache, for measuring how fast memory is read.
class ReadBuffer {
 public:
  static constexpr int64_t kBlock = int64_t{1} << 20;

  ReadBuffer(const Stream& stream, int num_ranks) : stream_(stream) {
    constexpr int64_t kSmallest = int64_t{512} << 20;
    const int64_t wanted = std::max(kSmallest, 4 * app::last_level_cache_bytes());
    const int64_t limit = std::max(kSmallest, app::memory_bytes() / 8);
    const int64_t blocks = std::min(wanted, limit) / kBlock;
    bytes_ = (blocks + num_ranks - 1) / num_ranks * kBlock;
    buffer_ = allocate_block(bytes_);
    parallel_for(stream, bytes_, kBlock, [&](int64_t begin, int64_t end) {
      std::memset(buffer_.get() + begin, 1, static_cast<size_t>(end - begin));
    });
    way_ = fastest_way();
  }

  int64_t bytes() const { return bytes_; }

  // By the way that was fastest when the buffer was made.
  double gb_per_s(int64_t first, int64_t bytes) const { return gb_per_s(first, bytes, way_); }

 private:
  using Way = decltype(kReadingWays)::value_type;

  double gb_per_s(int64_t first, int64_t bytes, Way way) const {
    std::atomic<uint64_t> sum{0};
    const double seconds = seconds_of([&] {
      parallel_for(stream_, bytes, kBlock, [&](int64_t begin, int64_t end) {
        sum += way(buffer_.get() + first + begin, end - begin);
      });
    });
    return static_cast<double>(bytes) / seconds * 1e-9;
  }
  Way fastest_way() const {
    constexpr int kTrials = 3;
    Way fastest = kReadingWays.front();
    double most = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      for (const Way way : kReadingWays) {
        const double rate = gb_per_s(0, bytes_ / 2 / kBlock * kBlock, way);
        if (rate > most) {
          most = rate;
          fastest = way;
        }
      }
    }
    return fastest;
  }

  Stream stream_;
  int64_t bytes_ = 0;
  std::shared_ptr<std::byte> buffer_;
  Way way_ = kReadingWays.front();
};

}  // namespace

ComputePeak compute_peak(Operand operand, const Stream& stream, Take take) {
  if constexpr (kHasCuda) {
    if (stream.device().is_cuda()) {
      return gpu_compute_peak(operand, stream);
    }
  }
  const FoundPeak found = find_peak(operand, stream, take);
  return {found.kernel->name, found.gflops};
}

double read_gb_per_s(const Stream& stream, Take take, int num_ranks) {
  if constexpr (kHasCuda) {
    if (stream.device().is_cuda()) {
      return gpu_read_gb_per_s(stream);
    }
  }
  const ReadBuffer buffer(stream, num_ranks);
  std::vector<double> rates;
  for (int i = 0; i < kRepeats; ++i) {
    rates.push_back(buffer.gb_per_s(0, buffer.bytes()));
  }
  return taken(rates, take);
}

struct PeakBursts::State {
  State(Operand operand, const Stream& on)
      : stream(on),
        kernel(*find_peak(operand, on, Take::kBest).kernel),
        rounds(rounds_of(kernel)),
        buffer(on, 1) {}

  Stream stream;
  const PeakKernel& kernel;
  int64_t rounds;
  ReadBuffer buffer;
  int64_t at = 0;
};

PeakBursts::PeakBursts(Operand operand, const Stream& stream)
    : state_(std::make_unique<State>(operand, stream)) {}
PeakBursts::~PeakBursts() = default;

std::string_view PeakBursts::name() const {
  return state_->kernel.name;
}

PeakBursts::Rates PeakBursts::next() {
  constexpr int kTasks = 4;
  constexpr int64_t kBytes = 128 * ReadBuffer::kBlock;
  State& s = *state_;
  Rates rates;
  rates.gflops = gflops_of(s.kernel, s.rounds, kTasks, s.stream);
  rates.read_gb_per_s = s.buffer.gb_per_s(s.at, kBytes);
  s.at += kBytes;
  s.at = s.at + kBytes <= s.buffer.bytes() ? s.at : 0;
  return rates;
}

}  // namespace moebius::bench
