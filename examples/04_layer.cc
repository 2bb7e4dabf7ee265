// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layer: runs one MoE layer of a checkpoint.  The argument is a Hugging Face model folder; without
// it a tiny synthetic model is written first.
#include <cstdio>
#include <filesystem>

#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"

int main(int argc, char** argv) {
  using namespace moebius;
  const auto tiny = std::filesystem::temp_directory_path() / "moebius_example";
  if (argc == 1) {
    make_model("tiny", /*num_layers=*/1, /*quant=*/"none", /*seed=*/0, tiny);
  }
  const Checkpoint checkpoint(argc > 1 ? argv[1] : tiny);
  const int64_t first = checkpoint.info().moe_layers.front();
  MoeLayer layer(checkpoint.load_layer(first), MoeLayerOptions(), Stream());

  const Tensor hidden = Tensor::zeros({4, checkpoint.info().hidden}, DType::kBF16);
  set_float(hidden, 0, 1.0f);  // token 0, column 0
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  WorkspacePool workspaces;
  CallContext context;
  context.workspaces = &workspaces;
  layer.forward(hidden, output, context);
  std::printf("output[0, 0] = %g\n", static_cast<double>(get_float(output, 0)));
  return get_float(output, 0) != 0 ? 0 : 1;
}
