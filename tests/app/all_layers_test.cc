// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `run --all-layers`: every MoE layer of a model, one in memory at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <regex>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

using nlohmann::json;

class AllLayers : public ::testing::Test {
 protected:
  void make(const Words& options) { folder_ = make_model(options, scratch_ / "model"); }
  JsonResult run(const Words& options, int exit_code = 0) {
    return run_for_json(Words{"run", "--model", folder_, "--all-layers"} + options, exit_code);
  }

  ScratchFolder scratch_;
  std::string folder_;
};

TEST_F(AllLayers, AreThoseThatRunOneByOne) {
  make("--preset tiny-deepseek-v3 --layers 2");
  const JsonResult all = run("--check --repeat 1");
  EXPECT_EQ(all.err, "");  // no bar where stderr is no terminal
  const json& layers = all.json["layers"]["layers"];
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(all.json["layers"]["num_ok"], 2);
  int64_t read_bytes = 0;
  for (const json& row : layers) {
    const int64_t layer = row["layer"];
    const std::string output = scratch_ / "output.safetensors";
    const JsonResult one =
        run_for_json({"run", "--model", folder_, "--layer", std::to_string(layer), "--check",
                      "--repeat", "1", "--output", output});
    EXPECT_EQ(row["read_bytes"], one.json["loading"]["read_bytes"]);
    EXPECT_EQ(row["error"], one.json["check"]["error"]);
    EXPECT_EQ(row["check"], "ok");
    EXPECT_EQ(row["format"], "bf16");
    EXPECT_GT(row["load_us"], 0);
    EXPECT_GT(row["call_us"], 0);
    const Safetensors written(output);
    const Tensor values = written.tensor("output");
    double sum = 0;
    for (int64_t i = 0; i < values.numel(); ++i) {
      sum += std::pow(values.data<float>()[i], 2);
    }
    EXPECT_NEAR(row["norm"].get<double>(), std::sqrt(sum), 1e-4 * std::sqrt(sum));
    read_bytes += row["read_bytes"].get<int64_t>();
  }
  EXPECT_EQ(all.json["loading"]["read_bytes"], read_bytes);
  EXPECT_NE(layers[0]["norm"], layers[1]["norm"]);
}

TEST_F(AllLayers, RunOverRanksToo) {
  make("--preset tiny --layers 2 --quant fp8");
  const json alone = run("--repeat 1").json;
  const json ranks = run("--repeat 1 --check --ranks 4 --all2all high_throughput").json;
  ASSERT_EQ(ranks["layers"]["layers"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const json& row = ranks["layers"]["layers"][i];
    EXPECT_EQ(row["check"], "ok");
    EXPECT_EQ(row["format"], "fp8 128x128");
    const double norm = alone["layers"]["layers"][i]["norm"];
    EXPECT_NEAR(row["norm"].get<double>(), norm, 0.01 * norm);
    // Each rank reads its experts, and the router.
    EXPECT_GT(row["read_bytes"], alone["layers"]["layers"][i]["read_bytes"]);
  }
}

TEST_F(AllLayers, OneThatCannotBeLoadedIsNamed) {
  make("--preset tiny --layers 2");
  edit_tensors(folder_, [](const std::string& name, Tensor&) {
    return name != "model.layers.1.mlp.experts.3.down_proj.weight";
  });
  expect_refused({"run", "--model", folder_, "--all-layers"},
                 {"model.layers.1.mlp.experts.3.down_proj.weight", "is missing"});
}

TEST_F(AllLayers, AnOutputThatIsNotFiniteFails) {
  make("--preset tiny --layers 2");
  edit_tensors(folder_, [](const std::string& name, Tensor& tensor) {
    if (name.starts_with("model.layers.1.mlp.experts.")) {
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        set_float(tensor, i, 3e38f);
      }
    }
    return true;
  });
  const json result = run("--repeat 1", /*exit_code=*/1).json;
  EXPECT_EQ(result["layers"]["num_ok"], 1);
  EXPECT_TRUE(result["layers"]["layers"][0]["norm"].is_number());
  EXPECT_TRUE(result["layers"]["layers"][1]["norm"].is_string());
}

TEST_F(AllLayers, ExcludeWhatIsOfOneLayer) {
  for (const char* option : {"--layer 0", "--output x.safetensors", "--trace x", "--report x"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    expect_refused(run_tiny("--all-layers") + option, {"--all-layers", name});
  }
}

// `script` gives the command a terminal.
TEST_F(AllLayers, ShowABarOnATerminal) {
  if (run_shell("command -v script").exit_code != 0) {
    GTEST_SKIP() << "no script command";
  }
  make("--preset tiny --layers 2");
  const CommandResult result =
      run_shell("script -qec \"$moebius run --repeat 1 --all-layers --model " + folder_ +
                "\" /dev/null < /dev/null");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::regex_search(result.out, std::regex(R"(\[\.+\] 0 of 2, layer 0)")))
      << result.out;
  EXPECT_TRUE(std::regex_search(result.out, std::regex(R"(\[#+\.+\] 1 of 2, layer 1)")))
      << result.out;
}

}  // namespace
}  // namespace moebius::test
