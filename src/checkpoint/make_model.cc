// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes synthetic checkpoints.  Names and layouts come from the tables by which the loader reads.
// Values are such that a layer keeps the variance of its input: w1 and the router have the variance
// 1/H, and w2 has 1/I.
#include "checkpoint/make_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/json_text.h"
#include "checkpoint/layer_names.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_files.h"
#include "checkpoint/presets.h"
#include "checkpoint/random_fill.h"
#include "checkpoint/safetensors_writer.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr float kBiasSigma = 0.1f;
constexpr float kCorrectionSigma = 0.05f;

// The number of standard deviations that the largest code of a format stands for, which is about
// the largest value among the elements that share a scale.
constexpr float kBlockRange = 4.5f;
constexpr float kGroupRange = 2.7f;

// One tensor to write.
struct Planned {
  StoredTensor spec;
  std::shared_ptr<const ValueTable> table;  // random values; null: those of `given`
  std::vector<std::byte> given;
};

template <typename T>
std::vector<std::byte> to_bytes(const std::vector<T>& values) {
  std::vector<std::byte> result(values.size() * sizeof(T));
  std::memcpy(result.data(), values.data(), result.size());
  return result;
}

// Scales vary by a factor of two around their base, as real ones do.
float varied(float base, float u) {
  return base * std::exp2(u - 0.5f);
}

// The codes of a weight whose elements have the standard deviation 1.
ValueTable code_table(const WeightScheme& scheme, const StoredPart& part) {
  const auto rounded = [](float x, float low, float high) {
    return std::clamp(std::round(x), low, high);
  };
  switch (*scheme.format) {
    case QuantFormat::kInt4:
      return ValueTable::normal_nibbles([=](float x) {
        return static_cast<uint8_t>(rounded(8.0f + x * 7.0f / kGroupRange, 0.0f, 15.0f));
      });
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return ValueTable::normal_nibbles(
          [](float x) { return e2m1_from_float(x * kE2M1Max / kGroupRange); });
    case QuantFormat::kInt8:
      if (part.unpack == Unpack::kFlipSigns) {
        return ValueTable::normal(DType::kU8, [=](float x) {
          return rounded(128.0f + x * 127.0f / kBlockRange, 0.0f, 255.0f);
        });
      }
      return ValueTable::normal(part.dtype, [](float x) { return x * 127.0f / kBlockRange; });
    default:
      return ValueTable::normal(part.dtype, [](float x) { return x * kE4M3Max / kBlockRange; });
  }
}

// The largest value that a code stands for, over that of a weight with the standard deviation 1.
float scale_of_codes(QuantFormat format) {
  return format == QuantFormat::kInt4    ? kGroupRange / 7.0f
         : format == QuantFormat::kInt8  ? kBlockRange / 127.0f
         : format == QuantFormat::kMxfp4 ? kGroupRange / kE2M1Max
                                         : kBlockRange / kE4M3Max;
}

// Zero points around the middle; those of a symmetric scheme are the middle.
ValueTable zero_point_table(const WeightScheme& scheme, const StoredPart& part) {
  const float spread = scheme.has_zero_points ? 0.5f : 0.0f;
  const auto value = [=](float middle, float x) {
    return std::round(middle + spread * x) - static_cast<float>(scheme.zero_point_offset);
  };
  if (scheme.format == QuantFormat::kInt4) {
    return ValueTable::normal_nibbles(
        [=](float x) { return static_cast<uint8_t>(value(8.0f, x)); });
  }
  const bool is_signed = part.dtype == DType::kI8;
  return ValueTable::normal(is_signed ? DType::kI8 : DType::kU8,
                            [=](float x) { return value(is_signed ? 0.0f : 128.0f, x); });
}

// The values of one part of a weight whose elements have the standard deviation sigma.
ValueTable part_table(const WeightScheme& scheme, const StoredPart& part, float sigma) {
  if (!scheme.format) {
    return ValueTable::normal(part.dtype, [=](float x) { return x * sigma; });
  }
  if (part.role == PartRole::kZeroPoint) {
    return zero_point_table(scheme, part);
  }
  if (part.role == PartRole::kWeight) {
    return code_table(scheme, part);
  }
  if (is_ocp_mx(*scheme.format)) {
    const float exponent = 127.0f + std::log2(sigma * scale_of_codes(*scheme.format));
    return ValueTable::uniform(part.dtype,
                               [=](float u) { return std::round(exponent + u - 0.5f); });
  }
  const float base = *scheme.format == QuantFormat::kNvfp4
                         ? kE4M3Max / 2  // the global scale holds the remaining factor
                         : sigma * scale_of_codes(*scheme.format);
  return ValueTable::uniform(part.dtype, [=](float u) { return varied(base, u); });
}

