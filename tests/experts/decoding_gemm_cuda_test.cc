// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GEMMs that decode weights while they run give the bits of those whose weights are decoded before.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/gemm/grouped_gemm.h"
#include "quant/decoded_room.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_bytes;
using testing::random_uniform;

constexpr int64_t kN = 512;
constexpr int64_t kK = 384;

struct Case {
  std::string name;
  WeightOperand w;
  RowOperand a;  // without values
};

Case make_case(const char* name, QuantFormat format, int64_t groups, uint32_t seed) {
  Case c;
  c.name = name;
  c.w.values = random_bytes({groups, kN, kK}, storage_dtype(format), 0, 255, seed);
  c.w.quant.format = format;
  c.w.gate_rows = kN / 2;
  return c;
}

std::vector<Case> make_cases(int64_t groups, uint32_t seed) {
  std::vector<Case> cases;
  Case mxfp4 = make_case("mxfp4", QuantFormat::kMxfp4, groups, seed);
  mxfp4.w.quant.scale = random_bytes({groups, kN, kK / 32}, DType::kE8M0, 120, 130, seed + 1);
  mxfp4.w.quant.bias = random_uniform({groups, kN}, DType::kF32, seed + 2, -2.0f, 2.0f);
  cases.push_back(mxfp4);
  Case nvfp4 = make_case("nvfp4", QuantFormat::kNvfp4, groups, seed + 3);
  nvfp4.w.quant.scale = random_bytes({groups, kN, kK / 16}, DType::kF8E4M3, 0x28, 0x48, seed + 4);
  nvfp4.w.quant.alpha_or_gscale = random_uniform({groups, 2}, DType::kF32, seed + 5, 0.5f, 2.0f);
  nvfp4.a.scales = RowScales::kPerGroup;
  nvfp4.a.scale = random_uniform({groups}, DType::kF32, seed + 6, 0.5f, 2.0f);
  nvfp4.a.divides = true;
  cases.push_back(nvfp4);
  Case int8 = make_case("int8", QuantFormat::kInt8, groups, seed + 7);
  int8.w.quant.scale = random_uniform({groups, kN, 1}, DType::kF32, seed + 8, 0.5f, 2.0f);
  int8.w.quant.shape = GroupShape{1, -1};
  cases.push_back(int8);
  for (const int64_t block : {32, 128}) {
    Case int4 =
        make_case(block == 32 ? "int4 by 32" : "int4 by 128", QuantFormat::kInt4, groups, seed + 9);
    int4.w.quant.shape = GroupShape{1, block};
    int4.w.quant.scale =
        random_uniform({groups, kN, kK / block}, DType::kBF16, seed + 10, 0.5f, 2.0f);
    cases.push_back(int4);
    int4.name += ", zero points";
    int4.w.quant.zero_point = random_bytes({groups, kN, kK / block}, DType::kU8, 0, 15, seed + 11);
    cases.push_back(int4);
  }
  return cases;
}

class DecodingGemmTest : public HopperTest {
 protected:
  void bring(Case& c) {
    for (Tensor* tensor : {&c.w.values, &c.w.quant.scale, &c.w.quant.zero_point,
                           &c.w.quant.alpha_or_gscale, &c.w.quant.bias, &c.a.scale}) {
      *tensor = there(*tensor);
    }
  }
  void expect_same(const Tensor& expected, const Tensor& actual, const std::string& what) {
    EXPECT_TRUE(same(here(expected), here(actual))) << what;
  }
};

