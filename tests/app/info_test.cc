// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `info --model`: what is in a checkpoint, what would compute it, and why nothing does.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"
#include "tests/checkpoint/huge_model.h"

namespace moebius::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A copy of a tiny model that a test spoils.
class InfoOfModel : public ::testing::Test {
 protected:
  void make(const Words& options) { folder_ = make_model(options, scratch_ / "model"); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  void edit_config(const json& patch) {
    json config = read_json(file("config.json"));
    config.merge_patch(patch);
    write_text(file("config.json"), config.dump());
  }
  JsonResult info() { return run_for_json({"info", "--model", folder_}); }

  ScratchFolder scratch_;
  std::string folder_;
};

TEST_F(InfoOfModel, SaysWhatRunComputesWith) {
  for (const char* options : {"--preset tiny --layers 2", "--preset tiny --quant fp8",
                              "--preset tiny --quant int4", "--preset tiny-gpt-oss --quant mxfp4",
                              "--preset tiny --quant nvfp4", "--preset tiny-deepseek-v3"}) {
    SCOPED_TRACE(options);
    fs::remove_all(scratch_ / "model");
    make(options);
    const json model = info().json;
    EXPECT_EQ(model["model"]["runs"], true) << model["model"]["reason"];
    EXPECT_TRUE(model["model"]["reason"].is_null());
    ASSERT_EQ(model["layers"]["kinds"].size(), 1u);
    const json& kind = model["layers"]["kinds"][0];
    EXPECT_EQ(kind["num_layers"], model["model"]["num_moe_layers"]);
    EXPECT_EQ(kind["num_experts"], 16);
    EXPECT_EQ(model["layers"]["reasons"], json::array());

    const json run = run_for_json({"run", "--model", folder_, "--repeat", "1"}).json;
    EXPECT_EQ(kind["cpu"], run["implementation"]["experts"]);
    EXPECT_EQ(kind["router"], run["implementation"]["router"]);
    EXPECT_EQ(kind["bytes"], run["loading"]["read_bytes"]);
    const std::string format = kind["format"];
    EXPECT_NE(run["quantization"]["computed"].get<std::string>().find(
                  format == "bf16" ? "not quantized" : format),
              std::string::npos)
        << run["quantization"];
    // What a GPU does is known without one.
    EXPECT_NE(kind["gpu_one_row"], "no");
    EXPECT_NE(kind["gpu_many_rows"], "");
  }
}

TEST_F(InfoOfModel, AForcedImplementationIsTheAnswer) {
  make("--preset tiny");
  const auto with_experts = [&](const std::string& name) {
    return run_shell("MOEBIUS_EXPERTS=" + name + " $moebius info --model " + folder_);
  };
  EXPECT_NE(with_experts("ref").out.find("  ref  "), std::string::npos);
  const CommandResult none = with_experts("nobody");
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_NE(none.out.find("no experts implementation is named nobody"), std::string::npos)
      << none.out;
}

TEST_F(InfoOfModel, NamesTheFamilyThatIsMostLikeAnUnknownOne) {
  make("--preset tiny");
  edit_config({{"model_type", "qwen3_moee"}});
  const JsonResult result = info();
  EXPECT_EQ(result.json["model"]["runs"], false);
  EXPECT_EQ(result.json["model"]["nearest_family"], "qwen3_moe");
  EXPECT_EQ(result.json["model"]["hidden"], 256);
  EXPECT_EQ(result.json["model"]["num_experts"], 16);
  EXPECT_NE(result.json["model"]["reason"].get<std::string>().find("model_type is \"qwen3_moee\""),
            std::string::npos);
  // Its layers are listed all the same, without what would compute them.
  ASSERT_EQ(result.json["layers"]["kinds"].size(), 1u);
  EXPECT_EQ(result.json["layers"]["kinds"][0]["num_experts"], 16);
  EXPECT_EQ(result.json["layers"]["kinds"][0]["stored"], "BF16");
  EXPECT_TRUE(result.json["layers"]["kinds"][0]["cpu"].is_null());
}

TEST_F(InfoOfModel, NamesTheFormatThatIsMostLikeAnUnknownOne) {
  make("--preset tiny");
  const auto nearest = [&](const json& quantization) {
    edit_config({{"quantization_config", nullptr}});
    edit_config({{"quantization_config", quantization}});
    const json model = info().json["model"];
    EXPECT_EQ(model["runs"], false);
    EXPECT_EQ(model["quant_method"], quantization["quant_method"]);
    return model["nearest_quant"];
  };
  EXPECT_EQ(nearest({{"quant_method", "unheard_of"}, {"bits", 4}}), "int4_w4a16");
  EXPECT_EQ(nearest({{"quant_method", "unheard_of"}, {"w", {{"num_bits", 8}, {"type", "int"}}}}),
            "int8_w8a8");
  EXPECT_EQ(nearest({{"quant_method", "unheard_of_fp8"}}), "fp8_w8a8");
  EXPECT_EQ(nearest({{"quant_method", "unheard_of"}, {"load_in_4bit", true}, {"x", "nf4"}}),
            "mxfp4_w4a16");
  EXPECT_TRUE(nearest({{"quant_method", "unheard_of"}, {"bits", 3}}).is_null());
}

TEST_F(InfoOfModel, TellsLayersApartAndSaysWhyOneDoesNotLoad) {
  make("--preset tiny --layers 2");
  edit_tensors(folder_, [](const std::string& name, Tensor&) {
    return name != "model.layers.1.mlp.experts.11.up_proj.weight";
  });
  const JsonResult result = info();
  EXPECT_EQ(result.json["model"]["runs"], false);
  ASSERT_EQ(result.json["layers"]["kinds"].size(), 2u);
  EXPECT_EQ(result.json["layers"]["kinds"][0]["layers"], "0");
  EXPECT_FALSE(result.json["layers"]["kinds"][0]["cpu"].is_null());
  EXPECT_TRUE(result.json["layers"]["kinds"][1]["cpu"].is_null());
  const json& reasons = result.json["layers"]["reasons"];
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0]["layers"], "1");
  EXPECT_NE(reasons[0]["reason"].get<std::string>().find("experts.11.up_proj.weight' is missing"),
            std::string::npos)
      << reasons;
  EXPECT_NE(result.out.find("experts.11.up_proj.weight' is missing"), std::string::npos);
}

