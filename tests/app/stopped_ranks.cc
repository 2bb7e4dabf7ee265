// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forked processes that call a layer, for random_stops_test.py, as `moebius run` does under MPI:
//   stopped_ranks MODEL BACKEND CALLS FOLDER
// Rank r writes its process id to FOLDER/pid.r.  A job that ends well writes FOLDER/output.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"

namespace {

constexpr int kRanks = 3;
constexpr int64_t kTokens = 16;

void run_rank(moebius::Group& group,
              const std::string& model,
              moebius::All2AllBackend backend,
              int calls,
              const std::string& folder) {
  using namespace moebius;
  std::ofstream(folder + "/pid." + std::to_string(group.rank())) << getpid() << std::endl;
  const Checkpoint checkpoint(model);
  const auto parallel = ParallelConfig::make(1, 0, kRanks, group.rank(), true, backend);
  LoadOptions load;
  load.ep_size = parallel.ep_size;
  load.ep_rank = parallel.ep_rank;
  MoeLayerWeights weights = checkpoint.load_layer(checkpoint.info().moe_layers.front(), load);
  weights.config.parallel = parallel;
  MoeLayer layer(std::move(weights), MoeLayerOptions(), Stream::cpu(1), &group);
  const Tensor hidden = Tensor::zeros({kTokens, checkpoint.info().hidden}, DType::kBF16);
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  WorkspacePool workspaces;
  CallContext context;
  context.workspaces = &workspaces;
  for (int i = 0; i < calls; ++i) {
    layer.forward(hidden, output, context);
  }
  group.leave();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: stopped_ranks MODEL BACKEND CALLS FOLDER\n");
    return 2;
  }
  const auto backend = moebius::all2all_backend_from_name(argv[2]);
  const std::string folder = argv[4];
  try {
    moebius::run_process_ranks({.num_ranks = kRanks}, [&](moebius::Group& group) {
      run_rank(group, argv[1], *backend, std::atoi(argv[3]), folder);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moebius: %s\n", error.what());
    return 3;
  }
  std::ofstream(folder + "/output") << "done\n";
  return 0;
}
