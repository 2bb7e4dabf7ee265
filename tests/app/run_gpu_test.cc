// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What `moebius run --device cuda` tells of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

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

// Of two ranks' decode by low latency and prefill by high throughput, only the latter has waves and
// parts; and only what some case uses is taken.
TEST_F(RunOnGpu, BenchGivesOptionsToTheCasesThatUseThem) {
  const std::string file = scratch_ / "bench.jsonl";
  const Words bench = {"bench", "layer",        "--preset", "tiny",   "--device",
                       "cuda",  "--iterations", "1",        "--json", file};
  const auto with = [&](const Words& options) {
    Words words = bench;
    words.insert(words.end(), options.begin(), options.end());
    return run_command(words);
  };
  const CommandResult result =
      with({"--ranks", "2", "--tokens", "8,512", "--combine-parts", "1,2", "--early-rows", "0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> asked;
  std::istringstream lines(test::read_text(file));
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text);
    asked.push_back({line["tokens"], line["asked_combine_parts"], line["early_rows"]});
    EXPECT_EQ(line["problem"].get<std::string>().ends_with("_early0"), line["tokens"] == 512);
  }
  EXPECT_EQ(asked, (std::vector<nlohmann::json>{{8, 0, nullptr}, {512, 1, 0}, {512, 2, 0}}));
  const auto expect_refused = [&](const Words& options, const std::string& why) {
    const CommandResult refused = with(options);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_NE(refused.err.find(why), std::string::npos) << refused.err;
  };
  expect_refused({"--ranks", "2", "--tokens", "8", "--combine-parts", "2"},
                 "--combine-parts: no case");
  expect_refused({"--ranks", "2", "--tokens", "8", "--early-rows", "0"}, "--early-rows: no case");
  expect_refused({"--ranks", std::to_string(cuda_device_count() + 1), "--group", "nccl"},
                 "--group nccl: ");
}

TEST_F(RunOnGpu, SumsLogitsOnTensorCoresWhenAsked) {
  EXPECT_FALSE(run({"--check"})["implementation"].contains("router_sums"));
  EXPECT_EQ(run({"--check", "--router-sums", "tensor"})["implementation"]["router_sums"],
            "tensor_cores");
}

}  // namespace
}  // namespace moebius
