// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius run` over ranks: every backend gives the layer's output, the report tells what moved,
// and processes give the bits that threads give.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::read_json;
using test::run_command;
using test::ScratchFolder;
using test::tiny_model;

using Words = std::vector<std::string>;

Words run_words(const Words& options) {
  Words words = {"run", "--model", tiny_model(), "--tokens", "37", "--repeat", "1"};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

TEST(Ranks, EveryBackendPassesTheCheck) {
  const std::vector<Words> spreads = {
      {"--ranks", "4"},
      {"--ranks", "3", "--all2all", "high_throughput"},
      {"--ranks", "4", "--all2all", "high_throughput", "--ranks-per-node", "2"},
      {"--ranks", "2", "--all2all", "low_latency"},
      {"--ranks", "2", "--all2all", "allgather_reducescatter", "--monolithic"},
      {"--tp", "2", "--no-ep"},
      {"--tp", "2", "--dp", "2", "--all2all", "high_throughput"},
      {"--ranks", "1", "--all2all", "high_throughput"},
      {"--ranks", "2", "--quant", "int4_w4a16"},
      {"--tp", "2", "--no-ep", "--quant", "int8_w8a16"},
      {"--tp", "2", "--no-ep", "--quant", "fp8_w8a8_channel"},
      {"--tp", "2", "--no-ep", "--quant", "fp8_w8a8_tensor"},
      {"--tp", "2", "--no-ep", "--quant", "mxfp8"},
      {"--tp", "2", "--no-ep", "--quant", "nvfp4"},
  };
  for (const Words& spread : spreads) {
    Words words = run_words(spread);
    words.push_back("--check");
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.exit_code, 0) << spread[1] << " " << spread.back() << ": " << result.err;
  }
}

TEST(Ranks, ShardsThatCutBlocksOfQuantizedWeightsAreRefused) {
  for (const std::string quant : {"fp8_w8a8", "int4_w4a16"}) {
    const CommandResult result = run_command(run_words({"--tp", "2", "--no-ep", "--quant", quant}));
    EXPECT_EQ(result.exit_code, 2) << quant;
    EXPECT_NE(result.err.find("of 128 cuts through blocks of 128"), std::string::npos)
        << result.err;
  }
}

// However experts lie on ranks, a call touches the same weights.
TEST(Ranks, TouchedWeightsAreThoseOfAllRanks) {
  const ScratchFolder scratch;
  const auto touched = [&](const Words& spread) {
    Words words = run_words(spread);
    words.insert(words.end(), {"--json", scratch / "run.json"});
    EXPECT_EQ(run_command(words).exit_code, 0);
    return read_json(scratch / "run.json")["memory"]["touched_bytes"].get<int64_t>();
  };
  const int64_t alone = touched({"--ranks", "1"});
  EXPECT_EQ(touched({"--ranks", "2"}), alone);
  EXPECT_EQ(touched({"--tp", "2", "--no-ep"}), alone);
  EXPECT_EQ(touched({"--dp", "2", "--no-ep"}), alone);
}

