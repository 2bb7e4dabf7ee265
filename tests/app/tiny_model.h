// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that the command makes, and changes to them.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moebius/safetensors.h"
#include "tests/app/command.h"

namespace moebius::test {

// Runs `make-model options... --output folder` and throws where it fails.  Returns the folder.
inline std::string make_model(const Words& options, const std::string& folder) {
  const CommandResult made = run_command("make-model" + options + "--output" + folder);
  if (made.exit_code != 0) {
    throw std::runtime_error("make-model failed: " + made.err);
  }
  return folder;
}

// The folder of a model of the tiny preset, which is made once per test program.
inline const std::string& tiny_model() {
  static const ScratchFolder scratch;
  static const std::string path = make_model("--preset tiny", scratch / "tiny");
  return path;
}

// `run --model <the tiny model> options...`
inline Words run_tiny(const Words& options = {}) {
  return Words{"run", "--model", tiny_model()} + options;
}

// Writes the weights of a model folder anew.  edit(name, tensor) may change a tensor, and returns
// whether to keep it.
template <typename Edit>
void edit_tensors(const std::string& model, const Edit& edit) {
  const std::string file = model + "/model.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const Safetensors before(file);
    for (const std::string& name : before.names()) {
      Tensor tensor = before.tensor(name).clone();
      if (edit(name, tensor)) {
        tensors.emplace_back(name, tensor);
      }
    }
  }
  write_safetensors(file, tensors);
}

inline bool equal_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0;
}

}  // namespace moebius::test
