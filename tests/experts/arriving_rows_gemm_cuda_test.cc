// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs whose rows arrive while they run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "tests/experts/grouped_gemm_problem.h"
#include "tests/experts/hopper_test.h"

namespace moebius::cuda {
namespace {

constexpr int kSources = 3;
constexpr int kExpertsPerWave = 2;
constexpr int kFirstExpert = 1;
constexpr uint32_t kEpoch = 0xffffffff;  // the next epoch wraps

int wave_of(int64_t group) {
  return 1 + static_cast<int>(group + kFirstExpert) / kExpertsPerWave;
}

class ArrivingRowsTest : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (!IsSkipped()) {
      other_ = Stream::cuda(0);
      words_ = Tensor::zeros({kWaves, kSources}, DType::kI64, stream_.device());
      forget_waves();
      failed_ = Tensor::zeros({kSources}, DType::kI64, stream_.device());
    }
  }

  // Makes all waves those of the call before.
  void forget_waves() {
    for (int i = 0; i < kWaves * kSources; ++i) {
      store(words_, i, uint64_t{kEpoch - 1} << 32);
    }
  }
  // Stores a value by the stream that brings rows.
  void store(const Tensor& to, int64_t i, uint64_t value) {
    check_cuda(cudaMemcpyAsync(to.data<int64_t>() + i, &value, sizeof(value),
                               cudaMemcpyHostToDevice, as_stream(other_.native_handle())),
               "a signal");
    other_.synchronize();
  }
  RowArrivals::Signals signals() const {
    RowArrivals::Signals signals;
    signals.words = reinterpret_cast<const uint64_t*>(words_.raw());
    signals.failed = reinterpret_cast<const uint64_t*>(failed_.raw());
    signals.epoch = kEpoch;
    signals.num_sources = kSources;
    signals.experts_per_wave = kExpertsPerWave;
    return signals;
  }

  static constexpr int kWaves = 5;
  Tensor words_;
  Tensor failed_;
  Stream other_ = Stream::cpu();
};

GemmProblem problem(DType dtype, int64_t scale_block = 0) {
  GemmProblem p;
  p.dtype = dtype;
  p.scale_block = scale_block;
  p.n = 512;
  p.k = 256;
  p.rows = {130, 0, 64, 200, 5, 128, 77};
  return p;
}

// The rows of `host` that the groups up to a wave need; the others are poison.
GroupedGemm arrived(const GemmProblem& p, const GroupedGemm& host, int wave) {
  GroupedGemm out = host;
  for (Tensor* rows : {&out.a, &out.a_scale}) {
    if (!*rows) {
      continue;
    }
    const Tensor all = *rows;
    *rows = Tensor::empty(all.shape(), all.dtype());
    std::memset(rows->raw(), 0xff, static_cast<size_t>(rows->nbytes()));
    for (int64_t g = 0; g < p.num_groups(); ++g) {
      for (int64_t i = 0; i < p.rows[static_cast<size_t>(g)] && wave_of(g) <= wave; ++i) {
        const int64_t at = host.a_rows.data<int32_t>()[p.first_row(g) + i];
        copy(all.slice(at, at + 1), rows->slice(at, at + 1), Stream::cpu());
      }
    }
  }
  return out;
}

TEST_F(ArrivingRowsTest, TilesAwaitTheirRows) {
  for (const DType dtype : kGemmFormats) {
    for (const int num_sms : {2, 16}) {
      const GemmProblem p = problem(dtype, num_sms == 2 ? 0 : kScaleBlock);
      const GroupedGemm host = scattered(make_operands(p, 3), 4);
      const Tensor expected = run_on_gpu(host, stream_);

      forget_waves();
      std::vector<GroupedGemm> steps;
      for (int wave = 0; wave < kWaves; ++wave) {
        steps.push_back(on_gpu(arrived(p, host, wave), stream_));
      }
      GroupedGemm gemm = on_gpu(arrived(p, host, 0), stream_);
      gemm.num_sms = num_sms;
      gemm.next_item = Tensor::zeros({2}, DType::kI32, stream_.device());
      gemm.arrivals = signals();
      gemm.first_expert = kFirstExpert;
      stream_.synchronize();
      sm90_grouped_gemm(gemm, stream_);
      for (int wave = 0; wave < kWaves; ++wave) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const GroupedGemm& step = steps[static_cast<size_t>(wave)];
        copy(step.a, gemm.a, other_);
        if (step.a_scale) {
          copy(step.a_scale, gemm.a_scale, other_);
        }
        other_.synchronize();
        for (int s = 0; s < kSources; ++s) {
          store(words_, wave * kSources + s, uint64_t{kEpoch} << 32 | 77);
        }
      }
      const Tensor out = here(gemm.out);
      EXPECT_EQ(std::memcmp(out.raw(), expected.raw(), static_cast<size_t>(out.nbytes())), 0)
          << to_string(p) << ", " << num_sms << " SMs";
    }
  }
}

TEST_F(ArrivingRowsTest, NobodyWaitsOnceTheDispatchHasFailed) {
  const GemmProblem p = problem(DType::kBF16);
  GroupedGemm gemm = on_gpu(scattered(make_operands(p, 3), 4), stream_);
  gemm.arrivals = signals();
  gemm.first_expert = kFirstExpert;
  stream_.synchronize();
  sm90_grouped_gemm(gemm, stream_);
  const Event end = stream_.record();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(end.is_complete());
  store(failed_, kSources - 1, 1);
  stream_.synchronize();
}

}  // namespace
}  // namespace moebius::cuda
