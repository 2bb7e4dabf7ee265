// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius run` over ranks: every backend gives the layer's output, the report tells what was sent,
// and processes give the same bits as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

Words run_words(const Words& options) {
  return run_tiny("--tokens 37 --repeat 1") + options;
}

TEST(Ranks, EveryBackendPassesTheCheck) {
  const char* spreads[] = {
      "--ranks 4",
      "--ranks 3 --all2all high_throughput",
      "--ranks 4 --all2all high_throughput --ranks-per-node 2",
      "--ranks 2 --all2all low_latency",
      "--ranks 2 --all2all allgather_reducescatter --monolithic",
      "--tp 2 --no-ep",
      "--tp 2 --dp 2 --all2all high_throughput",
      "--ranks 1 --all2all high_throughput",
      "--ranks 2 --quant int4_w4a16",
      "--tp 2 --no-ep --quant int8_w8a16",
      "--tp 2 --no-ep --quant fp8_w8a8_channel",
      "--tp 2 --no-ep --quant fp8_w8a8_tensor",
      "--tp 2 --no-ep --quant mxfp8",
      "--tp 2 --no-ep --quant nvfp4",
  };
  for (const char* spread : spreads) {
    const CommandResult result = run_command(run_words("--check") + spread);
    EXPECT_EQ(result.exit_code, 0) << spread << ": " << result.err;
  }
}

TEST(Ranks, ShardsThatCutBlocksOfQuantizedWeightsAreRefused) {
  for (const std::string quant : {"fp8_w8a8", "int4_w4a16"}) {
    expect_refused(run_words("--tp 2 --no-ep --quant") + quant,
                   {"of 128 cuts through blocks of 128"});
  }
}

// However experts lie on ranks, a call touches the same weights.
TEST(Ranks, TouchedWeightsAreThoseOfAllRanks) {
  const auto touched = [](const Words& spread) {
    return run_for_json(run_words(spread)).json["memory"]["touched_bytes"].get<int64_t>();
  };
  const int64_t alone = touched("--ranks 1");
  EXPECT_EQ(touched("--ranks 2"), alone);
  EXPECT_EQ(touched("--tp 2 --no-ep"), alone);
  EXPECT_EQ(touched("--dp 2 --no-ep"), alone);
}

TEST(Ranks, ReportTellsWhatEachRankDid) {
  const JsonResult result =
      run_for_json(run_words("--ranks 4 --all2all high_throughput --ranks-per-node 2"));
  const auto& json = result.json;
  const auto& ranks = json["parallel"]["per_rank"];
  ASSERT_EQ(ranks.size(), 4u);
  const std::vector<int> tokens = {10, 9, 9, 9};  // 37 in all; the first rank takes one more
  int64_t rows = 0;
  int64_t between = 0;
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(ranks[r]["tokens"], tokens[r]);
    EXPECT_EQ(ranks[r]["node"], r / 2);
    rows += ranks[r]["rows"].get<int64_t>();
    between += ranks[r]["inter_node_bytes"].get<int64_t>();
  }
  EXPECT_EQ(rows, json["load"]["rows"]);
  EXPECT_EQ(rows, 37 * 4);  // top-4
  EXPECT_GT(between, 0);
  EXPECT_EQ(between, json["parallel"]["inter_node_bytes"]);
  EXPECT_NE(result.out.find("4 ranks (threads)"), std::string::npos) << result.out;

  // A token has 4 selections, and sends at most one copy to each rank.
  const auto& parallel = json["parallel"];
  EXPECT_EQ(parallel["selections"], 37 * 4);
  EXPECT_GT(parallel["copies"], 37);
  EXPECT_LT(parallel["copies"], 37 * 4);
  EXPECT_GT(parallel["node_copies"], 0);
  EXPECT_LE(parallel["node_copies"], 37);  // each of two nodes has one other
  EXPECT_EQ(parallel["mean_rows"], 37);
  EXPECT_NE(result.out.find("rows to ranks for 148 selections"), std::string::npos) << result.out;
}

TEST(Ranks, TransportsGoByTheNamesOfVllmToo) {
  for (const auto& [theirs, ours] : {std::pair("naive", "allgather_reducescatter"),
                                     std::pair("deepep_high_throughput", "high_throughput"),
                                     std::pair("deepep_low_latency", "low_latency")}) {
    const JsonResult result = run_for_json(run_words("--ranks 2 --all2all") + theirs);
    EXPECT_EQ(result.json["parallel"]["all2all"], ours);
  }
}

// The table tells the rows of local experts by rank, and the JSON those of each expert.
TEST(Ranks, ReportTellsTheLoadOfEachRanksExperts) {
  for (const std::string backend : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
    // Low latency takes fewer tokens at a time, so that the rows of all pieces must be counted.
    const auto json =
        run_for_json(run_tiny("--tokens 700 --repeat 2 --ranks 2 --all2all") + backend).json;
    const auto& parallel = json["parallel"];
    const auto& selections = json["load"]["per_expert"];
    ASSERT_EQ(parallel["expert_rows"].size(), 2u);
    EXPECT_EQ(parallel["ranks_per_node"], 2);
    size_t expert = 0;  // the placement is linear
    for (size_t r = 0; r < 2; ++r) {
      const auto rows = parallel["expert_rows"][r].get<std::vector<int64_t>>();
      const auto& rank = parallel["per_rank"][r];
      ASSERT_EQ(rows.size(), 8u);
      for (const int64_t count : rows) {
        EXPECT_EQ(count, selections[expert++]) << backend << " expert " << expert - 1;
      }
      EXPECT_EQ(rank["num_experts"], 8);
      EXPECT_EQ(rank["max_expert_rows"], *std::max_element(rows.begin(), rows.end()));
      EXPECT_EQ(rank["mean_expert_rows"].get<double>() * 8, rank["rows"].get<double>());
    }
  }
}