TEST_F(DecodingGemmTest, HasTheBitsOfWeightsThatAreDecodedBefore) {
  const std::vector<std::vector<int>> sizes = {
      {300, 0, 90, 1, 0, 128, 257}, {0, 0, 256, 0}, {0, 0, 0, 0}, std::vector<int>(40, 3)};
  uint32_t seed = 1;
  for (const std::vector<int>& size : sizes) {
    const auto groups = static_cast<int64_t>(size.size());
    for (Case& c : make_cases(groups, seed += 20)) {
      bring(c);
      const bool has_zero_points = c.w.quant.zero_point.defined();
      for (const bool is_batched : {false, true}) {
        const GroupedRows rows = grouped(size, is_batched ? 320 : 0);
        const int64_t num_rows = std::max<int64_t>(rows.num_rows, 1);
        ExpertGemm gemm;
        gemm.a = c.a;
        gemm.a.values = there(random_uniform({num_rows, kK}, DType::kBF16, 9, -1.0f, 1.0f));
        gemm.w = &c.w;
        gemm.rows = rows.groups;
        const WeightFacts facts = facts_of(c.w);
        const int64_t group_elements = decoded_group_elements(facts, DType::kBF16);
        int64_t fewest = 1;  // groups, beside whose weights there is room for the scales of all
        while (decoded_ahead_slots(facts, fewest * group_elements) < kLeastDecodedSlots) {
          ++fewest;
        }
        const auto run = [&](int64_t at_once, int max_sms, bool activates, bool ahead) {
          gemm.max_sms = max_sms;
          gemm.decodes_ahead = ahead;
          gemm.out = room({num_rows, activates ? kN / 2 : kN}, DType::kBF16);
          gemm.next_item = room({2}, DType::kI32);
          gemm.decoded = there(random_bytes({group_elements * at_once}, DType::kBF16, 0, 255, 3));
          if (activates) {
            ActivatedGemm activated{};
            activated.gemm = gemm;
            activated.out.values = gemm.out;
            EXPECT_EQ(plan_of(activated).decodes_ahead, ahead && !has_zero_points);
            EXPECT_TRUE(run_activated_gemm(activated, stream_));
          } else {
            EXPECT_EQ(plan_of(gemm).decodes_ahead, ahead && !has_zero_points);
            run_expert_gemm(gemm, stream_);
          }
          return gemm.out;
        };
        for (const bool activates : {false, true}) {
          const Tensor expected = run(groups, 0, activates, false);
          for (const int64_t at_once : {fewest, groups + 1}) {
            for (const int max_sms : {0, 2, 10}) {
              expect_same(expected, run(at_once, max_sms, activates, true),
                          c.name + (is_batched ? " batched" : " sorted") +
                              (activates ? " activated, " : ", ") + std::to_string(at_once) +
                              " of " + std::to_string(groups) + " groups at once, SMs " +
                              std::to_string(max_sms));
            }
          }
        }
      }
    }
  }
}

// Another kernel holds most SMs until the GEMM has ended, so most of its blocks begin when others
// have ended.
TEST_F(DecodingGemmTest, WaitsForNoBlocksThatDoNotRun) {
  constexpr int kFree = 32;        // SMs
  constexpr int64_t kItems = 128;  // of the other kernel, which has fewer pairs of blocks
  const std::vector<int> size(40, 3);
  Case c = make_cases(static_cast<int64_t>(size.size()), 7)[0];
  bring(c);
  const GroupedRows rows = grouped(size, 0);
  ExpertGemm gemm;
  gemm.a = c.a;
  gemm.a.values = there(random_uniform({rows.num_rows, kK}, DType::kBF16, 9, -1.0f, 1.0f));
  gemm.w = &c.w;
  gemm.rows = rows.groups;
  gemm.decodes_ahead = true;
  gemm.out = room({rows.num_rows, kN}, DType::kBF16);
  gemm.next_item = room({2}, DType::kI32);
  gemm.decoded = room({4 * decoded_group_elements(facts_of(c.w), DType::kBF16)}, DType::kBF16);
  run_expert_gemm(gemm, stream_);
  const Tensor expected = here(gemm.out);  // by now the kernels are loaded
  gemm.out = room({rows.num_rows, kN}, DType::kBF16);

  GroupedGemm other;
  other.a = room({1, 64}, DType::kBF16);
  other.a_rows = room({128}, DType::kI32);
  other.b = room({1, 512 * kItems, 64}, DType::kBF16);
  other.out = room({128, 512 * kItems}, DType::kBF16);
  const Tensor offsets = Tensor::zeros({2}, DType::kI32);
  offsets.data<int32_t>()[1] = 128;
  other.group_offsets = there(offsets);
  other.num_sms = cuda_device_info(0).num_sms - kFree;
  const Tensor words = room({2}, DType::kI64);
  const Tensor failed = room({1}, DType::kI64);
  other.arrivals.words = reinterpret_cast<const uint64_t*>(words.raw());
  other.arrivals.failed = reinterpret_cast<const uint64_t*>(failed.raw());
  other.arrivals.epoch = 1;
  other.arrivals.num_sources = 1;
  const Stream others = Stream::cuda(0);
  const Stream signals = Stream::cuda(0);
  const auto signal = [&](uint64_t word) {
    check_cuda(cudaMemcpyAsync(words.data<int64_t>() + 1, &word, sizeof(word),
                               cudaMemcpyHostToDevice, as_stream(signals.native_handle())),
               "a signal");
    signals.synchronize();
  };
  stream_.synchronize();
  signal(uint64_t{1} << 32);
  sm90_grouped_gemm(other, others);  // is loaded, too
  others.synchronize();
  signal(0);
  sm90_grouped_gemm(other, others);
  const Event held = others.record();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run_expert_gemm(gemm, stream_);
  const Event end = stream_.record();
  for (int i = 0; i < 2000 && !end.is_complete(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(end.is_complete());
  EXPECT_FALSE(held.is_complete());
  signal(uint64_t{1} << 32);
  others.synchronize();
  expect_same(expected, gemm.out, "beside another kernel");
}

}  // namespace
}  // namespace moebius::cuda
