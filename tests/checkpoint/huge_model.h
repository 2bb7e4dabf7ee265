// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of hundreds of GB in a file of holes.  One layer has values, and is all that takes
// space on the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace moebius::testing {

struct HugeModel {
  static constexpr int64_t kLayers = 12000;
  static constexpr int64_t kRealLayer = 7777;
  static constexpr int64_t kExperts = 8;
  static constexpr int64_t kHidden = 1024;
  static constexpr int64_t kIntermediate = 512;
  static constexpr int64_t kLayerBytes =
      2 * kExperts * (kHidden + 3 * kHidden * kIntermediate);  // router, gate, up and down in bf16
  static constexpr int64_t kDataBytes = kLayers * kLayerBytes;

  // The value of element i of a tensor of the real layer, as bits of bf16: from 2^-7 to 2^-6.
  static uint16_t value(int64_t i) { return static_cast<uint16_t>(0x3c00 + i % 127); }

  // Writes config.json and model.safetensors.  Returns why the file system does not allow it.
  static std::optional<std::string> write(const std::filesystem::path& folder);
};

inline std::optional<std::string> HugeModel::write(const std::filesystem::path& folder) {
  std::ofstream(folder / "config.json")
      << R"({"model_type":"qwen3_moe","dtype":"bfloat16","norm_topk_prob":true,"hidden_size":)"
      << kHidden << R"(,"moe_intermediate_size":)" << kIntermediate << R"(,"num_experts":)"
      << kExperts << R"(,"num_experts_per_tok":2,"num_hidden_layers":)" << kLayers << "}";
  std::string header = "{";
  int64_t at = 0;
  const auto add = [&](int64_t layer, const std::string& name, const std::string& shape,
                       int64_t elements) {
    header += (at == 0 ? "" : ",");
    header += "\"model.layers." + std::to_string(layer) + ".mlp." + name +
              R"(":{"dtype":"BF16","shape":)" + shape + R"(,"data_offsets":[)" +
              std::to_string(at) + "," + std::to_string(at + 2 * elements) + "]}";
    at += 2 * elements;
  };
  const std::string e = std::to_string(kExperts);
  const std::string h = std::to_string(kHidden);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    add(layer, "gate.weight", "[" + e + "," + h + "]", kExperts * kHidden);
    add(layer, "experts.gate_up_proj",
        "[" + e + "," + std::to_string(2 * kIntermediate) + "," + h + "]",
        kExperts * 2 * kIntermediate * kHidden);
    add(layer, "experts.down_proj", "[" + e + "," + h + "," + std::to_string(kIntermediate) + "]",
        kExperts * kHidden * kIntermediate);
  }
  header += "}";
  const std::filesystem::path file = folder / "model.safetensors";
  const uint64_t length = header.size();
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(&length), sizeof(length))
      .write(header.data(), static_cast<std::streamsize>(header.size()));
  const auto data = static_cast<int64_t>(sizeof(length) + header.size());
  if (::truncate(file.c_str(), data + kDataBytes) != 0) {
    return "no file of " + std::to_string(kDataBytes) + " bytes with holes here";
  }
  std::vector<uint16_t> values(static_cast<size_t>(kLayerBytes / 2));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = value(static_cast<int64_t>(i));
  }
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  const ssize_t written =
      fd < 0 ? -1 : ::pwrite(fd, values.data(), kLayerBytes, data + kRealLayer * kLayerBytes);
  if (fd >= 0) {
    ::close(fd);
  }
  return written == kLayerBytes ? std::nullopt : std::optional<std::string>("no room on the disk");
}

}  // namespace moebius::testing
