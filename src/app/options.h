// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The options of the command line, one struct per subcommand.  Defaults are defined here and
// nowhere else; docs/command.md explains each option.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moebius/modular_kernel.h"

namespace moebius::app {

struct RunOptions {
  std::string model;
  std::optional<int64_t> layer;  // nullopt: the first MoE layer
  bool all_layers = false;       // each MoE layer after the other
  std::string input;             // empty: synthetic
  std::string input_tensor;      // empty: the only tensor of the file
  int64_t tokens = 64;
  uint64_t seed = 0;
  std::string output;
  std::string device = "cpu";
  std::string group = "threads";
  std::optional<int> ranks;  // nullopt: tp times dp, or as many as the launcher started
  int ranks_per_node = 0;    // 0: all ranks on one node
  std::optional<int> tp;     // nullopt: 1
  std::optional<int> dp;     // nullopt: the number of ranks divided by tp
  bool no_ep = false;
  std::string all2all;  // empty: allgather_reducescatter when dp > 1, else none
  bool monolithic = false;
  std::string quant = "auto";
  std::string router_sums = "stated";
  std::string sum = "selections";  // what low_latency's combine sends back
  KernelOptions kernel;
  int comm_sms = 0;  // 0: the backend chooses
  int threads = 0;   // 0: MOEBIUS_THREADS, or all usable CPUs where that is not set
  std::string numa;  // empty: MOEBIUS_NUMA
  int repeat = 3;
  bool graph = false;  // on GPUs: the timed calls are replays of a CUDA graph
  // For high_throughput on GPUs, see MoeLayerOptions.  nullopt stands for 0 with --graph.
  std::optional<int64_t> capacity;
  bool check = false;
  std::string format = "standard";
  std::string experts;  // empty: the first implementation that accepts
  std::string json;
  std::string trace;
  std::string report;
};

struct MakeModelOptions {
  std::string preset;  // "list" prints the presets
  int64_t layers = 1;
  std::string quant = "none";
  uint64_t seed = 0;
  std::string output;
};

struct BenchOptions {
  static inline const std::vector<int64_t> kLayerTokens = {1, 8, 64, 512, 2048, 8192};
  static inline const std::vector<int64_t> kGpuLayerTokens = {128, 4096};
  static inline const std::vector<int64_t> kHighThroughputTokens = {4096};
  static inline const std::vector<int64_t> kLowLatencyTokens = {1, 128};
  static inline const std::vector<std::string> kSums = {"selections", "ranks"};

  std::string stage;    // quant, router, experts, dispatch or layer
  std::string problem;  // empty: all of the stage
  std::string impl;     // empty: all that accept
  bool check = true;
  int threads = 0;
  std::string numa;             // empty: MOEBIUS_NUMA
  int ranks = 0;                // 0: for dispatch 1, 2, 4 and 8; on GPUs as many as there are
  double min_time = 0.3;        // seconds of measurement per case
  std::vector<int64_t> tokens;  // for layer, and for dispatch on GPUs; empty: one of the above
  // For layer:
  std::string preset;
  std::string quant = "none";
  // For experts, dispatch and layer:
  std::string device = "cpu";
  int64_t iterations = 50;           // on GPUs
  std::string l2_lines = "written";  // what GPUs' L2 holds before a call; not for dispatch
  // For dispatch and layer, on GPUs:
  std::string group = "threads";
  std::vector<int> sms = {0};     // 0: the default
  std::vector<std::string> sums;  // empty: for dispatch kSums, for layer the first of them
  int64_t experts = 0;            // 0: for dispatch 256, for layer those of the model
  int64_t topk = 0;               // 0: for dispatch 8, for layer that of the model
  // For layer on GPUs:
  std::vector<int> microbatches = {1};
  std::vector<int> combine_parts = {0};  // 0: the kernel chooses
  std::vector<int64_t> early_rows;       // empty: the default
  double pause_ms = 0;                   // how long to wait before each call
  std::vector<std::string> all2all;      // empty: chosen by the number of tokens
  std::string router_sums = "stated";
  // For dispatch on GPUs:
  std::vector<std::string> modes = {"ht", "ll"};
  std::vector<std::string> dtypes = {"fp8", "bf16"};
  int64_t hidden = 7168;
  int64_t dispatch_experts() const { return experts > 0 ? experts : 256; }
  int64_t dispatch_topk() const { return topk > 0 ? topk : 8; }

  std::string json;
};

struct VerifyOptions {
  std::string stage;    // empty: all
  std::string problem;  // empty: all
  bool markdown = false;
  int threads = 0;
  std::string json;
};

struct InfoOptions {
  std::string model;
  bool markdown = false;
  std::string json;
};

struct PlanOptions {
  std::string preset;  // either this or `model` is given
  std::string model;
  std::string quant = "auto";  // auto: as the model's folder says; for a preset none
  int ranks = 1;
  int ranks_per_node = 0;  // 0: 8 on GPUs; on CPUs all ranks are on one node
  int tp = 1;
  bool no_ep = false;
  int64_t tokens = 128;  // per rank; the ranks of a TP group hold the same tokens
  int microbatches = 1;
  std::string sum = "selections";  // what low_latency's combine sends back
  int64_t layers = 0;              // 0: all MoE layers of the model
  int64_t redundant_experts = 0;
  double skew = 0;
  bool ungrouped = false;
  std::string machine = "h200";  // or cpu, here or FILE.json
  std::optional<double> link_gb_per_s, link_latency_us;
  std::optional<double> node_gb_per_s, node_latency_us;
  std::optional<double> tflops, memory_gb_per_s, memory_gb;
  std::string sweep;  // ranks, tokens or empty
  std::string json;
};

using Options = std::
    variant<RunOptions, MakeModelOptions, BenchOptions, VerifyOptions, InfoOptions, PlanOptions>;

// Returns the options, or the exit code where nothing is left to do (--help).
// Throws InvalidArgument with a message of one line for anything that cannot be parsed.
std::variant<Options, int> parse_command_line(int argc, const char* const* argv);

}  // namespace moebius::app
