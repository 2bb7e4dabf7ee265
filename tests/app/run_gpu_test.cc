// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius run --device cuda` and `moebius bench --device cuda`: what they report, and which
// options they take.
#include <gtest/gtest.h>

#include <algorithm>

#include "moebius/device.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

class RunOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
  }

  static nlohmann::json run(const Words& options) {
    return run_for_json(run_tiny("--device cuda --repeat 2") + options).json;
  }
};

TEST_F(RunOnGpu, MeasuresThePeaksOfTheGpu) {
  if (!build_has_page()) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  const ScratchFolder scratch;
  const Words report = {"--report", scratch / "page.html"};
  double alone = 0;
  for (const bool is_shared : {false, true}) {
    const auto result = run(is_shared ? report + "--ranks 2 --all2all high_throughput" : report);
    const auto& roofline = result["roofline"];
    ASSERT_FALSE(roofline.contains("missing")) << roofline;
    EXPECT_EQ(roofline["peak"], "tensor cores bf16");
    const double peak = roofline["peak_gflops"];
    EXPECT_GT(peak, 100e3);  // any GPU of architecture 9.0
    EXPECT_GT(roofline["read_gb_per_s"], 1000);
    alone = alone == 0 ? peak : alone;
    // Two ranks that share a GPU have the peak of one GPU.
    const int gpus = !is_shared ? 1 : std::min(2, cuda_device_count());
    EXPECT_NEAR(peak / gpus, alone, 0.2 * alone);
  }
}

// Where bytes are not counted the report has null, since zeros would look like a count.
TEST_F(RunOnGpu, TellsBytesOnlyWhereTheyAreCounted) {
  for (const auto& [options, counts] :
       {std::pair("--all2all high_throughput", true),
        std::pair("--all2all high_throughput --graph", false),
        std::pair("--all2all high_throughput --capacity 200", false),
        std::pair("--all2all low_latency", false)}) {
    SCOPED_TRACE(options);
    const auto result = run(Words("--ranks 2") + options);
    const auto& parallel = result["parallel"];
    EXPECT_EQ(parallel["intra_node_bytes"].is_null(), !counts) << parallel;
    EXPECT_EQ(parallel.contains("link_bytes"), counts) << parallel;
  }
}

// Two ranks decode by low latency and prefill by high throughput, and only the latter has waves and
// parts.  An option that no case uses is refused.
TEST_F(RunOnGpu, BenchGivesOptionsToTheCasesThatUseThem) {
  const Words bench = "layer --preset tiny --device cuda --iterations 1 --ranks 2 --l2-lines read";
  std::vector<nlohmann::json> asked;
  for (const auto& line : run_bench(bench + "--tokens 8,512 --combine-parts 1,2 --early-rows 0")) {
    asked.push_back({line["tokens"], line["asked_combine_parts"], line["early_rows"]});
    EXPECT_EQ(line["problem"].get<std::string>().ends_with("_early0"), line["tokens"] == 512);
    EXPECT_EQ(line["l2_lines"], "read");
  }
  EXPECT_EQ(asked, (std::vector<nlohmann::json>{{8, 0, nullptr}, {512, 1, 0}, {512, 2, 0}}));
  const Words refused = "bench" + bench + "--tokens 8";
  expect_refused(refused + "--combine-parts 2", {"--combine-parts: no case"});
  expect_refused(refused + "--early-rows 0", {"--early-rows: no case"});
  expect_refused("bench layer --preset tiny --device cuda --group nccl --ranks" +
                     Words{std::to_string(cuda_device_count() + 1)},
                 {"--group nccl: "});
}

TEST_F(RunOnGpu, SumsLogitsOnTensorCoresWhenAsked) {
  EXPECT_FALSE(run("--check")["implementation"].contains("router_sums"));
  EXPECT_EQ(run("--check --router-sums tensor")["implementation"]["router_sums"], "tensor_cores");
}

}  // namespace
}  // namespace moebius::test