// Lists all tensors of a checkpoint.
class Plan {
 public:
  explicit Plan(const ModelConfig& config) : config_(config), scheme_(config.quantization.main()) {
    const ModelInfo& info = config.info;
    w1_sigma_ = 1.0f / std::sqrt(static_cast<float>(info.hidden));
    for (const int64_t layer : info.moe_layers) {
      add_layer(published_names(*config.family, layer));
    }
  }

  std::vector<Planned>& tensors() { return tensors_; }

 private:
  // The parts and values that modules with equally many columns share.
  struct Filling {
    std::vector<StoredPart> parts;
    std::vector<std::shared_ptr<const ValueTable>> tables;
    float sigma;
  };

  const Filling& filling(int64_t cols) {
    const auto [it, is_new] = fillings_.try_emplace(cols);
    Filling& result = it->second;
    if (!is_new) {
      return result;
    }
    result.sigma = 1.0f / std::sqrt(static_cast<float>(cols));
    result.parts = stored_parts(scheme_, *config_.info.dtype);
    for (const StoredPart& part : result.parts) {
      result.tables.push_back(part.is_matrix() ? std::make_shared<const ValueTable>(
                                                     part_table(scheme_, part, result.sigma))
                                               : nullptr);
    }
    return result;
  }

  void add_normal(const std::string& name, DType dtype, Shape shape, float sigma) {
    auto table = std::make_shared<const ValueTable>(
        ValueTable::normal(dtype, [=](float x) { return x * sigma; }));
    tensors_.push_back({{name, dtype, shape}, std::move(table), {}});
  }

  // Adds all parts of a module [rows, cols].
  void add_module(const std::string& name, int64_t rows, int64_t cols, const Filling& filling) {
    for (size_t i = 0; i < filling.parts.size(); ++i) {
      const StoredPart& part = filling.parts[i];
      Planned planned{
          {name + std::string(part.suffixes.front()), part.dtype, {}}, filling.tables[i], {}};
      switch (part.role) {
        case PartRole::kWeightShape:
          planned.spec.shape = {2};
          planned.given = to_bytes<int64_t>({rows, cols});
          break;
        case PartRole::kGroupIndex: {
          std::vector<int32_t> groups;
          for (int64_t k = 0; k < cols; ++k) {
            groups.push_back(
                static_cast<int32_t>(scheme_.group.col > 0 ? k / scheme_.group.col : 0));
          }
          planned.spec.shape = {cols};
          planned.given = to_bytes(groups);
          break;
        }
        case PartRole::kGlobalScale:
          planned.given = tensor_scale(filling.sigma * kGroupRange / kE2M1Max / (kE4M3Max / 2));
          break;
        case PartRole::kInputScale:
          // Inputs of up to 6 standard deviations are represented.
          planned.given = tensor_scale(
              6.0f / (scheme_.format == QuantFormat::kNvfp4 ? kE2M1Max * kE4M3Max : kE4M3Max));
          break;
        default: {
          const int64_t down = num_units(rows, part.row_unit);
          const int64_t right = num_units(cols, part.col_unit);
          if (part.row_unit != 0 || part.col_unit != 0) {  // a scale of all is a scalar
            planned.spec.shape = part.is_transposed ? Shape{right, down} : Shape{down, right};
          }
        }
      }
      tensors_.push_back(std::move(planned));
    }
  }

  // A scale of a whole tensor, as the format writes it.
  std::vector<std::byte> tensor_scale(float scale) const {
    return to_bytes<float>({scheme_.stored == WeightFormat::kNvfp4Packed ? 1.0f / scale : scale});
  }

