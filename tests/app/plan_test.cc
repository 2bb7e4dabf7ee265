// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// moebius plan: text and JSON, beside a run of the same case, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

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
using nlohmann::json;

json backend(const json& list, const std::string& name) {
  for (const json& row : list) {
    if (row["backend"] == name) {
      return row;
    }
  }
  ADD_FAILURE() << name << " is not in " << list;
  return {};
}

// docs/command.md: a line `$ moebius plan ...` and what it prints, with "..." for what is left out.
TEST(Plan, ExampleOfTheDocsIsWhatTheCommandPrints) {
  const std::string docs = test::read_text("docs/command.md");
  const std::string prompt = "```\n$ moebius ";
  const size_t begin = docs.find(prompt + "plan ");
  ASSERT_NE(begin, std::string::npos);
  std::istringstream lines(docs.substr(begin + prompt.size()));
  std::string line;
  std::getline(lines, line);
  std::istringstream command(line);
  Words words;
  for (std::string word; command >> word;) {
    words.push_back(word);
  }
  const CommandResult result = run_command(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  size_t at = 0;  // in what was printed
  int num_lines = 0;
  for (bool skips = false; std::getline(lines, line) && line != "```";) {
    if (line == "...") {
      skips = true;
      continue;
    }
    const size_t found = result.out.find(line + "\n", at);
    ASSERT_TRUE(skips ? found != std::string::npos : found == at)
        << "update docs/command.md with: moebius plan ...\n"
        << result.out << "\nwhich lacks: " << line;
    at = found + line.size() + 1;
    skips = false;
    ++num_lines;
  }
  EXPECT_GE(num_lines, 5);
  EXPECT_EQ(at, result.out.size());
}

TEST(Plan, TextAndJsonHaveTheSameFigures) {
  const ScratchFolder scratch;
  const CommandResult result =
      run_command({"plan", "--preset", "deepseek-v3", "--ranks", "64", "--tokens", "4096",
                   "--quant", "fp8", "--microbatches", "2", "--json", scratch / "plan.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json plan = read_json(scratch / "plan.json");
  EXPECT_EQ(plan["deployment"]["nodes"], 8);
  EXPECT_EQ(plan["deployment"]["experts_per_rank"], 4);
  EXPECT_EQ(plan["routing"]["rows"], 4096 * 8);
  EXPECT_NEAR(plan["routing"]["touched"], 4, 1e-9);
  for (const char* name : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
    EXPECT_GT(backend(plan["bytes"]["backends"], name)["inter_node_bytes"], 0);
    EXPECT_GT(backend(plan["buffers"]["backends"], name)["total_bytes"], 0);
    EXPECT_GT(backend(plan["time"]["backends"], name)["call_us"], 0);
    EXPECT_NE(result.out.find(name), std::string::npos);
  }
  // Tokens reach 4 of 8 groups of experts, so of nodes.
  EXPECT_LE(plan["routing"]["node_copies"], 4);
  EXPECT_EQ(plan["choice"]["all2all"], "high_throughput");
  EXPECT_NE(result.out.find("choice         high_throughput"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("node_gb_per_s 50"), std::string::npos) << result.out;  // is assumed
  EXPECT_GE(plan["machine"]["figures"].size(), 20u);
}

// All-gather's bytes do not depend on the routing; the others' are near the mean of all routings.
TEST(Plan, BytesAreThoseOfARun) {
  const ScratchFolder scratch;
  for (const char* per_node : {"4", "2"}) {
    for (const std::string name : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
      const std::string run_file = scratch / (name + per_node + "run.json");
      ASSERT_EQ(
          run_command({"run", "--model", tiny_model(), "--ranks", "4", "--ranks-per-node", per_node,
                       "--all2all", name, "--tokens", "800", "--repeat", "1", "--json", run_file})
              .exit_code,
          0);
      const std::string plan_file = scratch / (name + per_node + "plan.json");
      const CommandResult planned =
          run_command({"plan", "--model", tiny_model(), "--ranks", "4", "--ranks-per-node",
                       per_node, "--tokens", "200", "--machine", "cpu", "--json", plan_file});
      ASSERT_EQ(planned.exit_code, 0) << planned.err;
      const json run = read_json(run_file)["parallel"];
      const json plan = backend(read_json(plan_file)["bytes"]["backends"], name);
      for (const char* key : {"intra_node_bytes", "inter_node_bytes"}) {
        const double mean = run[key].get<double>() / 4;
        const double expected = plan[key].get<double>();
        EXPECT_NEAR(expected, mean, name == "allgather_reducescatter" ? 0.5 : 0.1 * mean)
            << name << ", " << per_node << " per node, " << key;
      }
    }
  }
}

// Four ranks of 200 tokens each, or 200 for the ranks of a TP group; `run` wants its output in f32,
// the plan's is in bf16.
TEST(Plan, BytesAndWeightsOfTensorParallelRunsAreThose) {
  struct Spread {
    Words run;
    Words plan;
    std::string backend;
    int gathered_rows;  // of the output, that a rank sends to others of its TP group
    double tolerance;
  };
  const std::string ag = "allgather_reducescatter";
  const Spread spreads[] = {
      {{"--tp", "4", "--tokens", "200"}, {"--tp", "4"}, "none", 0, 0},
      {{"--tp", "4", "--no-ep", "--tokens", "200"}, {"--tp", "4", "--no-ep"}, "none", 0, 0},
      {{"--ranks", "4", "--no-ep", "--tokens", "800"}, {"--no-ep"}, ag, 0, 0},
      {{"--tp", "2", "--dp", "2", "--tokens", "400"}, {"--tp", "2"}, ag, 100, 0},
      {{"--tp", "2", "--dp", "2", "--no-ep", "--tokens", "400"},
       {"--tp", "2", "--no-ep"},
       ag,
       100,
       0},
      {{"--tp", "4", "--all2all", ag, "--tokens", "200"}, {"--tp", "4"}, ag, 150, 0},
      {{"--tp", "2", "--dp", "2", "--all2all", "high_throughput", "--tokens", "400"},
       {"--tp", "2"},
       "high_throughput",
       100,
       0.1},
      {{"--tp", "2", "--dp", "2", "--all2all", "low_latency", "--tokens", "400"},
       {"--tp", "2"},
       "low_latency",
       100,
       0.1},
  };
  const ScratchFolder scratch;
  for (const Spread& spread : spreads) {
    for (const char* per_node : {"4", "2"}) {
      Words run = {"run",      "--model", tiny_model(), "--ranks-per-node",  per_node,
                   "--repeat", "1",       "--json",     scratch / "run.json"};
      run.insert(run.end(), spread.run.begin(), spread.run.end());
      const CommandResult ran = run_command(run);
      ASSERT_EQ(ran.exit_code, 0) << ran.err;
      Words plan = {"plan",     "--model",  tiny_model(),
                    "--ranks",  "4",        "--ranks-per-node",
                    per_node,   "--tokens", "200",
                    "--layers", "1",        "--machine",
                    "cpu",      "--json",   scratch / "plan.json"};
      plan.insert(plan.end(), spread.plan.begin(), spread.plan.end());
      const CommandResult planned = run_command(plan);
      ASSERT_EQ(planned.exit_code, 0) << planned.err;
      SCOPED_TRACE(testing::PrintToString(spread.run) + ", " + per_node + " per node");
      const json seen = read_json(scratch / "run.json");
      const json told = read_json(scratch / "plan.json");
      EXPECT_EQ(seen["parallel"]["all2all"], spread.backend);
      const json bytes = backend(told["bytes"]["backends"], spread.backend);
      double expected = 0;
      double mean = 0;
      for (const char* key : {"intra_node_bytes", "inter_node_bytes"}) {
        expected += bytes[key].get<double>();
        mean += seen["parallel"][key].get<double>() / 4;
      }
      expected += spread.gathered_rows * 256 * (4 - 2);
      EXPECT_NEAR(expected, mean, std::max(0.5, spread.tolerance * mean));
      const json buffers = backend(told["buffers"]["backends"], spread.backend);
      EXPECT_EQ(buffers["weight_bytes"].get<int64_t>() * 4, seen["memory"]["weight_bytes"]);
    }
  }
}

TEST(Plan, SweepsSayWhoIsFastestWhere) {
  const ScratchFolder scratch;
  const auto sweep = [&](const char* over) {
    const std::string file = scratch / (std::string(over) + ".json");
    const CommandResult result =
        run_command({"plan", "--preset", "deepseek-v3", "--ranks", "8", "--quant", "fp8",
                     "--layers", "1", "--sweep", over, "--json", file});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("fastest"), std::string::npos) << result.out;
    return read_json(file)["sweep"];
  };
  const json ranks = sweep("ranks");
  ASSERT_EQ(ranks["rows"].size(), 11u);
  EXPECT_EQ(ranks["rows"].back()["ranks"], 2048);
  EXPECT_EQ(ranks["rows"].back()["redundant_experts"], 2048 - 256);
  EXPECT_EQ(ranks["turns"][0]["from"], 2);
  EXPECT_EQ(ranks["turns"][0]["best"], ranks["rows"][0]["best"]);
  const json tokens = sweep("tokens");
  ASSERT_EQ(tokens["rows"].size(), 15u);
  EXPECT_TRUE(tokens["crossover_tokens"].is_number()) << tokens;
  EXPECT_EQ(tokens["crossover_no_room"], "");
  EXPECT_EQ(tokens["turns"][0]["from"], 1);
  for (const json& row : tokens["rows"]) {
    EXPECT_GT(row["low_latency"], 0);
  }
}

// Experts are sharded in every row, whatever --ranks is.
TEST(Plan, SweepsOfShardedExpertsKeepThemSharded) {
  const ScratchFolder scratch;
  const CommandResult result = run_command({"plan", "--preset", "mixtral-8x7b", "--no-ep",
                                            "--sweep", "ranks", "--json", scratch / "plan.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = read_json(scratch / "plan.json");
  EXPECT_EQ(plan["deployment"]["placement"], "sharded");
  ASSERT_FALSE(plan["sweep"]["rows"].empty());
  for (const json& row : plan["sweep"]["rows"]) {
    EXPECT_EQ(row["best"], "allgather_reducescatter");
  }
}

TEST(Plan, NothingIsOvertakenThatNeverLed) {
  const ScratchFolder scratch;
  const std::string machine = scratch / "slow.json";
  std::ofstream(machine) << R"({"base": "h200", "ll_dispatch_us": 1000000})";
  const CommandResult result =
      run_command({"plan", "--preset", "deepseek-v3", "--ranks", "8", "--quant", "fp8", "--machine",
                   machine, "--sweep", "tokens", "--json", scratch / "plan.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("overtakes"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("high_throughput is faster than low_latency from 1 token on; no room "
                            "for low_latency"),
            std::string::npos)
      << result.out;
  EXPECT_EQ(read_json(scratch / "plan.json")["sweep"]["crossover_no_room"], "low_latency");
}

TEST(Plan, AModelMayLieInAFolderWhoseNameIsNotUtf8) {
  const ScratchFolder scratch;
  const std::string model = scratch / "bad\xff";
  std::filesystem::copy(tiny_model(), model);
  const CommandResult result =
      run_command({"plan", "--model", model, "--json", scratch / "plan.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string name = read_json(scratch / "plan.json")["model"]["name"];
  EXPECT_TRUE(name.ends_with("bad\xef\xbf\xbd")) << name;
}

TEST(Plan, WhatDoesNotFitIsSaid) {
  const ScratchFolder scratch;
  const CommandResult result = run_command(
      {"plan", "--preset", "deepseek-v3", "--ranks", "8", "--json", scratch / "plan.json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("none works: the least is"), std::string::npos) << result.out;
  EXPECT_TRUE(read_json(scratch / "plan.json")["choice"]["all2all"].is_null());
}

// Low latency would take the least memory, but not these rows.
TEST(Plan, WhatIsRefusedIsNotTheLeast) {
  const ScratchFolder scratch;
  const CommandResult result =
      run_command({"plan", "--preset", "deepseek-v3", "--quant", "fp8_w8a8_channel", "--ranks",
                   "64", "--tokens", "400000", "--layers", "1", "--json", scratch / "plan.json"});
  EXPECT_EQ(result.exit_code, 1);
  const auto choice = read_json(scratch / "plan.json")["choice"];
  EXPECT_NE(choice["least"], "low_latency");
  EXPECT_GT(choice["total_bytes"], choice["memory_bytes"]);
}

TEST(Plan, RefusesInOneLine) {
  const auto refused = [](Words words, const std::string& part) {
    words.insert(words.begin(), "plan");
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.exit_code, 2) << words.back();
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused({}, "--preset or --model");
  refused({"--preset", "tiny", "--model", tiny_model()}, "exclude each other");
  refused({"--preset", "gpt-6"}, "preset is gpt-6, expected one of");
  refused({"--preset", "tiny", "--quant", "fp3"}, "quant is fp3, expected one of");
  refused({"--preset", "tiny", "--ranks", "17"}, "17 ranks, but tiny has 16 experts");
  refused({"--preset", "tiny", "--ranks", "0"}, "--ranks");
  refused({"--preset", "tiny", "--ranks", "4", "--tp", "3"}, "groups of tp) is 4");
  refused({"--preset", "tiny", "--ranks", "3", "--no-ep"}, "sharded over ranks) is 128");
  refused({"--preset", "tiny", "--tp", "0"}, "--tp");
  refused({"--preset", "tiny", "--ranks", "16385"}, "--ranks");
  refused({"--preset", "tiny", "--skew", "nan"}, "nan");
  refused({"--preset", "deepseek-v3", "--ranks", "256", "--tokens", "2147483648"},
          "2147483648 tokens on each of 256 ranks");
  refused({"--preset", "tiny", "--tokens", "0"}, "--tokens");
  refused({"--preset", "tiny", "--machine", "abacus"}, "machine is abacus");
  refused({"--preset", "tiny", "--machine", "no_such.json"}, "no_such.json");
  refused({"--preset", "tiny", "--link-gb-per-s", "-1"}, "--link-gb-per-s");
  refused({"--preset", "tiny", "--sweep", "moons"}, "--sweep");
  refused({"--preset", "deepseek-v2-lite", "--ranks", "1", "--no-ep", "--quant", "fp8", "--sweep",
           "ranks", "--layers", "1"},
          "intermediate 1408 over 2 ranks (whole blocks share a scale) is 704, expected a multiple "
          "of 128");
  refused({"--preset", "tiny", "--ranks", "4096", "--tp", "4096", "--redundant-experts", "4080",
           "--sweep", "ranks"},
          "tp (of a sweep over ranks) is 4096, expected at most 2048");
  refused({"--model", "no_such_folder"}, "no_such_folder");
  const ScratchFolder scratch;
  const std::string file = scratch / "m.json";
  for (const auto& [text, part] :
       {std::pair(R"({"base": "h200", "link_us": 1e400})", "1e400"),
        std::pair(R"({"base": "h200", "link_us": null})", "link_us is null"),
        std::pair(R"({"base": "h200", "link_us": "x"})", "link_us is \"x\"")}) {
    std::ofstream(file) << text;
    refused({"--preset", "tiny", "--machine", file}, part);
  }
}

}  // namespace
}  // namespace moebius
