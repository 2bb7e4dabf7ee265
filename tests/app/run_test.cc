// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `make-model` and `run` with the tiny preset: results, the report and its JSON.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <regex>

#include "moebius/safetensors.h"
#include "moebius/tolerance.h"
#include "tests/app/command.h"
#include "tests/app/family_fixtures.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

// Collects every number of a JSON document.
void collect(const nlohmann::json& json, std::vector<double>& numbers) {
  if (json.is_number()) {
    numbers.push_back(json.get<double>());
  }
  if (json.is_structured()) {
    for (const auto& child : json) {
      collect(child, numbers);
    }
  }
}

// Whether some number, in one of the units that the report prints, is printed as this text.
bool holds_printed(const std::vector<double>& numbers, const std::string& text) {
  const double printed = std::stod(text);
  const size_t point = text.find('.');
  const size_t exponent = text.find('e');
  const double unit_in_last_place =
      exponent != std::string::npos ? std::pow(10.0, std::stod(text.substr(exponent + 1)) - 2)
      : point == std::string::npos  ? 1.0
                                    : std::pow(10.0, -static_cast<double>(text.size() - point - 1));
  for (const double number : numbers) {
    for (const double scale : {1.0, 1e-3, 1e-6, 1e-9, 100.0}) {
      if (std::abs(number * scale - printed) <= 0.500001 * unit_in_last_place) {
        return true;
      }
    }
  }
  return false;
}

TEST(Run, TinyModelPassesItsCheckAndReportsEveryStage) {
  const JsonResult result = run_for_json(run_tiny("--tokens 64 --check"));
  EXPECT_EQ(result.err, "");
  const auto& json = result.json;
  EXPECT_EQ(json["input"]["tokens"], 64);
  EXPECT_TRUE(json["check"]["passed"]);
  EXPECT_GT(json["check"]["error"], 0.0);  // bf16 against float64
  EXPECT_GT(json["throughput"]["tokens_per_second"], 0.0);
  EXPECT_GT(json["throughput"]["gflops"], 0.0);
  EXPECT_GT(json["memory"]["peak_bytes"], json["memory"]["weight_bytes"]);
  EXPECT_GE(json["time"]["stages"].size(), 3u);
  int64_t rows = 0;
  for (const auto& count : json["load"]["per_expert"]) {
    rows += count.get<int64_t>();
  }
  EXPECT_EQ(rows, 64 * json["model"]["topk"].get<int64_t>());
  EXPECT_EQ(rows, json["load"]["rows"]);
}

TEST(Run, JsonHoldsEveryPrintedFigure) {
  const ScratchFolder scratch;
  const std::string output = scratch / "out.safetensors";
  const JsonResult result = run_for_json(run_tiny("--tokens 37 --check --output") + output);
  std::vector<double> numbers;
  collect(result.json, numbers);
  // The JSON holds words with digits in them, such as bf16 and paths, as they are.
  std::string out = result.out;
  for (const std::string& text : {tiny_model(), output}) {
    for (size_t at = out.find(text); at != std::string::npos; at = out.find(text)) {
      out.replace(at, text.size(), "FILE");
    }
  }
  const std::regex number("(^|[^A-Za-z0-9_.])([0-9]+(\\.[0-9]+)?(e[-+][0-9]+)?)(?![A-Za-z0-9_])");
  int found = 0;
  for (std::sregex_iterator it(out.begin(), out.end(), number), end; it != end; ++it) {
    EXPECT_TRUE(holds_printed(numbers, (*it)[2])) << (*it)[2] << " in\n" << out;
    ++found;
  }
  EXPECT_GT(found, 20);
}

TEST(Run, TheSameSeedGivesTheSameOutputWhateverTheThreads) {
  const ScratchFolder scratch;
  const auto output_of = [&](const std::string& name, const char* more) {
    const CommandResult result =
        run_command(run_tiny(more) + "--tokens 50 --repeat 1 --output" + scratch / name);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_text(scratch / name);
  };
  const std::string once = output_of("a", "--seed 7");
  EXPECT_EQ(once, output_of("b", "--seed 7 --threads 1"));
  EXPECT_NE(once, output_of("c", "--seed 8"));
}

