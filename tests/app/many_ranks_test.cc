// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// With many more ranks than cores, 64 threads or 16 processes still give the layer's output in
// time.
#include <gtest/gtest.h>

#include <chrono>

#include "checkpoint/make_model.h"
#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

constexpr std::chrono::seconds kLimit{60};

// A model with more experts than ranks, whose number is no multiple of that of the ranks.
const std::string& model() {
  static const ScratchFolder scratch;
  static const std::string path = [] {
    const std::string folder = scratch / "model";
    checkpoint::write_model({{"architectures", {"Qwen3MoeForCausalLM"}},
                             {"model_type", "qwen3_moe"},
                             {"dtype", "bfloat16"},
                             {"hidden_act", "silu"},
                             {"hidden_size", 128},
                             {"moe_intermediate_size", 64},
                             {"num_experts", 70},
                             {"num_experts_per_tok", 4},
                             {"norm_topk_prob", true},
                             {"num_hidden_layers", 1}},
                            "70 experts", 0, folder, int64_t{1} << 30);
    return folder;
  }();
  return path;
}

// Why cpu_portable: with it the bits of a row do not depend on the other rows.
Words run_words(const Words& options, const std::string& output) {
  return "run --tokens 101 --repeat 1 --experts cpu_portable --check --model" +
         Words{model(), "--output", output} + options;
}

void expect_same_output(const std::string& a, const std::string& b) {
  EXPECT_TRUE(equal_bytes(Safetensors(a).tensor("output"), Safetensors(b).tensor("output")));
}

void run_threads(const Words& options, const std::string& output) {
  const auto begin = std::chrono::steady_clock::now();
  const CommandResult result = run_command(run_words(options, output));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLimit);
}

TEST(ManyRanks, SixtyFourThreadsGiveTheOutput) {
  const ScratchFolder scratch;
  const std::string few = scratch / "few";
  const std::string many = scratch / "many";
  // Low latency sums selections in their order, so the number of ranks changes no bit.
  run_threads("--ranks 4 --all2all low_latency", few);
  run_threads("--ranks 64 --all2all low_latency", many);
  expect_same_output(few, many);
  run_threads("--ranks 64 --all2all low_latency --ranks-per-node 8", many);
  expect_same_output(few, many);
  // The other backends sum by rank, so their bits differ and only --check is made.
  run_threads("--ranks 64 --all2all high_throughput", many);
  run_threads("--ranks 64 --all2all high_throughput --ranks-per-node 8", many);
  run_threads("--ranks 64 --all2all allgather_reducescatter", many);
  run_threads("--ranks 64 --all2all allgather_reducescatter --monolithic", many);
}

#ifdef MOEBIUS_HAVE_MPI
TEST(ManyRanks, SixteenProcessesGiveTheBitsOfThreads) {
  const ScratchFolder scratch;
  const std::string threads = scratch / "threads";
  const std::string processes = scratch / "processes";
  for (const char* spread :
       {"--all2all low_latency", "--all2all high_throughput",
        "--all2all high_throughput --ranks-per-node 4", "--all2all allgather_reducescatter"}) {
    const Words options = Words("--ranks 16") + spread;
    run_threads(options, threads);
    run_processes(16, run_words(options + "--group mpi", processes), "--oversubscribe");
    expect_same_output(threads, processes);
  }
}
#endif

}  // namespace
}  // namespace moebius::test