  // The routed experts in tensors of all of them.
  void add_fused(const ExpertNames& names) {
    const ModelInfo& info = config_.info;
    const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
      const Filling& fill = filling(cols);
      if (!scheme_.format) {
        const Shape shape = config_.family->is_transposed ? Shape{info.num_experts, cols, rows}
                                                          : Shape{info.num_experts, rows, cols};
        const std::string full = name + (names.has_fused_modules ? ".weight" : "");
        tensors_.push_back({{full, *config_.info.dtype, shape}, fill.tables[0], {}});
      } else {
        tensors_.push_back({{name + "_blocks", DType::kU8, {info.num_experts, rows, cols / 32, 16}},
                            fill.tables[0],
                            {}});
        tensors_.push_back({{name + "_scales", DType::kU8, {info.num_experts, rows, cols / 32}},
                            fill.tables[1],
                            {}});
      }
      if (config_.has_expert_bias) {
        add_normal(name + "_bias", *config_.info.dtype, {info.num_experts, rows}, kBiasSigma);
      }
    };
    add(names.fused_up, num_up_rows(info.intermediate), info.hidden);
    add(names.fused_down, info.hidden, info.intermediate);
  }

  // The rows of gate and up together.
  int64_t num_up_rows(int64_t intermediate) const {
    return config_.activation.gated ? 2 * intermediate : intermediate;
  }

  // One expert of an intermediate size; `start` stands before the names of its modules.
  void add_expert(const std::string& start, const ExpertModules& modules, int64_t intermediate) {
    const int64_t hidden = config_.info.hidden;
    const Filling& w1 = filling(hidden);
    if (config_.activation.gated) {
      add_module(start + std::string(modules.gate), intermediate, hidden, w1);
    }
    add_module(start + std::string(modules.up), intermediate, hidden, w1);
    add_module(start + std::string(modules.down), hidden, intermediate, filling(intermediate));
  }

  void add_router(const LayerNames& names) {
    const ModelInfo& info = config_.info;
    const DType dtype = *info.dtype;
    add_normal(names.router, dtype, {info.num_experts, info.hidden}, w1_sigma_);
    if (config_.has_router_bias) {
      add_normal(names.router_bias, dtype, {info.num_experts}, kBiasSigma);
    }
    if (config_.has_correction_bias) {
      add_normal(names.correction_bias, DType::kF32, {info.num_experts}, kCorrectionSigma);
    }
    if (config_.has_normed_router) {
      add_normal(names.block + ".router.scale", dtype, {info.hidden}, 1.0f);
      add_normal(names.block + ".router.per_expert_scale", dtype, {info.num_experts}, 1.0f);
      add_normal(names.block + ".pre_feedforward_layernorm_2.weight", dtype, {info.hidden}, 1.0f);
    }
  }

  void add_layer(const LayerNames& names) {
    const ModelInfo& info = config_.info;
    add_router(names);
    // Families with fused experts are published fused in bf16 and mxfp4, and with a module per
    // expert in other formats.
    if (scheme_.stored == WeightFormat::kMxfp4Fused ||
        (config_.family->is_fused && !scheme_.format)) {
      add_fused(names.experts);
    } else {
      for (int64_t e = 0; e < info.num_experts; ++e) {
        add_expert(fmt::format("{}.{}.", names.experts.path, e), names.experts.modules,
                   info.intermediate);
      }
    }
    if (info.num_shared_experts > 0 && !names.shared.fused_up.empty()) {
      add_module(names.shared.fused_up, num_up_rows(info.shared_intermediate), info.hidden,
                 filling(info.hidden));
      add_module(names.shared.fused_down, info.hidden, info.shared_intermediate,
                 filling(info.shared_intermediate));
    } else if (info.num_shared_experts > 0) {
      add_expert(names.shared.path + ".", names.shared.modules, info.shared_intermediate);
    }
    if (config_.has_shared_gate) {
      add_normal(names.shared_gate, *info.dtype, {1, info.hidden}, w1_sigma_);
    }
  }

  const ModelConfig& config_;
  const WeightScheme& scheme_;
  float w1_sigma_ = 0;
  std::map<int64_t, Filling> fillings_;  // by the columns of the weight, which decide sigma
  std::vector<Planned> tensors_;
};

// Consecutive tensors share a file.
std::vector<std::vector<Planned>> split_into_files(std::vector<Planned>& tensors,
                                                   int64_t max_file_bytes) {
  std::vector<std::vector<Planned>> files(1);
  int64_t size = 0;
  for (Planned& tensor : tensors) {
    if (!files.back().empty() && size + tensor.spec.nbytes() > max_file_bytes) {
      files.emplace_back();
      size = 0;
    }
    size += tensor.spec.nbytes();
    files.back().push_back(std::move(tensor));
  }
  return files;
}

std::unique_ptr<SafetensorsWriter> write_file(const fs::path& path,
                                              const std::vector<Planned>& tensors,
                                              uint64_t seed,
                                              const Stream& stream) {
  std::map<std::string_view, const Planned*> by_name;
  std::vector<StoredTensor> specs;
  for (const Planned& tensor : tensors) {
    specs.push_back(tensor.spec);
    by_name.emplace(tensor.spec.name, &tensor);
  }
  auto writer = std::make_unique<SafetensorsWriter>(
      path, std::move(specs), std::map<std::string, std::string>{{"format", "pt"}});
  constexpr int64_t kChunkBytes = 64 << 20;
  std::vector<std::byte> buffer;
  for (const StoredTensor& spec : writer->specs()) {
    const Planned& tensor = *by_name.at(spec.name);
    if (tensor.table == nullptr) {
      writer->write(tensor.given);
      continue;
    }
    const int64_t total = spec.nbytes();
    for (int64_t begin = 0; begin < total; begin += kChunkBytes) {
      buffer.resize(static_cast<size_t>(std::min(kChunkBytes, total - begin)));
      tensor.table->fill(buffer, begin / tensor.table->element_bytes(),
                         tensor_seed(seed, spec.name), stream);
      writer->write(buffer);
    }
  }
  return writer;
}

