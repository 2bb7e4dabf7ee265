// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/make_model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/random_fill.h"
#include "checkpoint/safetensors_writer.h"
#include "moebius/checkpoint.h"
#include "tests/by_name.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"
#include "tests/checkpoint/stored_weights.h"

namespace moebius::testing {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 40;

class SmallModels : public ::testing::TestWithParam<SmallModel> {};

double variance(const Tensor& w,
                const QuantDesc& desc,
                const QuantDesc& activation,
                int64_t gate_rows) {
  double sum = 0;
  for (int64_t e = 0; e < w.dim(0); ++e) {
    for (int64_t n = 0; n < w.dim(1); ++n) {
      for (const float value : loaded_row(w, desc, activation, e, n, gate_rows)) {
        EXPECT_TRUE(std::isfinite(value));
        sum += static_cast<double>(value) * value;
      }
    }
  }
  return sum / static_cast<double>(w.numel());
}

// Every family and format that can be written is read again, with weights of the right variance.
TEST_P(SmallModels, AreReadAsWritten) {
  const TempDir dir;
  checkpoint::write_model(GetParam().config, GetParam().name, 1, dir / "model", kNoLimit);
  const Checkpoint checkpoint(dir / "model");
  const ModelInfo& info = checkpoint.info();
  ASSERT_FALSE(info.moe_layers.empty());
  for (const int64_t layer : info.moe_layers) {
    const MoeLayerWeights weights = checkpoint.load_layer(layer);
    const QuantConfig& q = weights.experts.quant;
    const int64_t halves = weights.activation.gated ? 2 : 1;
    ASSERT_EQ(weights.experts.w1.shape(),
              (Shape{info.num_experts, halves * info.intermediate, info.hidden}));
    EXPECT_EQ(weights.router.gate.shape(), (Shape{info.num_experts, info.hidden}));
    EXPECT_EQ(weights.shared.w1.defined(), info.num_shared_experts > 0);
    const double w1 = variance(weights.experts.w1, q.w1, q.a1, info.intermediate);
    const double w2 = variance(weights.experts.w2, q.w2, q.a2, info.hidden);
    EXPECT_NEAR(w1 * static_cast<double>(info.hidden), 1.0, 0.35);
    EXPECT_NEAR(w2 * static_cast<double>(info.intermediate), 1.0, 0.35);
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamiliesAndFormats,
                         SmallModels,
                         ::testing::ValuesIn(small_models()),
                         by_name);

// Compares loaded values with those of the file, for formats of which there is no fixture.
TEST(SmallFormats, HoldTheFilesValues) {
  const TempDir dir;
  for (const char* name : {"qwen3_moe_fp8_channel", "qwen3_moe_int4_asym"}) {
    SCOPED_TRACE(name);
    checkpoint::write_model(small_config(name), name, 5, dir / name, kNoLimit);
    const Checkpoint checkpoint(dir / name);
    const MoeLayerWeights weights = checkpoint.load_layer(1);
    const QuantConfig& q = weights.experts.quant;
    for (int64_t n = 0; n < 64; ++n) {
      const std::vector<float> row = loaded_row(weights.experts.w1, q.w1, q.a1, 3, n, 32);
      const std::string module =
          std::string("model.layers.1.mlp.experts.3.") + (n < 32 ? "gate_proj" : "up_proj");
      for (int64_t k = 0; k < 64; ++k) {
        const float expected = stored_value(checkpoint.tensors(), module, n % 32, k);
        ASSERT_NEAR(row[static_cast<size_t>(k)], expected, 1e-6f * std::abs(expected));
      }
    }
  }
}

TEST(MakeModel, EqualSeedsGiveEqualFiles) {
  const TempDir dir;
  const auto make = [&](const char* name, uint64_t seed, const char* threads) {
    ::setenv("MOEBIUS_THREADS", threads, 1);
    make_model("tiny", 1, "none", seed, dir / name);
    ::unsetenv("MOEBIUS_THREADS");
    return read_text(dir / name / "model.safetensors");
  };
  const std::string first = make("a", 7, "1");
  EXPECT_TRUE(first == make("b", 7, "3"));
  EXPECT_FALSE(first == make("c", 8, "1"));
  // The same model may be written again.
  EXPECT_TRUE(first == make("c", 7, "2"));
}

TEST(MakeModel, CountsTheBytesOfItsFiles) {
  const TempDir dir;
  write_text(dir / "notes.txt", "not of the model");
  const int64_t bytes = make_model("tiny", 1, "none", 1, dir.path());
  EXPECT_EQ(static_cast<uintmax_t>(bytes),
            fs::file_size(dir / "model.safetensors") + fs::file_size(dir / "config.json"));
}

TEST(MakeModel, RandomValuesAreNormal) {
  const auto table = checkpoint::ValueTable::normal(DType::kF32, [](float x) { return x; });
  std::vector<float> values(1 << 20);
  table.fill(std::as_writable_bytes(std::span(values)), 0, 3, Stream::cpu());
  double sum = 0, squares = 0, fourth = 0;
  int64_t beyond = 0;
  for (const float x : values) {
    sum += x;
    squares += static_cast<double>(x) * x;
    fourth += std::pow(x, 4.0);
    beyond += std::abs(x) > 1.959964f ? 1 : 0;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 5e-3);
  EXPECT_NEAR(squares / n, 1.0, 1e-2);
  EXPECT_NEAR(fourth / n, 3.0, 5e-2);
  EXPECT_NEAR(static_cast<double>(beyond) / n, 0.05, 2e-3);
  // A tensor filled in pieces is the same tensor.
  std::vector<float> rest(1 << 19);
  table.fill(std::as_writable_bytes(std::span(rest)), 1 << 19, 3, Stream::cpu(1));
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), values.begin() + (1 << 19)));
}