TEST(Run, AnInputFileWithOneTensorNeedsNoName) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  const std::string input = scratch / "in.safetensors";
  const Tensor rows = Tensor::zeros({5, hidden}, DType::kF16);
  set_float(rows, 3, 1.5f);
  write_safetensors(input, {{"x", rows}});
  const std::string output = scratch / "out.safetensors";
  const CommandResult result =
      run_command(run_tiny({"--input", input, "--output", output, "--check"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Tensor written = Safetensors(output).tensor("output");
  EXPECT_EQ(written.shape(), Shape({5, hidden}));
}

TEST(Run, AModelMayLieInAFolderWhoseNameIsNotUtf8) {
  const ScratchFolder scratch;
  const std::string model = scratch / "bad\xff";
  std::filesystem::copy(tiny_model(), model);
  const auto json = run_for_json({"run", "--model", model, "--tokens", "3"}).json;
  const std::string directory = json["model"]["directory"];
  EXPECT_TRUE(directory.ends_with("bad\xef\xbf\xbd")) << directory;
}

TEST(Run, NoTokensIsAValidInput) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  write_safetensors(scratch / "in", {{"x", Tensor::zeros({0, hidden}, DType::kF32)}});
  const CommandResult result =
      run_command(run_tiny({"--input", scratch / "in", "--output", scratch / "out", "--check"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Safetensors(scratch / "out").tensor("output").shape(), Shape({0, hidden}));
}

TEST(Run, ForcedImplementationIsTheOneThatRan) {
  const auto json = run_for_json(run_tiny("--experts ref --repeat 1")).json;
  EXPECT_EQ(json["implementation"]["experts"], "ref");
}

TEST(Run, QuantizingAtLoadPassesItsCheck) {
  for (const std::string scheme :
       {"fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16", "mxfp4_w4a16", "nvfp4"}) {
    const CommandResult result = run_command(run_tiny("--check --repeat 1 --quant") + scheme);
    EXPECT_EQ(result.exit_code, 0) << scheme << ": " << result.err << result.out;
  }
}

// Activations of nvfp4 are scaled by what they are, on every backend and however large they are.
TEST(Run, Nvfp4AtLoadPassesItsCheckAtEveryMagnitude) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  const std::string file = scratch / "in.safetensors";
  for (const float magnitude : {1e-3f, 1.0f, 2.0f, 100.0f, 1e4f}) {
    const Tensor x = Tensor::empty({33, hidden}, DType::kBF16);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto t = static_cast<float>(i);
      set_float(x, i, magnitude * 4.0f * std::sin(0.7f * t) * std::cos(1.3f * t * t));
    }
    std::filesystem::remove(file);
    write_safetensors(file, {{"x", x}});
    for (const char* spread : {"--ranks 1", "--ranks 2 --all2all high_throughput",
                               "--ranks 2 --all2all low_latency", "--tp 2 --no-ep"}) {
      const CommandResult result =
          run_command(run_tiny({"--input", file}) + "--quant nvfp4 --check --repeat 1" + spread);
      EXPECT_EQ(result.exit_code, 0) << magnitude << " " << spread << result.err << result.out;
    }
  }
}

// A token's output does not depend on the tokens beside it.
TEST(Run, Nvfp4AtLoadGivesATokenTheSameBitsInAnyCompany) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  Tensor x = Tensor::empty({9, hidden}, DType::kBF16);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto t = static_cast<float>(i);
    // Every token is ten times as large as the one before.
    set_float(x, i, std::sin(0.7f * t * t) * std::pow(10.0f, static_cast<float>(i / hidden - 4)));
  }
  const auto output_of = [&](const Tensor& input, const char* spread) {
    const std::string in = scratch / "in.safetensors";
    const std::string out = scratch / "out.safetensors";
    std::filesystem::remove(in);
    write_safetensors(in, {{"x", input}});
    run_for_json(run_tiny({"--input", in, "--output", out}) + "--quant nvfp4 --repeat 1" + spread);
    return Safetensors(out).tensor("output").clone();
  };
  const Tensor all = output_of(x, "--ranks 1");
  for (int64_t t = 0; t < 9; ++t) {
    const Tensor alone = output_of(x.slice(t, t + 1), "--ranks 1");
    EXPECT_EQ(std::memcmp(alone.raw(), all[t].raw(), static_cast<size_t>(alone.nbytes())), 0) << t;
  }
  const Tensor spread = output_of(x, "--ranks 3 --all2all allgather_reducescatter");
  for (int64_t i = 0; i < all.numel(); ++i) {
    // Sums of experts on several ranks are rounded once more.
    EXPECT_NEAR(get_float(spread, i), get_float(all, i),
                0.02f * std::abs(get_float(all, i)) +
                    1e-3f * std::pow(10.0f, static_cast<float>(i / hidden - 4)))
        << i;
  }
}

