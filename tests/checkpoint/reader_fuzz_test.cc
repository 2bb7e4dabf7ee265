// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads mutated checkpoints.  Whatever the files say, reading ends with a result, or throws
// InvalidArgument or Unsupported with a message of one line.  Seeds are fixed, so that failures can
// be repeated.  Sanitizers find other errors.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/survey.h"
#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {
namespace {

using nlohmann::json;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }

  // Changes, inserts, removes or repeats some bytes.
  std::string bytes(std::string text) {
    const uint64_t times = 1 + below(4);
    for (uint64_t i = 0; i < times; ++i) {
      const size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          if (at < text.size()) {
            text[at] = static_cast<char>(below(256));
          }
          break;
        case 1:
          if (at < text.size()) {
            text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          }
          break;
        case 2:
          text.insert(at, 1, "{}[]\",:0-9eE.\\\n"[below(15)]);
          break;
        case 3:
          text.erase(at, below(8));
          break;
        default:
          text.insert(at, text.substr(below(text.size() + 1), below(64)));
      }
    }
    return text;
  }

  // Replaces values or keys somewhere in the document by awkward ones.
  json structure(json document) {
    const uint64_t times = 1 + below(3);
    for (uint64_t i = 0; i < times; ++i) {
      change(pick(document));
    }
    return document;
  }

 private:
  json& pick(json& node) {
    if (!node.is_structured() || node.empty() || below(5) == 0) {
      return node;
    }
    return pick(*element_of(node));
  }

  json::iterator element_of(json& node) {
    return std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size())));
  }

  void change(json& node) {
    static const json kValues = json::parse(R"([
        0, 1, -1, 2, 3, 7, 64, 255, 65536, 2147483648, 4294967296, 9223372036854775807,
        9223372036854775808, 18446744073709551615, -9223372036854775807, 0.5, 1e300, -0.0,
        "", "F32", "F4", "U8", "BF16", "I64", "../x", "model", null, true, [], {}, [1, 2], [[]],
        {"a": 1}, "mixtral", "llama4", "gpt_oss", "deepseek_v3", "fp8", "compressed-tensors",
        "mxfp4", "gptq", "awq", "modelopt", "re:.*", "re:(", "re:.*experts.*", "*", "channel",
        "group", "tensor", "float", "static", "float-quantized", "pack-quantized"])");
    switch (node.is_structured() ? below(5) : 0) {
      case 1:
        if (!node.empty()) {
          node.erase(element_of(node));
        }
        break;
      case 2:
        if (node.is_object() && !node.empty()) {
          const auto it = element_of(node);
          const json value = *it;
          node[bytes(it.key())] = value;
        }
        break;
      case 3:
        if (node.is_array() && !node.empty()) {
          node.push_back(node[0]);
        }
        break;
      default:
        if (node.is_number_integer() && below(2) == 0) {
          // Why near numbers: they find more errors.  Unsigned numbers may wrap around.
          node = static_cast<int64_t>(node.get<uint64_t>() + below(9) - 4);
        } else {
          node = kValues[below(kValues.size())];
        }
    }
  }

  std::mt19937_64 random_;
};

