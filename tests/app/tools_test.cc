// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `verify`, `info` and `bench`, and the parts of the documents that the command prints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <vector>

#include "moebius/settings.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

TEST(Verify, EveryImplementationAgreesWithTheReference) {
  for (const char* stage : {"quant", "router", "experts", "dispatch"}) {
    const auto json = run_for_json(Words("verify --stage") + stage).json;
    EXPECT_EQ(json["verify"]["failed"], 0);
    EXPECT_GE(json["verify"]["ok"], 10);
    ASSERT_FALSE(json[stage]["cases"].empty()) << stage;
    for (const auto& row : json[stage]["cases"]) {
      // Dispatch has no `ref`: its expected result is computed from the inputs of all ranks.  Only
      // low latency has sums per rank.
      const bool is_sum_of_ranks = row["case"].get<std::string>().ends_with("/combine_ranks");
      const char* impl = std::string_view(stage) != "dispatch" ? "ref"
                         : is_sum_of_ranks                     ? "low_latency"
                                                               : "high_throughput";
      EXPECT_EQ(row[impl], "ok") << row;
    }
  }
}

// tests/layer/conformance_test.cc has all rows of the matrix.
TEST(Verify, LayerHasACellPerBackendAndSaysWhatIsRefused) {
  const JsonResult result = run_for_json("verify --problem fp8_block/ref_f64");
  const auto& json = result.json;
  EXPECT_FALSE(json.contains("quant"));
  ASSERT_EQ(json["layer"]["cases"].size(), 1u);
  const auto& row = json["layer"]["cases"][0];
  for (const char* impl :
       {"none", "none_batched", "allgather_reducescatter", "monolithic", "high_throughput"}) {
    EXPECT_EQ(row[impl], "ok") << impl;
  }
  EXPECT_EQ(row["low_latency"], "refused");
  EXPECT_NE(result.out.find("low_latency cannot defer the fp8 cast"), std::string::npos)
      << result.out;
  EXPECT_EQ(run_command("verify --problem no_such_case").exit_code, 2);
}

TEST(Docs, ConformancePageIsWhatTheCommandPrints) {
  const CommandResult result = run_command("verify --markdown");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_text("docs/conformance.md"), result.out)
      << "moebius verify --markdown > docs/conformance.md";
}

TEST(Docs, SettingsAreThoseOfTheCode) {
  const std::string page = read_text("docs/command.md");
  for (const SettingInfo& info : all_settings()) {
    const std::string row = fmt::format("| `{}` | {} | {} | {} |\n", info.name, info.meaning,
                                        info.default_value, info.read);
    EXPECT_NE(page.find(row), std::string::npos) << "docs/command.md, Settings: " << row;
  }
  // The page has no other settings.
  const std::string begin = "\n| `MOEBIUS_";
  const auto num_ours =
      std::count_if(all_settings().begin(), all_settings().end(),
                    [](const SettingInfo& info) { return info.name.starts_with("MOEBIUS_"); });
  int64_t num_rows = 0;
  for (size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at + 1)) {
    ++num_rows;
  }
  EXPECT_EQ(num_rows, num_ours);
}

TEST(Verify, OneStageByItself) {
  const CommandResult result = run_command("verify --stage router --threads 1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("deepseek_v3/select"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("nvfp4"), std::string::npos) << result.out;
}

TEST(Info, ListsMachineBuildSettingsImplementationsAndPresets) {
  const JsonResult result = run_for_json("info");
  const auto& json = result.json;
  EXPECT_GE(json["machine"]["threads"], 1);
  EXPECT_EQ(json["settings"]["settings"].size(), all_settings().size());
  std::set<std::string> stages;
  for (const auto& row : json["implementations"]["implementations"]) {
    stages.insert(row["stage"]);
    // An implementation that is refused has a reason.
    EXPECT_EQ(row["accepts"] == "yes", row["reason"] == "") << row;
    EXPECT_NE(result.out.find(row["implementation"].get<std::string>()), std::string::npos);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"quant", "router", "experts"}));
  EXPECT_GE(json["presets"]["presets"].size(), 5u);
}

TEST(Info, DescribesAModel) {
  const auto json = run_for_json({"info", "--model", tiny_model()}).json;
  EXPECT_EQ(json["model"]["hidden"], read_json(tiny_model() + "/config.json")["hidden_size"]);
}