TEST(Run, FailedCheckExitsWithOneAndKeepsTheOutput) {
  // The static scales of activations become a thousand times too small, so that all values
  // saturate.
  const ScratchFolder scratch;
  const std::string model = make_model("--preset tiny --quant nvfp4", scratch / "model");
  int num_scales = 0;
  edit_tensors(model, [&](const std::string& name, Tensor& tensor) {
    if (name.ends_with(".input_scale")) {
      ++num_scales;
      set_float(tensor, 0, 1e-3f * get_float(tensor, 0));
    }
    return true;
  });
  ASSERT_GT(num_scales, 0);
  const JsonResult result = run_for_json(
      {"run", "--model", model, "--check", "--repeat", "1", "--output", scratch / "out"}, 1);
  EXPECT_NE(result.out.find("FAILED"), std::string::npos) << result.out;
  EXPECT_FALSE(result.json["check"]["passed"]);
  EXPECT_TRUE(Safetensors(scratch / "out").contains("output"));
}

// JSON has no infinity, and null would say that nothing was measured.
TEST(Run, AnInfiniteErrorIsToldAsSuch) {
  const ScratchFolder scratch;
  const std::string model = scratch / "model";
  std::filesystem::copy(tiny_model(), model);
  edit_tensors(model, [](const std::string& name, Tensor& tensor) {
    for (int64_t i = 0; name.ends_with("down_proj.weight") && i < tensor.numel(); ++i) {
      set_float(tensor, i, 3e38f);
    }
    return true;
  });
  const JsonResult result = run_for_json({"run", "--model", model, "--check", "--repeat", "1"}, 1);
  EXPECT_NE(result.out.find("relative error inf"), std::string::npos) << result.out;
  EXPECT_EQ(result.json["check"]["error"], "inf");
}

// DeepSeek-V3.1 has this scale_fmt.  The backends quantize on one rank, before rows travel, and on
// the way.
TEST(Run, PowerOfTwoScalesOfACheckpointAreComputedWithAndTold) {
  const ScratchFolder scratch;
  const std::string model = make_model("--preset tiny-deepseek-v3 --quant fp8", scratch / "model");
  auto config = read_json(model + "/config.json");
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  write_text(model + "/config.json", config.dump());
  for (const std::string backend : {"none", "high_throughput", "low_latency"}) {
    const Words run = {"run", "--model", model, "--ranks", backend == "none" ? "1" : "2"};
    const auto json = run_for_json(run + "--check --repeat 1 --all2all" + backend).json;
    EXPECT_EQ(json["quantization"]["computed"],
              "weights fp8 128x128, activations fp8 1x128 with ue8m0 scales");
  }
}

TEST(MakeModel, EveryFormatCanBeWrittenAndRun) {
  for (const std::string quant : {"none", "fp8", "int8", "int4", "nvfp4"}) {
    const ScratchFolder scratch;
    const std::string model =
        make_model({"--preset", "tiny", "--quant", quant}, scratch / "nested/model");
    const CommandResult result =
        run_command("run --tokens 16 --check --repeat 1 --model" + Words{model});
    EXPECT_EQ(result.exit_code, 0) << quant << ": " << result.err << result.out;
  }
}

TEST(MakeModel, ListNamesThePresets) {
  const CommandResult result = run_command("make-model --preset list");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* preset :
       {"tiny", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"}) {
    EXPECT_NE(result.out.find(preset), std::string::npos) << preset;
  }
}

TEST(Run, AFailedCheckSaysThatAStaticScaleClipsTheInput) {
  const fs::path model = family_root() / "formats/fp8_static/mixtral";
  const CommandResult result =
      run_command("run --check --repeat 1 --tokens 4 --model" + Words{model.string()});
  EXPECT_EQ(result.exit_code, 1) << result.err << result.out;
  EXPECT_NE(result.out.find("static scale of activations holds values up to 0.06"),
            std::string::npos)
      << result.out;
}

}  // namespace
}  // namespace moebius::test