// Changed keys may not be valid UTF-8, which dump() replaces.
std::string dump(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

struct Files {
  std::string config;
  std::string header;  // of the only file of tensors
  std::string data;
  std::string index;  // empty: there is none
};

// Small models of all families and formats.
class ReaderFuzz : public ::testing::Test {
 protected:
  static constexpr const char* kModels[] = {"qwen2_moe",
                                            "gpt_oss",
                                            "llama4",
                                            "mixtral_int8",
                                            "qwen3_moe_nvfp4",
                                            "deepseek_v2_int4_asym",
                                            "deepseek_v3_fp8",
                                            "gpt_oss_mxfp4",
                                            "olmoe_int4",
                                            "glm4_moe_fp8_channel",
                                            "mixtral_gptq_asym",
                                            "qwen3_moe_gptq8",
                                            "deepseek_v3_gptq_order",
                                            "mixtral_awq",
                                            "qwen3_moe_int8_asym_group",
                                            "mixtral_fp8_block",
                                            "qwen3_moe_fp8_static",
                                            "mixtral_nvfp4_packed",
                                            "qwen3_moe_mxfp4_packed",
                                            "deepseek_v3_mxfp8",
                                            "nemotron_h_nvfp4",
                                            "granitemoeshared",
                                            "gemma4"};

  void SetUp() override {
    for (const char* name : kModels) {
      const TempDir dir;
      json config = small_config(name);
      config["hidden_size"] = 32;
      write_small_model(config, dir);
      const std::string file = read_text(dir / "model.safetensors");
      uint64_t length = 0;
      std::memcpy(&length, file.data(), sizeof(length));
      models_.push_back(
          {read_text(dir / "config.json"), file.substr(8, length), file.substr(8 + length), ""});
    }
  }

  // Reads `count` models after mutate() has changed and written each, and calls accepted() for
  // those that were read.  Returns how many were refused.
  template <typename Mutate, typename Accepted = void (*)(const Files&)>
  int refused_of(
      uint64_t count, const Mutate& mutate, const Accepted& accepted = [](const Files&) {}) {
    int refused = 0;
    for (uint64_t seed = 0; seed < count; ++seed) {
      SCOPED_TRACE(seed);
      Mutator mutator(seed);
      Files files = models_[seed % models_.size()];
      mutate(seed, mutator, files);
      if (read()) {
        ++refused;
      } else {
        accepted(files);
      }
    }
    return refused;
  }

  // Opens the folder and reads all of it.  Returns whether anything was refused.
  bool read() {
    survey();
    try {
      const Checkpoint checkpoint(dir_.path());
      for (const std::string& name : checkpoint.tensors().names()) {
        const Tensor tensor = checkpoint.tensors().tensor(name);
        sum_ += tensor.nbytes() > 0 ? static_cast<int>(tensor.bytes()[tensor.nbytes() - 1]) : 0;
      }
      const std::vector<int64_t>& layers = checkpoint.info().moe_layers;
      for (size_t i = 0; i < std::min<size_t>(layers.size(), 2); ++i) {
        const MoeLayerWeights weights = checkpoint.load_layer(layers[i]);
        sum_ += static_cast<int>(weights.experts.w1.bytes()[0]);
      }
      return false;
    } catch (const InvalidArgument& error) {
      check_message(error.what());
    } catch (const Unsupported& error) {
      check_message(error.what());
    }
    return true;
  }

  // Looks at the folder as `moebius info` does, which finds something in files that cannot run.
  void survey() {
    try {
      const Safetensors files(dir_.path());
      const std::vector<std::string> names = files.names();
      const auto blocks = checkpoint::find_expert_blocks(names);
      for (size_t i = 0; i < std::min<size_t>(blocks.size(), 2); ++i) {
        const auto block = checkpoint::survey_block(files, names, blocks[i].prefix);
        ASSERT_GE(block.bytes, 0);
        ASSERT_LE(block.unlike.size(), 4u);
      }
    } catch (const InvalidArgument& error) {
      check_message(error.what());
    }
  }

  // Expects every tensor to have the bytes of the data that the header gives it.
  void expect_bytes_of(const Files& files) const {
    const Checkpoint checkpoint(dir_.path());
    const json header = json::parse(files.header);
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") {
        const auto [begin, end] = entry["data_offsets"].get<std::pair<size_t, size_t>>();
        const Tensor bytes = checkpoint.tensors().bytes(name);
        const Tensor tensor = checkpoint.tensors().tensor(name);
        ASSERT_EQ(static_cast<size_t>(bytes.nbytes()), end - begin) << name;
        ASSERT_EQ(tensor.nbytes(), bytes.nbytes()) << name;
        EXPECT_EQ(std::memcmp(bytes.raw(), files.data.data() + begin, end - begin), 0) << name;
        EXPECT_EQ(std::memcmp(tensor.raw(), files.data.data() + begin, end - begin), 0) << name;
      }
    }
  }

  static void check_message(const std::string& message) {
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 2000u) << message;
  }

  void write(const Files& files) {
    write_text(dir_ / "config.json", files.config);
    const std::string model = raw_safetensors(files.header, files.data);
    if (files.index.empty()) {
      write_text(dir_ / "model.safetensors", model);
    } else {
      fs::remove(dir_ / "model.safetensors");
      write_text(dir_ / "part.safetensors", model);
      write_text(dir_ / "model.safetensors.index.json", files.index);
    }
  }

  TempDir dir_;
  std::vector<Files> models_;
  int sum_ = 0;  // keeps the compiler from dropping reads
};

TEST_F(ReaderFuzz, HeaderBytes) {
  const int refused = refused_of(1200, [&](uint64_t, Mutator& mutator, Files& files) {
    files.header = mutator.bytes(files.header);
    write(files);
  });
  EXPECT_GT(refused, 600);
}

TEST_F(ReaderFuzz, HeaderStructure) {
  const int refused = refused_of(1200, [&](uint64_t, Mutator& mutator, Files& files) {
    files.header = dump(mutator.structure(json::parse(files.header)));
    write(files);
  });
  EXPECT_GT(refused, 600);
}

TEST_F(ReaderFuzz, LengthsAndTruncation) {
  const int refused = refused_of(600, [&](uint64_t seed, Mutator& mutator, Files& files) {
    write(files);
    std::string model = raw_safetensors(files.header, files.data);
    if (seed % 2 == 0) {
      const size_t byte = mutator.below(8);
      model[byte] = static_cast<char>(mutator.below(256));
    } else if (seed % 4 == 1) {
      model.resize(mutator.below(model.size()));
    } else {
      model.append(1 + mutator.below(100), '\0');
    }
    write_text(dir_ / "model.safetensors", model);
  });
  EXPECT_GT(refused, 550);
}

TEST_F(ReaderFuzz, Config) {
  const int refused = refused_of(2000, [&](uint64_t seed, Mutator& mutator, Files& files) {
    files.config = seed % 3 == 0 ? mutator.bytes(files.config)
                                 : dump(mutator.structure(json::parse(files.config)));
    write(files);
  });
  EXPECT_GT(refused, 1000);
}

TEST_F(ReaderFuzz, Index) {
  const int refused = refused_of(800, [&](uint64_t seed, Mutator& mutator, Files& files) {
    json map = json::object();
    const json header = json::parse(files.header);
    for (const auto& item : header.items()) {
      if (item.key() != "__metadata__") {
        map[item.key()] = "part.safetensors";
      }
    }
    const json index = {{"metadata", {{"total_size", files.data.size()}}}, {"weight_map", map}};
    files.index = seed % 2 == 0 ? mutator.bytes(dump(index)) : dump(mutator.structure(index));
    write(files);
  });
  EXPECT_GT(refused, 300);
}

// Values, scales and shapes are checked: random bytes make NaN or infinity in about half of the
// files.
TEST_F(ReaderFuzz, Data) {
  const int refused = refused_of(
      400,
      [&](uint64_t, Mutator& mutator, Files& files) {
        for (int i = 0; i < 200; ++i) {
          files.data[mutator.below(files.data.size())] = static_cast<char>(mutator.below(256));
        }
        write(files);
      },
      [&](const Files& files) { expect_bytes_of(files); });
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 300);
}

}  // namespace
}  // namespace moebius::testing
