// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Inputs and models that cannot be used are refused with exit code 2 and one line that names what
// is wrong, and nothing is written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>

#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

namespace fs = std::filesystem;

TEST(Input, FilesThatDoNotFitAreRefused) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  const std::string file = scratch / "in.safetensors";
  const auto refused = [&](const std::vector<std::string>& fragments, const Words& more = {}) {
    expect_refused(run_tiny({"--input", file}) + more, fragments);
  };
  refused({file});  // no such file

  expect_refused(run_tiny({"--input", tiny_model() + "/config.json"}),
                 {"config.json: is JSON, expected FILE.safetensors"});

  write_text(file, "not a safetensors file");
  refused({file});

  const Tensor good = Tensor::zeros({3, hidden}, DType::kF32);
  write_safetensors(file, {{"x", good}, {"y", good}});
  refused({file, "2 tensors", "--input-tensor"});
  refused({file, "z", "missing"}, "--input-tensor z");

  write_safetensors(file, {{"x", Tensor::zeros({3, hidden + 1}, DType::kF32)}});
  refused({file, "x", fmt::format("[3, {}]", hidden + 1), std::to_string(hidden)});
  write_safetensors(file, {{"x", Tensor::zeros({hidden}, DType::kF32)}});
  refused({file, "x", fmt::format("[{}]", hidden)});
  write_safetensors(file, {{"x", Tensor::zeros({3, hidden}, DType::kI32)}});
  refused({file, "x", "I32", "BF16"});

  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Tensor tensor = good.clone();
    set_float(tensor, 2 * hidden + 7, bad);
    write_safetensors(file, {{"x", tensor}});
    refused({file, "x", "token 2", "column 7"});
  }
  set_float(good, 2 * hidden + 7, 3.4e38f);  // f32 can hold it, the model's bf16 cannot
  write_safetensors(file, {{"x", good}});
  refused({"x is 3.4e+38 at token 2, column 7, which is inf in the model's bf16"});
  set_float(good, 2 * hidden + 7, 0);

  write_safetensors(file, {{"x", good}});
  fs::resize_file(file, fs::file_size(file) - 4);
  refused({file});
}

TEST(Model, FoldersWithoutAModelAreRefused) {
  const ScratchFolder scratch;
  expect_refused({"run", "--model", scratch / "none"}, {"none"});
  expect_refused({"run", "--model", scratch.path().string()}, {"config.json"});
  expect_refused({"info", "--model", scratch.path().string()}, {"config.json"});
}

// A copy of the tiny model that a test may damage.
class DamagedModel : public testing::Test {
 protected:
  DamagedModel() : folder_(scratch_ / "model") { fs::copy(tiny_model(), folder_); }

  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  void edit_config(const std::string& field, const nlohmann::json& value) {
    auto config = read_json(file("config.json"));
    config[field] = value;
    write_text(file("config.json"), config.dump());
  }

  void expect_run_refused(const std::vector<std::string>& fragments) {
    expect_refused({"run", "--model", folder_, "--output", scratch_ / "out.safetensors", "--json",
                    scratch_ / "out.json"},
                   fragments);
    // Nothing was written, not even a temporary file.
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()), 1);
  }

  ScratchFolder scratch_;
  std::string folder_;
};

bool is_gate(const std::string& name) {
  return name.ends_with(".gate.weight") || name.ends_with(".router.weight");
}

TEST_F(DamagedModel, MissingWeightsAreNamed) {
  fs::remove(file("model.safetensors"));
  expect_run_refused({"model.safetensors"});
}

TEST_F(DamagedModel, MissingShardIsNamed) {
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  fs::rename(file("model.safetensors"), file(first));
  nlohmann::json map;
  for (const std::string& name : Safetensors(file(first)).names()) {
    map[name] = is_gate(name) ? second : first;
  }
  write_text(file("model.safetensors.index.json"), nlohmann::json{{"weight_map", map}}.dump());
  expect_run_refused({second});
}

TEST_F(DamagedModel, TruncatedWeightsAreNamed) {
  fs::resize_file(file("model.safetensors"), fs::file_size(file("model.safetensors")) / 2);
  expect_run_refused({"model.safetensors"});
}

TEST_F(DamagedModel, MissingTensorIsNamed) {
  edit_tensors(folder_, [](const std::string& name, Tensor&) { return !is_gate(name); });
  expect_run_refused({folder_, "gate.weight", "missing"});
}

TEST_F(DamagedModel, ShapeThatContradictsTheConfigIsNamedWithBothValues) {
  const int64_t hidden = read_json(file("config.json"))["hidden_size"];
  edit_config("hidden_size", hidden * 2);
  expect_run_refused({"safetensors", std::to_string(hidden), std::to_string(hidden * 2)});
}

// The model is refused before its input is made, which would take minutes and gigabytes.
TEST_F(DamagedModel, HugeSizesAreRefusedAtOnce) {
  edit_config("hidden_size", int64_t{1} << 28);
  const auto start = std::chrono::steady_clock::now();
  expect_run_refused({"safetensors", "config.json makes it [16, 268435456]"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(DamagedModel, BrokenConfigIsNamed) {
  write_text(file("config.json"), "{\"model_type\": ");
  expect_run_refused({"config.json"});
}

TEST_F(DamagedModel, UnknownFamilyIsNamed) {
  edit_config("model_type", "perceptron");
  expect_run_refused({"config.json", "perceptron"});
}

TEST_F(DamagedModel, UnknownQuantizationIsNamed) {
  edit_config("quantization_config", {{"quant_method", "ternary"}});
  expect_run_refused({"ternary"});
}

TEST_F(DamagedModel, MoreSelectionsThanExpertsAreRefused) {
  edit_config("num_experts_per_tok", 1000);
  expect_run_refused({"1000"});
}

TEST_F(DamagedModel, NanAndInfinityInTheRouterAreNamed) {
  const auto put_in_gate = [&](float value) {
    edit_tensors(folder_, [&](const std::string& name, Tensor& tensor) {
      if (is_gate(name)) {
        set_float(tensor, 5, value);
      }
      return true;
    });
  };
  put_in_gate(std::numeric_limits<float>::quiet_NaN());
  expect_run_refused({folder_, "gate.weight' is NaN at [0, 5], expected a finite number"});
  put_in_gate(std::numeric_limits<float>::infinity());
  expect_run_refused({folder_, "gate.weight' is inf at [0, 5], expected a finite number"});
}

}  // namespace
}  // namespace moebius::test