TEST_F(InfoOfModel, ListsMissingAndUnusedFiles) {
  make("--preset tiny --layers 2");
  json map;
  for (const std::string& name : Safetensors(file("model.safetensors")).names()) {
    const bool is_first = name.starts_with("model.layers.0.");
    map[name] = is_first ? "part-1.safetensors" : "part-2.safetensors";
  }
  fs::copy(file("model.safetensors"), file("part-1.safetensors"));
  fs::rename(file("model.safetensors"), file("old.safetensors"));
  write_text(file("model.safetensors.index.json"), json{{"weight_map", map}}.dump());
  const JsonResult result = info();
  EXPECT_EQ(result.json["files"]["num_files"], 2);
  EXPECT_EQ(result.json["files"]["missing"], json::array({"part-2.safetensors"}));
  EXPECT_EQ(result.json["files"]["unused"], json::array({"old.safetensors"}));
  EXPECT_NE(result.out.find("part-2.safetensors"), std::string::npos);
  // The layer that is there can be run.
  ASSERT_EQ(result.json["layers"]["kinds"].size(), 2u);
  EXPECT_FALSE(result.json["layers"]["kinds"][0]["cpu"].is_null());
  EXPECT_EQ(run_command({"run", "--model", folder_, "--layer", "0"}).exit_code, 0);
  expect_refused({"run", "--model", folder_, "--layer", "1"}, {"part-2.safetensors", "is missing"});
}

TEST_F(InfoOfModel, NeedsOnlyOneOfConfigAndWeights) {
  make("--preset tiny");
  const std::string config = read_text(file("config.json"));
  fs::remove(file("config.json"));
  JsonResult result = info();
  EXPECT_EQ(result.json["model"]["runs"], false);
  EXPECT_EQ(result.json["layers"]["kinds"].size(), 1u);
  EXPECT_NE(result.json["model"]["reason"].get<std::string>().find("config.json"),
            std::string::npos);

  write_text(file("config.json"), config);
  fs::remove(file("model.safetensors"));
  result = info();
  EXPECT_EQ(result.json["model"]["runs"], false);
  EXPECT_EQ(result.json["model"]["hidden"], 256);
  EXPECT_FALSE(result.json["layers"].contains("kinds"));

  fs::remove(file("config.json"));
  expect_refused({"info", "--model", folder_}, {"config.json"});
  expect_refused({"info", "--model", folder_ + "/none"}, {"none/config.json"});
  expect_refused({"info", folder_ + "/none"}, {"none/config.json"});  // the folder alone
}

TEST_F(InfoOfModel, WithoutExpertsSaysSo) {
  make("--preset tiny");
  edit_config({{"mlp_only_layers", {0}}, {"num_hidden_layers", 1}});
  const JsonResult result = info();
  EXPECT_EQ(result.json["model"]["runs"], false);
  EXPECT_NE(result.out.find("no layer has experts"), std::string::npos) << result.out;
}

TEST(InfoOfHugeModel, ReadsHeadersAndOneLayer) {
  const ScratchFolder scratch;
  if (const auto reason = testing::HugeModel::write(scratch.path())) {
    GTEST_SKIP() << *reason;
  }
  const json model = run_for_json({"info", "--model", scratch.path().string()}).json;
  EXPECT_EQ(model["model"]["runs"], true);
  ASSERT_EQ(model["layers"]["kinds"].size(), 1u);
  EXPECT_EQ(model["layers"]["kinds"][0]["num_layers"], testing::HugeModel::kLayers);
  EXPECT_EQ(model["layers"]["kinds"][0]["bytes"], testing::HugeModel::kLayerBytes);
  EXPECT_GT(model["files"]["bytes"], testing::HugeModel::kDataBytes);

  const json run = run_for_json(Words{"run", "--model", scratch.path().string(), "--layer",
                                      std::to_string(testing::HugeModel::kRealLayer)} +
                                "--tokens 4 --repeat 1")
                       .json;
  EXPECT_EQ(run["loading"]["read_bytes"], testing::HugeModel::kLayerBytes);
}

}  // namespace
}  // namespace moebius::test