TEST(Bench, RowsAndJsonLinesBelongTogether) {
  int num_timed = 0;
  for (const auto& json : run_bench("router --problem qwen3_decode/select --min-time 0")) {
    EXPECT_EQ(json["stage"], "router");
    EXPECT_EQ(json["problem"], "qwen3_decode/select");
    for (const char* key : {"impl", "commit", "cpu", "threads"}) {
      EXPECT_TRUE(json.contains(key)) << key;
    }
    if (json.contains("median_us")) {
      ++num_timed;
      EXPECT_TRUE(json["checked"]);
      EXPECT_GE(json["n"], 5);
      EXPECT_LE(json["p10_us"], json["median_us"]);
      EXPECT_LE(json["median_us"], json["p90_us"]);
      EXPECT_GT(json["tokens_per_s"], 0);
    }
  }
  EXPECT_GE(num_timed, 1);
}

TEST(Bench, ChecksBeforeItTimes) {
  const CommandResult result =
      run_command("bench experts --problem qwen3_decode/int4_w4a16 --min-time 0");
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(result.out.find("wrong"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("GFLOP/s"), std::string::npos) << result.out;
}

TEST(Bench, DispatchChecksEveryRowAndComparesWithMemcpy) {
  std::multiset<std::string> impls;
  for (const auto& json : run_bench("dispatch --ranks 3 --min-time 0")) {
    impls.insert(json["impl"]);
    EXPECT_EQ(json["stage"], "dispatch");
    EXPECT_EQ(json["ranks"], 3);
    EXPECT_TRUE(json["checked"]);
    EXPECT_GT(json["moved_bytes"], json["tokens"]);
    // Two of these three columns determine the third.
    const double seconds = json["median_us"].get<double>() * 1e-6;
    const double rate = json["gb_per_s"].get<double>();
    EXPECT_NEAR(rate * seconds, json["moved_bytes"].get<double>() * 1e-9, 1e-6) << json;
    EXPECT_NEAR(json["of_memcpy"].get<double>() * json["memcpy_gb_per_s"].get<double>(), rate,
                1e-6 * rate)
        << json;
  }
  EXPECT_EQ(impls.count("high_throughput"), 4u);
  EXPECT_EQ(impls.count("low_latency"), 4u);
}

TEST(Bench, AWholeLayerAgainstTheRooflineOfItsRun) {
  for (const std::string quant : {"none", "int8_w8a8", "nvfp4"}) {
    std::vector<std::string> problems;
    for (const auto& json : run_bench("layer --preset tiny-deepseek-v3 --tokens 1,33 --min-time 0 "
                                      "--threads 1 --quant" +
                                      Words{quant})) {
      problems.push_back(json["problem"]);
      EXPECT_TRUE(json["checked"]);
      EXPECT_EQ(json["threads"], 1);
      EXPECT_GE(json["layers"], 2);
      // The roofline is the longer of computing and reading.
      const double roofline = json["roofline_us"];
      const double flops_us = json["gflops"].get<double>() * json["median_us"].get<double>() /
                              json["peak_gflops"].get<double>();
      const double read_us =
          json["touched_bytes"].get<double>() * 1e-3 / json["read_gb_per_s"].get<double>();
      EXPECT_NEAR(roofline, std::max(flops_us, read_us), 1e-6 * roofline);
      EXPECT_NEAR(json["times_roofline"].get<double>() * roofline, json["median_us"], 1e-3);
      EXPECT_LE(json["touched_bytes"], json["layer_bytes"]);
      EXPECT_GT(json["experts_share"], 0);
      EXPECT_LT(json["experts_share"], 1);
    }
    const std::string prefix = "tiny-deepseek-v3/" + quant;
    EXPECT_EQ(problems, (std::vector<std::string>{prefix + "/1", prefix + "/33"}));
  }
}

TEST(Readme, ExampleIsTheOneThatIsTested) {
  const std::string source = read_text("examples/04_layer.cc");
  const std::string example = source.substr(source.find("#include"));
  EXPECT_NE(read_text("README.md").find("```cpp\n" + example + "```"), std::string::npos)
      << "README.md must hold examples/04_layer.cc from its first #include on";
}

TEST(Readme, SupportTableIsWhatTheCommandPrints) {
  const CommandResult result = run_command("info --markdown");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string readme = read_text("README.md");
  const std::string begin = "<!-- support table -->\n";
  const size_t at = readme.find(begin) + begin.size();
  const std::string table = readme.substr(at, readme.find("<!-- end of support table -->") - at);
  if (run_for_json("info").json["build"]["CUDA"] != "no") {
    EXPECT_EQ(table, result.out) << "update README.md with `moebius info --markdown`";
    return;
  }
  // A build without an optional library has fewer implementations, but none that is not listed.
  std::istringstream lines(result.out);
  for (std::string name; std::getline(lines, name, '`');) {
    const bool is_name = !name.empty() && std::islower(static_cast<unsigned char>(name[0])) != 0;
    if (is_name && name.find_first_of(" |") == std::string::npos) {
      EXPECT_NE(table.find("`" + name + "`"), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace moebius::test
