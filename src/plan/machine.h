// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Machine: the figures of the hardware with which a plan is made, each with its source.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/device.h"

namespace moebius::plan {

struct Given {
  double value = 0;
  std::string source;  // "measured", "assumed", "given", ...; see docs/plan.md
};

struct Machine {
  std::string name;
  std::string description;
  DeviceType type = DeviceType::kCpu;
  // Whether the ranks of a node share what the figures describe, but for links.  Otherwise every
  // rank has all of it.
  bool is_shared_by_node = false;
  // Whether measured.h corrects times of routed experts.  It corrects what the formulas have with
  // these figures here, so other figures in a file that builds on this machine still count.
  bool experts_are_measured = false;

  Given memory_gb;
  // The rates, in TFLOP/s, that experts reach with many rows per expert, by GemmKind (gemm.h).  On
  // GPUs decoded_tflops does not include the time to decode.
  Given f32_tflops, bf16_tflops, fp8_tflops, int8_tflops, decoded_tflops;
  Given registers_tflops, coded_tflops;
  Given row_tile;         // that many rows of an expert cost as much as one
  Given weight_gb_per_s;  // reading weights once
  // Products and reading weights overlap: the longer of both hides this share of the shorter.
  Given read_overlap;
  Given copy_gb_per_s;  // gathering, quantizing, activating, summing rows: bytes read and written
  Given router_tflops, router_us;  // of logits; of the selection
  Given router_depth_ns;           // logits take at least this per element of hidden
  Given experts_us;                // launches and sorting of one call
  // Between ranks of a node, per rank and direction; 0 GB/s where a rank's own threads store rows.
  Given link_gb_per_s, link_us;
  Given peer_us;  // per peer and direction, for the notices
  Given ht_dispatch_us, ht_combine_us;
  Given ll_dispatch_us, ll_combine_us;
  Given exchange_us;  // a collective call of all hosts
  // Between nodes, per rank and direction.
  Given node_gb_per_s, node_us;
};

// Every figure, with its name in JSON files and reports.
struct MachineFigure {
  std::string_view key;
  Given Machine::*figure;
  double least, most;  // the range of valid values
};
std::span<const MachineFigure> machine_figures();

std::vector<std::string> machine_names();
// Throws InvalidArgument listing all names for an unknown one.
Machine find_machine(const std::string& name);
// Reads a JSON object with "base" (a machine's name), "description", and figures by key.  Throws
// InvalidArgument naming file, key and both values, or saying why the file cannot be read.
Machine read_machine(const std::string& file);

// Checks the bounds of all figures; throws InvalidArgument.
void expect_valid(const Machine& machine);

}  // namespace moebius::plan