// The link is slowed down, so that ranks have to wait.
TEST(Ranks, MicrobatchesGiveTheSameOutput) {
  const ScratchFolder scratch;
  const auto run = [&](const std::string& backend, const std::string& microbatches) {
    const std::string file = scratch / (backend + microbatches);
    const auto json =
        run_for_json(run_tiny("--tokens 256 --repeat 1 --ranks 2 --experts cpu_portable") +
                     Words{"--all2all", backend, "--microbatches", microbatches, "--output", file})
            .json;
    return std::pair(Safetensors(file).tensor("output"), json["parallel"]);
  };
  setenv("MOEBIUS_LINK_MB_PER_S", "1", 1);
  for (const std::string backend : {"high_throughput", "low_latency"}) {
    SCOPED_TRACE(backend);
    const auto [alone, parallel_alone] = run(backend, "1");
    for (const std::string microbatches : {"2", "3", "4"}) {
      SCOPED_TRACE(microbatches);
      const auto [output, parallel] = run(backend, microbatches);
      EXPECT_TRUE(equal_bytes(output, alone));
      EXPECT_EQ(parallel["microbatches"].get<int>(), std::stoi(microbatches));
      EXPECT_EQ(parallel["copies"], parallel_alone["copies"]);
      EXPECT_EQ(parallel["expert_rows"], parallel_alone["expert_rows"]);
      EXPECT_GT(parallel["waited_us"].get<double>(), 0);
    }
    EXPECT_EQ(parallel_alone["microbatches"], 1);
    // At least a quarter of 128 tokens crosses the link, with 512 bytes each way.
    EXPECT_GT(parallel_alone["waited_us"].get<double>(), 10'000);
  }
  unsetenv("MOEBIUS_LINK_MB_PER_S");
}

// Low latency takes 256 tokens at a time, so the last piece is too small for two micro-batches.
TEST(Ranks, MicrobatchesAreThoseOfTheLargestPiece) {
  const auto json = run_for_json(run_tiny("--tokens 600 --repeat 1 --ranks 2 --all2all low_latency "
                                          "--microbatches 2"))
                        .json;
  EXPECT_EQ(json["parallel"]["microbatches"], 2);
}

TEST(Ranks, CopiesDependOnTheBackend) {
  const auto parallel = [](const std::string& backend) {
    return run_for_json(run_words("--ranks 4 --ranks-per-node 2 --all2all") + backend)
        .json["parallel"];
  };
  const auto gathered = parallel("allgather_reducescatter");
  EXPECT_EQ(gathered["copies"], 37 * 4);  // every token goes to every rank
  EXPECT_EQ(gathered["node_copies"], 37 * 2);
  EXPECT_EQ(gathered["ranks_per_node"], 2);
  const auto sent = parallel("high_throughput");
  const auto low_latency = parallel("low_latency");
  EXPECT_EQ(low_latency["copies"], sent["copies"]);
  EXPECT_GE(low_latency["node_copies"],
            sent["node_copies"]);  // high throughput sends to a node once and fans out there
}

void expect_roofline(const nlohmann::json& run) {
  const auto& roofline = run["roofline"];
  ASSERT_FALSE(roofline.contains("missing")) << roofline;
  const double peak = roofline["peak_gflops"];
  EXPECT_GT(peak, 0);
  EXPECT_NE(roofline["peak"], "");
  EXPECT_GT(roofline["read_gb_per_s"], 0);
  EXPECT_EQ(roofline["flops"], run["throughput"]["flops"]);
  EXPECT_NEAR(roofline["compute_us"].get<double>() * peak * 1e3, roofline["flops"].get<double>(),
              1.0);
  EXPECT_GE(roofline["stages"].size(), 2u);
}

TEST(Ranks, AllMeasureTheMachineAtOnce) {
  if (!build_has_page()) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  const ScratchFolder scratch;
  for (const char* spread :
       {"", "--ranks 2", "--ranks 4 --ranks-per-node 2 --all2all high_throughput --threads 4"}) {
    expect_roofline(run_for_json(run_words(spread) + "--report" + scratch / "page.html").json);
  }
}

#ifdef MOEBIUS_HAVE_MPI
TEST(Ranks, ProcessesMeasureTheMachineTogether) {
  if (!build_has_page()) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  const ScratchFolder scratch;
  run_processes(2, run_words("--group mpi") + "--report" + scratch / "page.html" + "--json" +
                       scratch / "run.json");
  expect_roofline(read_json(scratch / "run.json"));
}

TEST(Ranks, ProcessesGiveTheBitsOfThreads) {
  const ScratchFolder scratch;
  const std::string threads = scratch / "threads.safetensors";
  const std::string processes = scratch / "processes.safetensors";
  const Words words = run_words("--all2all high_throughput --output");
  ASSERT_EQ(run_command(words + threads + "--ranks 2").exit_code, 0);
  run_processes(2, words + processes + "--group mpi");
  EXPECT_TRUE(
      equal_bytes(Safetensors(threads).tensor("output"), Safetensors(processes).tensor("output")));
}
#endif

}  // namespace
}  // namespace moebius::test