TEST(Ranks, ReportTellsWhatEachRankDid) {
  const ScratchFolder scratch;
  const std::string file = scratch / "run.json";
  const CommandResult result = run_command(run_words(
      {"--ranks", "4", "--all2all", "high_throughput", "--ranks-per-node", "2", "--json", file}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = read_json(file);
  const auto& ranks = json["parallel"]["per_rank"];
  ASSERT_EQ(ranks.size(), 4u);
  const std::vector<int> tokens = {10, 9, 9, 9};  // 37 in order, the first ranks take one more
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

  // A token has 4 selections, and at most a row per rank.
  const auto& parallel = json["parallel"];
  EXPECT_EQ(parallel["selections"], 37 * 4);
  EXPECT_GT(parallel["copies"], 37);
  EXPECT_LT(parallel["copies"], 37 * 4);
  EXPECT_GT(parallel["node_copies"], 0);
  EXPECT_LE(parallel["node_copies"], 37);  // of two nodes one is another
  EXPECT_EQ(parallel["mean_rows"], 37);
  EXPECT_NE(result.out.find("rows to ranks for 148 selections"), std::string::npos) << result.out;
}

// Rows of the local experts, in the table by rank and in full in the JSON.
TEST(Ranks, ReportTellsTheLoadOfEachRanksExperts) {
  const ScratchFolder scratch;
  for (const std::string backend : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
    const std::string file = scratch / (backend + ".json");
    // More tokens than low latency takes at a time, so that all pieces must count.
    const CommandResult result =
        run_command({"run", "--model", tiny_model(), "--tokens", "700", "--repeat", "2", "--ranks",
                     "2", "--all2all", backend, "--json", file});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto json = read_json(file);
    const auto& parallel = json["parallel"];
    const auto& selections = json["load"]["per_expert"];
    ASSERT_EQ(parallel["expert_rows"].size(), 2u);
    EXPECT_EQ(parallel["ranks_per_node"], 2);
    size_t expert = 0;  // linear placement
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

// Over a link slowed down, so that there is something to wait for.
TEST(Ranks, MicrobatchesGiveTheSameOutput) {
  const ScratchFolder scratch;
  const auto run = [&](const std::string& backend, const std::string& microbatches) {
    const std::string file = scratch / (backend + microbatches);
    Words words = {"run",       "--model",      tiny_model(),
                   "--tokens",  "256",          "--repeat",
                   "1",         "--ranks",      "2",
                   "--all2all", backend,        "--output",
                   file,        "--json",       file + ".json",
                   "--experts", "cpu_portable", "--microbatches",
                   microbatches};
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(Safetensors(file).tensor("output"), read_json(file + ".json")["parallel"]);
  };
  setenv("MOEBIUS_LINK_MB_PER_S", "1", 1);
  for (const std::string backend : {"high_throughput", "low_latency"}) {
    SCOPED_TRACE(backend);
    const auto [alone, parallel_alone] = run(backend, "1");
    for (const std::string microbatches : {"2", "3", "4"}) {
      SCOPED_TRACE(microbatches);
      const auto [output, parallel] = run(backend, microbatches);
      EXPECT_EQ(std::memcmp(output.raw(), alone.raw(), static_cast<size_t>(alone.nbytes())), 0);
      EXPECT_EQ(parallel["microbatches"].get<int>(), std::stoi(microbatches));
      EXPECT_EQ(parallel["copies"], parallel_alone["copies"]);
      EXPECT_EQ(parallel["expert_rows"], parallel_alone["expert_rows"]);
      EXPECT_GT(parallel["waited_us"].get<double>(), 0);
    }
    EXPECT_EQ(parallel_alone["microbatches"], 1);
    // Of 128 tokens a quarter or more crosses, 512 bytes each, there and back.
    EXPECT_GT(parallel_alone["waited_us"].get<double>(), 10'000);
  }
  unsetenv("MOEBIUS_LINK_MB_PER_S");
}

// Low latency takes 256 tokens at a time; of what is left there are too few for two micro-batches.
TEST(Ranks, MicrobatchesAreThoseOfTheLargestPiece) {
  const ScratchFolder scratch;
  const std::string file = scratch / "run.json";
  const CommandResult result =
      run_command({"run", "--model", tiny_model(), "--tokens", "600", "--repeat", "1", "--ranks",
                   "2", "--all2all", "low_latency", "--microbatches", "2", "--json", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_json(file)["parallel"]["microbatches"], 2);
}

TEST(Ranks, CopiesDependOnTheBackend) {
  const ScratchFolder scratch;
  const auto parallel = [&](const std::string& backend) {
    const std::string file = scratch / (backend + ".json");
    const CommandResult result = run_command(
        run_words({"--ranks", "4", "--all2all", backend, "--ranks-per-node", "2", "--json", file}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_json(file)["parallel"];
  };
  const auto gathered = parallel("allgather_reducescatter");
  EXPECT_EQ(gathered["copies"], 37 * 4);  // every token to every rank
  EXPECT_EQ(gathered["node_copies"], 37 * 2);
  EXPECT_EQ(gathered["ranks_per_node"], 2);
  const auto sent = parallel("high_throughput");
  const auto low_latency = parallel("low_latency");
  EXPECT_EQ(low_latency["copies"], sent["copies"]);
  EXPECT_GE(low_latency["node_copies"], sent["node_copies"]);  // that one fans out behind the gate
}

TEST(Ranks, SpreadsThatCannotWorkAreRefused) {
  const auto refused = [](const Words& spread, const std::string& part) {
    const CommandResult result = run_command(run_words(spread));
    EXPECT_EQ(result.exit_code, 2) << spread[0];
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  refused({"--ranks", "4", "--tp", "3"}, "4 ranks are no multiple");
  refused({"--ranks", "2", "--all2all", "none"}, "--all2all none: ranks hold the same tokens");
  refused({"--tp", "2", "--no-ep", "--all2all", "high_throughput"}, "without expert parallelism");
  refused({"--ranks", "17"}, "17 ranks, but");
  refused({"--ranks", "2", "--all2all", "high_throughput", "--monolithic"}, "monolithic");
}

// Words that report a run, or nothing in a build without the page.
Words report_words(const ScratchFolder& scratch, const std::string& json) {
  const CommandResult info = run_command({"info"});
  return info.out.find("report_page    no") != std::string::npos
             ? Words()
             : Words{"--report", scratch / "page.html", "--json", json};
}

void expect_roofline(const std::string& json) {
  const auto run = read_json(json);
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
  const ScratchFolder scratch;
  const std::string json = scratch / "run.json";
  const Words report = report_words(scratch, json);
  if (report.empty()) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  for (const Words& spread : {Words{}, Words{"--ranks", "2"},
                              Words{"--ranks", "4", "--ranks-per-node", "2", "--all2all",
                                    "high_throughput", "--threads", "4"}}) {
    Words words = run_words(spread);
    words.insert(words.end(), report.begin(), report.end());
    const CommandResult result = run_command(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_roofline(json);
  }
}

#ifdef MOEBIUS_HAVE_MPI
TEST(Ranks, ProcessesMeasureTheMachineTogether) {
  const ScratchFolder scratch;
  const std::string json = scratch / "run.json";
  const Words report = report_words(scratch, json);
  if (report.empty()) {
    GTEST_SKIP() << "skipped: built without the page";
  }
  std::string line = std::string(MOEBIUS_TEST_MPIEXEC) + " -np 2 " + MOEBIUS_COMMAND;
  Words words = run_words({"--group", "mpi"});
  words.insert(words.end(), report.begin(), report.end());
  for (const std::string& word : words) {
    line += " " + word;
  }
  ASSERT_EQ(std::system((line + " > /dev/null").c_str()), 0) << line;
  expect_roofline(json);
}

TEST(Ranks, ProcessesGiveTheBitsOfThreads) {
  const ScratchFolder scratch;
  const std::string threads = scratch / "threads.safetensors";
  const std::string processes = scratch / "processes.safetensors";
  const Words spread = {"--all2all", "high_throughput", "--output"};
  Words words = run_words(spread);
  words.insert(words.end(), {threads, "--ranks", "2"});
  ASSERT_EQ(run_command(words).exit_code, 0);
  std::string line = std::string(MOEBIUS_TEST_MPIEXEC) + " -np 2 " + MOEBIUS_COMMAND;
  words = run_words(spread);
  words.insert(words.end(), {processes, "--group", "mpi"});
  for (const std::string& word : words) {
    line += " " + word;
  }
  ASSERT_EQ(std::system((line + " > /dev/null").c_str()), 0) << line;
  const Tensor a = Safetensors(threads).tensor("output");
  const Tensor b = Safetensors(processes).tensor("output");
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())), 0);
}
#endif

}  // namespace
}  // namespace moebius
