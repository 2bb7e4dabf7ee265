// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What `moebius run --device cuda` tells of the machine.
#include <gtest/gtest.h>

#include <algorithm>

#include "moebius/device.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::read_json;
using test::run_command;
using test::ScratchFolder;
using test::tiny_model;
using Words = std::vector<std::string>;

class RunOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
  }

  nlohmann::json run(const Words& options) {
    Words words = {"run",      "--model", tiny_model(), "--device",           "cuda",
                   "--repeat", "2",       "--json",     scratch_ / "run.json"};
    words.insert(words.end(), options.begin(), options.end());
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? read_json(scratch_ / "run.json") : nlohmann::json();
  }

  ScratchFolder scratch_;
};

TEST_F(RunOnGpu, MeasuresThePeaksOfTheGpu) {
  if (run_command({"info"}).out.find("report_page    no") != std::string::npos) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  const Words report = {"--report", scratch_ / "page.html"};
  Words shared = report;
  shared.insert(shared.end(), {"--ranks", "2", "--all2all", "high_throughput"});
  double alone = 0;
  for (const bool is_shared : {false, true}) {
    const Words& options = is_shared ? shared : report;
    const auto result = run(options);
    const auto& roofline = result["roofline"];
    ASSERT_FALSE(roofline.contains("missing")) << roofline;
    EXPECT_EQ(roofline["peak"], "tensor cores bf16");
    const double peak = roofline["peak_gflops"];
    EXPECT_GT(peak, 100e3);  // any GPU of architecture 9.0
    EXPECT_GT(roofline["read_gb_per_s"], 1000);
    alone = alone == 0 ? peak : alone;
    // Two ranks on one GPU have one GPU.
    const int gpus = !is_shared ? 1 : std::min(2, cuda_device_count());
    EXPECT_NEAR(peak / gpus, alone, 0.2 * alone);
  }
}

// Zeros would be taken for bytes.
TEST_F(RunOnGpu, TellsBytesOnlyWhereTheyAreCounted) {
  struct Case {
    Words options;
    bool counts;
  };
  for (const Case& c : {Case{{"--all2all", "high_throughput"}, true},
                        Case{{"--all2all", "high_throughput", "--graph"}, false},
                        Case{{"--all2all", "high_throughput", "--capacity", "200"}, false},
                        Case{{"--all2all", "low_latency"}, false}}) {
    SCOPED_TRACE(testing::PrintToString(c.options));
    Words options = c.options;
    options.insert(options.end(), {"--ranks", "2"});
    const auto result = run(options);
    const auto& parallel = result["parallel"];
    EXPECT_EQ(parallel["intra_node_bytes"].is_null(), !c.counts) << parallel;
    EXPECT_EQ(parallel.contains("link_bytes"), c.counts) << parallel;
  }
}

TEST_F(RunOnGpu, SumsLogitsOnTensorCoresWhenAsked) {
  EXPECT_FALSE(run({"--check"})["implementation"].contains("router_sums"));
  EXPECT_EQ(run({"--check", "--router-sums", "tensor"})["implementation"]["router_sums"],
            "tensor_cores");
}

}  // namespace
}  // namespace moebius
