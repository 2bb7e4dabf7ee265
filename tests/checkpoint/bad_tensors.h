// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A fixture for checkpoints with damaged tensors.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {

// A checkpoint whose tensors can be removed or replaced.
class BadTensors : public ::testing::Test {
 protected:
  void make(std::string_view model) { make_from(small_config(model)); }
  void make_from(const nlohmann::json& config) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::remove(dir_ / name);  // a model is not written over another
    }
    write_small_model(config, dir_);
    const Safetensors file(dir_ / "model.safetensors");
    tensors_.clear();
    for (const std::string& name : file.names()) {
      tensors_.emplace_back(name, file.tensor(name).clone());
    }
  }
  Tensor& at(const std::string& name) {
    for (auto& [key, tensor] : tensors_) {
      if (key == name) {
        return tensor;
      }
    }
    throw std::out_of_range(name);
  }
  void remove(const std::string& name) {
    at(name);
    std::erase_if(tensors_, [&](const auto& item) { return item.first == name; });
  }
  // Writes tensors_ and returns the message of loading layer 1.
  template <typename E = InvalidArgument>
  std::string refusal(const LoadOptions& options = {}) {
    write_safetensors(dir_ / "model.safetensors", tensors_);
    return message_of<E>([&] { Checkpoint(dir_.path()).load_layer(1, options); });
  }

  const std::string block_ = "model.layers.1.mlp.";
  TempDir dir_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

}  // namespace moebius::testing