TEST(MakeModel, SplitsLargeModelsIntoShards) {
  const TempDir dir;
  const nlohmann::json config = small_config("deepseek_v3");
  checkpoint::write_model(config, "x", 1, dir / "whole", kNoLimit);
  checkpoint::write_model(config, "x", 1, dir / "parts", 50000);
  EXPECT_TRUE(fs::exists(dir / "parts/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(dir / "parts/model.safetensors"));
  EXPECT_TRUE(fs::exists(dir / "parts/model-00002-of-00003.safetensors"));
  const Checkpoint whole(dir / "whole");
  const Checkpoint parts(dir / "parts");
  ASSERT_EQ(whole.tensors().names(), parts.tensors().names());
  const MoeLayerWeights a = whole.load_layer(1);
  const MoeLayerWeights b = parts.load_layer(1);
  EXPECT_EQ(std::memcmp(a.experts.w1.raw(), b.experts.w1.raw(),
                        static_cast<size_t>(a.experts.w1.nbytes())),
            0);
  // A single file would hide the index beside it.
  expect_mentions(
      message_of([&] { checkpoint::write_model(config, "x", 1, dir / "parts", kNoLimit); }),
      "model.safetensors.index.json is there already");
  expect_mentions(
      message_of([&] { checkpoint::write_model(config, "x", 1, dir / "whole", 50000); }),
      "model.safetensors is there already");
}

// Another program may read a configuration that is no strict JSON.
TEST(MakeModel, KeepsModelsThatItCannotRead) {
  const TempDir dir;
  const auto refusal = [&] {
    return message_of([&] { make_model("tiny", 1, "none", 1, dir.path()); });
  };
  for (const char* config : {"", "{broken", R"({"rope_scale": Infinity})", "[]"}) {
    write_text(dir / "config.json", config);
    write_text(dir / "model.safetensors", "weights");
    expect_mentions(refusal(), "config.json: ");
    EXPECT_EQ(read_text(dir / "config.json"), config);
    EXPECT_EQ(read_text(dir / "model.safetensors"), "weights");
  }
  fs::remove(dir / "config.json");
  expect_mentions(refusal(), "model.safetensors is there already without a config.json");
  EXPECT_EQ(read_text(dir / "model.safetensors"), "weights");
  fs::create_directory(dir / "config.json");
  expect_mentions(refusal(), "config.json: not a regular file");
  fs::remove(dir / "config.json");
  ASSERT_EQ(::mkfifo((dir / "config.json").c_str(), 0600), 0);
  expect_mentions(refusal(), "config.json: not a regular file");
}

TEST(MakeModel, RefusesWithTheReason) {
  const TempDir dir;
  const fs::path path = dir / "model";
  expect_mentions(message_of([&] { make_model("huge", 1, "none", 1, path); }),
                  "preset is huge, expected one of tiny,");
  expect_mentions(message_of([&] { make_model("tiny", 1, "int3", 1, path); }),
                  "quant is int3, expected one of none, fp8, int8, int4, mxfp4, nvfp4");
  expect_mentions(message_of([&] { make_model("tiny", 3, "none", 1, path); }),
                  "layers of tiny is 3, expected at most 2");
  expect_mentions(message_of([&] { make_model("tiny", -1, "none", 1, path); }), "layers is -1");
  expect_mentions(message_of<Unsupported>([&] { make_model("tiny", 1, "mxfp4", 1, path); }),
                  "only gpt_oss is published in mxfp4");
  expect_mentions(message_of<Unsupported>([&] { make_model("tiny-gpt-oss", 1, "fp8", 1, path); }),
                  "bf16 and mxfp4 only");
  write_text(dir / "file", "x");
  expect_mentions(message_of<Error>([&] { make_model("tiny", 1, "none", 1, dir / "file/model"); }),
                  "file/model");
  EXPECT_FALSE(fs::exists(path));
}

TEST(MakeModel, LeavesNothingBehindWhenTheDiskIsFull) {
  const TempDir dir;
  const std::string message =
      message_on_full_disk(100000, [&] { make_model("tiny", 1, "none", 1, dir / "a/b/model"); });
  expect_mentions(message, (dir / "a/b/model/model.safetensors").string());
  expect_mentions(message, "File too large");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// So a process that is killed leaves no file behind.
TEST(AtomicFile, HasNoNameBeforeItIsWhole) {
  const TempDir dir;
  if (const int fd = ::open(dir.path().c_str(), O_TMPFILE | O_WRONLY, 0600); fd < 0) {
    GTEST_SKIP() << "no files without names in " << dir.path();
  } else {
    ::close(fd);
  }
  const std::string name(255, 'n');  // the longest possible name
  write_text(dir / name, "before");
  checkpoint::AtomicFile file(dir / name, 5);
  file.write(std::as_bytes(std::span("after", 5)));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
  EXPECT_EQ(read_text(dir / name), "before");
  file.commit();
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
  EXPECT_EQ(read_text(dir / name), "after");
}

TEST(Presets, HaveThePublishedShapes) {
  std::map<std::string, ModelInfo> models;
  for (const PresetInfo& preset : model_presets()) {
    EXPECT_FALSE(preset.description.empty());
    EXPECT_TRUE(models.emplace(preset.name, preset.model).second) << preset.name;
  }
  for (const char* name :
       {"tiny", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"}) {
    EXPECT_EQ(models.count(name), 1u) << name;
  }
  const ModelInfo& v3 = models["deepseek-v3"];
  EXPECT_EQ(v3.hidden, 7168);
  EXPECT_EQ(v3.intermediate, 2048);
  EXPECT_EQ(v3.num_experts, 256);
  EXPECT_EQ(v3.topk, 8);
  EXPECT_EQ(v3.moe_layers.size(), 58u);
  EXPECT_EQ(v3.moe_layers.front(), 3);
  EXPECT_EQ(v3.shared_intermediate, 2048);
  EXPECT_EQ(models["qwen3-30b-a3b"].intermediate, 768);
  EXPECT_EQ(models["deepseek-v2-lite"].shared_intermediate, 2816);
  EXPECT_EQ(models["gpt-oss-120b"].hidden, 2880);
  EXPECT_EQ(models["llama4-scout"].topk, 1);
}

// The command can make these quantizations of the tiny presets.
TEST(Presets, TinyOnesLoadInEveryFormat) {
  const TempDir dir;
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"tiny", {"none", "fp8", "int8", "int4", "nvfp4"}},
      {"tiny-deepseek-v3", {"none", "fp8", "nvfp4"}},
      {"tiny-gpt-oss", {"none", "mxfp4"}},
      {"tiny-llama4", {"none", "fp8", "int4"}},
  };
  for (const auto& [preset, quants] : cases) {
    for (const char* quant : quants) {
      SCOPED_TRACE(std::string(preset) + " " + quant);
      const fs::path path = dir / (std::string(preset) + quant);
      make_model(preset, 0, quant, 1, path);
      const Checkpoint checkpoint(path);
      EXPECT_EQ(checkpoint.info().moe_layers.size(), 2u);
      const MoeLayerWeights weights = checkpoint.load_layer(1);
      EXPECT_EQ(weights.experts.w1.shape(), (Shape{16, 256, 256}));
      EXPECT_EQ(weights.experts.quant.w1.format.has_value(), std::string_view(quant) != "none");
    }
  }
}

}  // namespace
}  // namespace moebius::testing
