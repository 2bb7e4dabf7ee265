// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Deployment: what a plan is made for.  One MoE layer over ranks, as src/layer/layer.cc has it:
// every rank holds as many tokens, those of a TP group the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "moebius/device.h"
#include "moebius/dtype.h"
#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/parallel_config.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "plan/routing.h"

namespace moebius::plan {

struct LayerShape {
  std::string name;  // of the preset, or the folder
  RoutingFacts routing;
  int64_t hidden = 0;
  int64_t intermediate = 0;         // of a routed expert
  int64_t shared_intermediate = 0;  // of all shared experts; 0: none
  bool is_gated = true;
  DType dtype = DType::kBF16;  // of unquantized weights and activations
  int64_t num_moe_layers = 1;

  int64_t w1_rows(int64_t inner) const { return is_gated ? 2 * inner : inner; }
};

// How weights and activations are stored; nullopt: in the layer's dtype.
struct Formats {
  std::string name = "none";
  std::optional<QuantizeSpec> weights;
  std::optional<QuantizeSpec> activations;
  QuantConfig quant;  // of experts with them, of any size
};

struct Deployment {
  LayerShape layer;
  Formats formats;
  int ranks = 1;
  int ranks_per_node = 0;       // 0: one node
  int tp = 1;                   // ranks of a TP group; divides ranks
  bool shards_experts = false;  // a part of every expert on every rank, else whole experts
  int64_t tokens = 1;           // that a rank holds, per call
  int microbatches = 1;
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
  int64_t redundant_experts = 0;
  int64_t layers = 1;  // that a rank holds its share of
  Device device;

  int dp() const { return ranks / tp; }
  // Of all ranks, those of a TP group counted once.
  int64_t all_tokens() const { return tokens * dp(); }
  // That a rank brings: without a backend each computes on all tokens, else the ranks of a TP group
  // have a slice each, the first ones of which may be longer by one.
  int64_t own_tokens(All2AllBackend backend) const {
    return backend == All2AllBackend::kNone ? tokens : (tokens + tp - 1) / tp;
  }
  // Ranks whose tokens are not those of others, as many as would bring all if each had own_tokens:
  // no whole number where slices differ.
  double num_sources(All2AllBackend backend) const {
    return static_cast<double>(all_tokens()) / static_cast<double>(own_tokens(backend));
  }

  Topology topology() const { return Topology::make(0, ranks, ranks_per_node); }
  // A place for an expert; place p holds expert p mod E, and ranks hold stretches of places.
  int64_t num_places() const { return layer.routing.num_experts + redundant_experts; }
  ExpertRange places_of(int rank) const {
    return shards_experts ? ExpertRange{0, num_places()} : expert_range(num_places(), ranks, rank);
  }
  // Of a routed expert, what a rank has.
  int64_t local_intermediate() const {
    return shards_experts ? layer.intermediate / ranks : layer.intermediate;
  }
  // What that is a multiple of where experts are sharded: blocks of scales are not cut.
  int64_t shard_block() const {
    return formats.weights
               ? std::max({int64_t{1}, formats.weights->group.row, formats.weights->group.col})
               : 1;
  }
};

// Throws InvalidArgument, naming both values, for ranks without an expert, what cannot be divided
// among ranks, and numbers below 1.
void expect_valid(const Deployment& deployment);

// Bytes of a matrix [rows, cols] as `spec` stores it, scales included.
int64_t matrix_bytes(const std::optional<QuantizeSpec>& spec,
                     DType dtype,
                     int64_t rows,
                     int64_t cols);
// Of a row of hidden states, as the layer has it and as activations are stored.
int64_t row_bytes(const Deployment& deployment);
int64_t coded_row_bytes(const Deployment& deployment);
// Of an expert's w1 and w2.
int64_t expert_bytes(const Deployment& deployment, int64_t intermediate);
// Multiply and add are two.
int64_t expert_flops_per_row(const LayerShape& layer, int64_t intermediate);

}  // namespace moebius::plan
