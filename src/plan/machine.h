// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Machine: figures of the hardware that a plan is made with, each with where it comes from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/device.h"

namespace moebius::plan {

struct Given {
  double value = 0;
  std::string source;  // "measured", "assumed", "given", ...: see docs/plan.md
};

struct Machine {
  std::string name;
  std::string description;
  DeviceType type = DeviceType::kCpu;
  // What a rank has of the figures but links: all, or what the ranks of its node leave it.
  bool is_shared_by_node = false;

  Given memory_gb;
  // Products that the experts reach with many rows per expert, in TFLOP/s, and how many rows of an
  // expert cost as much as one; of which GemmKind, see gemm.h.  On GPUs decoded_tflops is without
  // the time to decode.
  Given f32_tflops, bf16_tflops, fp8_tflops, int8_tflops, decoded_tflops;
  Given registers_tflops, coded_tflops;
  Given row_tile;
  Given weight_gb_per_s;  // reading weights once
  Given read_overlap;     // share of the shorter of products and weights that the longer one hides
  Given copy_gb_per_s;    // rows gathered, quantized, activated, summed: read and written
  Given router_tflops, router_us;  // logits; selection
  Given router_depth_ns;           // logits take at least this per element of hidden
  Given experts_us;                // launches and order of one call
  // Between ranks of a node, one way per rank; 0 GB/s: rows are stored by the rank's own threads.
  Given link_gb_per_s, link_us;
  Given peer_us;  // per peer and way: words that say who has what
  Given ht_dispatch_us, ht_combine_us;
  Given ll_dispatch_us, ll_combine_us;
  Given exchange_us;  // a collective call of all hosts
  // Between nodes, one way per rank.
  Given node_gb_per_s, node_us;
};

// Every figure by the name that a JSON file and the report give it.
struct MachineFigure {
  std::string_view key;
  Given Machine::*figure;
  double least, most;  // values that make sense
};
std::span<const MachineFigure> machine_figures();

std::vector<std::string> machine_names();
// Throws InvalidArgument with all there are.
Machine find_machine(const std::string& name);
// A JSON object: "base" (a name), "description", and figures by key.  Throws InvalidArgument naming
// file, key and both values, or why the file cannot be read.
Machine read_machine(const std::string& file);

// Bounds again, for figures that were set one by one; throws InvalidArgument.
void expect_valid(const Machine& machine);

}  // namespace moebius::plan
