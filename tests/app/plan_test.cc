// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius plan`: its text and JSON, its figures beside those of a run, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

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

// docs/command.md has a line `$ moebius plan ...` and what that prints, where "..." stands for
// lines that are left out.
TEST(Plan, ExampleOfTheDocsIsWhatTheCommandPrints) {
  const std::string docs = read_text("docs/command.md");
  const std::string prompt = "```\n$ moebius ";
  const size_t begin = docs.find(prompt + "plan ");
  ASSERT_NE(begin, std::string::npos);
  std::istringstream lines(docs.substr(begin + prompt.size()));
  std::string line;
  std::getline(lines, line);
  const CommandResult result = run_command(line.c_str());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  size_t at = 0;  // place in the printed text
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
  const JsonResult result = run_for_json(
      "plan --preset deepseek-v3 --ranks 64 --tokens 4096 --quant fp8 --microbatches 2");
  EXPECT_EQ(result.err, "");
  const json& plan = result.json;
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
  // A token reaches 4 of 8 groups of experts, and each group is on another node.
  EXPECT_LE(plan["routing"]["node_copies"], 4);
  EXPECT_EQ(plan["choice"]["all2all"], "high_throughput");
  EXPECT_NE(result.out.find("choice         high_throughput"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("node_gb_per_s 50"), std::string::npos) << result.out;  // is assumed
  EXPECT_GE(plan["machine"]["figures"].size(), 20u);
}

// The bytes of all-gather do not depend on the routing.  Those of the other backends do, and a run
// is near the mean.
TEST(Plan, BytesAreThoseOfARun) {
  for (const std::string per_node : {"4", "2"}) {
    const Words nodes = {"--ranks", "4", "--ranks-per-node", per_node};
    const json planned =
        run_for_json("plan --tokens 200 --machine cpu --model" + Words{tiny_model()} + nodes).json;
    for (const std::string name : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
      const json run = run_for_json(run_tiny(nodes) + "--tokens 800 --repeat 1 --all2all" + name)
                           .json["parallel"];
      const json plan = backend(planned["bytes"]["backends"], name);
      for (const char* key : {"intra_node_bytes", "inter_node_bytes"}) {
        const double mean = run[key].get<double>() / 4;
        const double expected = plan[key].get<double>();
        EXPECT_NEAR(expected, mean, name == "allgather_reducescatter" ? 0.5 : 0.1 * mean)
            << name << ", " << per_node << " per node, " << key;
      }
    }
  }
}

// There are four ranks with 200 tokens each, or with 200 for each TP group.  The output of `run` is
// f32, that of the plan bf16.
TEST(Plan, BytesAndWeightsOfTensorParallelRunsAreThose) {
  struct Spread {
    Words run;
    Words plan;
    std::string backend;
    int gathered_rows;  // rows of the output that a rank sends to others of its TP group
    double tolerance;
  };
  const std::string ag = "allgather_reducescatter";
  const std::string ht = "high_throughput";
  const std::string ll = "low_latency";
  const Spread spreads[] = {
      {"--tp 4 --tokens 200", "--tp 4", "none", 0, 0},
      {"--tp 4 --no-ep --tokens 200", "--tp 4 --no-ep", "none", 0, 0},
      {"--ranks 4 --no-ep --tokens 800", "--no-ep", ag, 0, 0},
      {"--tp 2 --dp 2 --tokens 400", "--tp 2", ag, 100, 0},
      {"--tp 2 --dp 2 --no-ep --tokens 400", "--tp 2 --no-ep", ag, 100, 0},
      {"--tp 4 --tokens 200 --all2all" + Words{ag}, "--tp 4", ag, 150, 0},
      {"--tp 2 --dp 2 --tokens 400 --all2all" + Words{ht}, "--tp 2", ht, 100, 0.1},
      {"--tp 2 --dp 2 --tokens 400 --all2all" + Words{ll}, "--tp 2", ll, 100, 0.1},
  };
  for (const Spread& spread : spreads) {
    for (const std::string per_node : {"4", "2"}) {
      SCOPED_TRACE(testing::PrintToString(spread.run) + ", " + per_node + " per node");
      const Words nodes = {"--ranks-per-node", per_node};
      const json seen = run_for_json(run_tiny("--repeat 1") + nodes + spread.run).json;
      const json told =
          run_for_json("plan --ranks 4 --tokens 200 --layers 1 --machine cpu --model" +
                       Words{tiny_model()} + nodes + spread.plan)
              .json;
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
  const auto sweep = [](const char* over) {
    const JsonResult result = run_for_json(
        Words("plan --preset deepseek-v3 --ranks 8 --quant fp8 --layers 1 --sweep") + over);
    EXPECT_NE(result.out.find("fastest"), std::string::npos) << result.out;
    return result.json["sweep"];
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
  const json plan = run_for_json("plan --preset mixtral-8x7b --no-ep --sweep ranks").json;
  EXPECT_EQ(plan["deployment"]["placement"], "sharded");
  ASSERT_FALSE(plan["sweep"]["rows"].empty());
  for (const json& row : plan["sweep"]["rows"]) {
    EXPECT_EQ(row["best"], "allgather_reducescatter");
  }
}

TEST(Plan, NothingIsOvertakenThatNeverLed) {
  const ScratchFolder scratch;
  const std::string machine = scratch / "slow.json";
  write_text(machine, R"({"base": "h200", "ll_dispatch_us": 1000000, "memory_gb": 87.5})");
  const JsonResult result = run_for_json(
      "plan --preset deepseek-v3 --ranks 8 --quant fp8 --sweep tokens --machine" + Words{machine});
  EXPECT_EQ(result.out.find("overtakes"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("high_throughput is faster than low_latency from 1 token on; no room "
                            "for low_latency"),
            std::string::npos)
      << result.out;
  EXPECT_EQ(result.json["sweep"]["crossover_no_room"], "low_latency");
}

TEST(Plan, AModelMayLieInAFolderWhoseNameIsNotUtf8) {
  const ScratchFolder scratch;
  const std::string model = scratch / "bad\xff";
  std::filesystem::copy(tiny_model(), model);
  const std::string name = run_for_json({"plan", "--model", model}).json["model"]["name"];
  EXPECT_TRUE(name.ends_with("bad\xef\xbf\xbd")) << name;
}

TEST(Plan, WhatDoesNotFitIsSaid) {
  const JsonResult result = run_for_json("plan --preset deepseek-v3 --ranks 8", 1);
  EXPECT_NE(result.out.find("none works: the least is"), std::string::npos) << result.out;
  EXPECT_TRUE(result.json["choice"]["all2all"].is_null());
}

// Low latency would take the least memory, but it refuses such rows: 2880 is no multiple of 128.
TEST(Plan, WhatIsRefusedIsNotTheLeast) {
  const json choice = run_for_json(
                          "plan --preset gpt-oss-20b --quant fp8_w8a8 --ranks 8 "
                          "--tokens 4000000 --layers 1",
                          1)
                          .json["choice"];
  EXPECT_NE(choice["least"], "low_latency");
  EXPECT_GT(choice["total_bytes"], choice["memory_bytes"]);
}

TEST(Plan, RefusesInOneLine) {
  expect_refused("plan", {"--preset or --model"});
  expect_refused("plan --preset tiny --model" + Words{tiny_model()}, {"exclude each other"});
  expect_refused("plan --preset gpt-6", {"preset is gpt-6, expected one of"});
  expect_refused("plan --model no_such_folder", {"no_such_folder"});
  expect_refused("plan --preset deepseek-v3 --ranks 256 --tokens 2147483648",
                 {"2147483648 tokens on each of 256 ranks"});
  expect_refused(
      "plan --preset deepseek-v2-lite --ranks 1 --no-ep --quant fp8 --sweep ranks "
      "--layers 1",
      {"intermediate 1408 over 2 ranks (whole blocks share a scale) is 704, expected a "
       "multiple of 128"});
  const Words tiny = "plan --preset tiny";
  expect_refused(tiny + "--quant fp3", {"quant is fp3, expected one of"});
  expect_refused(tiny + "--ranks 17", {"17 ranks, but tiny has 16 experts"});
  expect_refused(tiny + "--ranks 0", {"--ranks"});
  expect_refused(tiny + "--ranks 4 --tp 3", {"groups of tp) is 4"});
  expect_refused(tiny + "--ranks 3 --no-ep", {"sharded over ranks) is 128"});
  expect_refused(tiny + "--tp 0", {"--tp"});
  expect_refused(tiny + "--ranks 16385", {"--ranks"});
  expect_refused(tiny + "--tokens 0", {"--tokens"});
  expect_refused(tiny + "--machine abacus", {"machine is abacus"});
  expect_refused(tiny + "--machine no_such.json", {"no_such.json"});
  expect_refused(tiny + "--link-gb-per-s -1", {"--link-gb-per-s"});
  expect_refused(tiny + "--sweep moons", {"--sweep"});
  expect_refused(tiny + "--ranks 4096 --tp 4096 --redundant-experts 4080 --sweep ranks",
                 {"tp (of a sweep over ranks) is 4096, expected at most 2048"});
  const ScratchFolder scratch;
  const std::string file = scratch / "m.json";
  for (const auto& [value, part] :
       {std::pair("1e400", "1e400"), std::pair("null", "link_us is null"),
        std::pair("\"x\"", "link_us is \"x\"")}) {
    write_text(file, R"({"base": "h200", "link_us": )" + std::string(value) + "}");
    expect_refused(tiny + "--machine" + file, {part});
  }
}

}  // namespace
}  // namespace moebius::test