std::unique_ptr<AtomicFile> write_text(const fs::path& path, const json& content) {
  const std::string text = content.dump(2) + "\n";
  auto file = std::make_unique<AtomicFile>(path, text.size());
  file->write(std::as_bytes(std::span(text)));
  return file;
}

// Makes a folder and those above it where they do not exist.  The destructor removes what was made,
// unless keep() was called.
class CreatedFolder {
 public:
  ~CreatedFolder() {
    std::error_code error;
    for (const fs::path& path : made_) {
      fs::remove(path, error);
    }
  }

  void make(const fs::path& directory) {
    std::error_code error;
    for (fs::path at = directory; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
      made_.push_back(at);
    }
    fs::create_directories(directory, error);
    if (error) {
      throw Error(fmt::format("cannot create {}: {}", directory.string(), error.message()));
    }
  }
  void keep() { made_.clear(); }

 private:
  std::vector<fs::path> made_;  // the innermost first
};

// Refuses to replace another model, which perhaps nobody can make again.
void expect_same_model(const fs::path& directory,
                       std::vector<std::string> weights,
                       const json& content) {
  std::error_code error;
  if (const fs::path config = directory / kConfigFile; fs::exists(config, error)) {
    if (read_json_object(config) != content) {
      throw InvalidArgument(fmt::format(
          "{} is there already and tells of another model, which would be lost", config.string()));
    }
    return;
  }
  weights.emplace_back(kIndexFile);
  for (const std::string& name : weights) {
    if (const fs::path file = directory / name; fs::exists(file, error)) {
      throw InvalidArgument(
          fmt::format("{} is there already without a {} that tells of which model it is",
                      file.string(), kConfigFile));
    }
  }
}

}  // namespace

int64_t write_model(const json& content,
                    const std::string& label,
                    uint64_t seed,
                    const fs::path& directory,
                    int64_t max_file_bytes) {
  const ModelConfig config = parse_model_config(content, label);
  Plan plan(config);
  auto files = split_into_files(plan.tensors(), max_file_bytes);

  const bool is_sharded = files.size() > 1;
  const fs::path single = directory / kSingleFile;
  const fs::path index = directory / kIndexFile;
  // A reader that finds both files could not tell which one counts.
  const fs::path other = is_sharded ? single : index;
  std::error_code error;
  if (fs::exists(other, error)) {
    throw InvalidArgument(fmt::format("{} is there already and would contradict {}", other.string(),
                                      (is_sharded ? index : single).filename().string()));
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < files.size(); ++i) {
    names.push_back(is_sharded
                        ? fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size())
                        : std::string(kSingleFile));
  }
  expect_same_model(directory, names, content);
  CreatedFolder folder;
  folder.make(directory);

  // All files are written under temporary names before the first one is renamed.
  const Stream stream = Stream::cpu();
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  json weight_map = json::object();
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    writers.push_back(write_file(directory / names[i], files[i], seed, stream));
    for (const Planned& tensor : files[i]) {
      weight_map[tensor.spec.name] = names[i];
      total += tensor.spec.nbytes();
    }
  }
  std::vector<std::unique_ptr<AtomicFile>> texts;
  if (is_sharded) {
    texts.push_back(
        write_text(index, {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}));
  }
  texts.push_back(write_text(directory / kConfigFile, content));
  folder.keep();
  int64_t written = 0;
  for (const auto& writer : writers) {
    writer->commit();
    written += writer->nbytes();
  }
  for (const auto& text : texts) {
    text->commit();
    written += text->nbytes();
  }
  return written;
}

}  // namespace moebius::checkpoint

namespace moebius {

int64_t make_model(const std::string& preset,
                   int64_t num_layers,
                   const std::string& quant,
                   uint64_t seed,
                   const std::filesystem::path& directory) {
  constexpr int64_t kMaxFileBytes = 5'000'000'000;
  return checkpoint::write_model(checkpoint::synthetic_config(preset, num_layers, quant), preset,
                                 seed, directory, kMaxFileBytes);
}

}  // namespace moebius
