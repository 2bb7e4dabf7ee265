// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Deployment: what a plan is made for, which is an MoE layer over ranks as in src/layer/layer.cc.
// All ranks hold equally many tokens, and the ranks of a TP group hold the same ones.
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
  std::string name;  // of the preset or folder
  RoutingFacts routing;
  int64_t hidden = 0;
  int64_t intermediate = 0;         // of a routed expert
  int64_t shared_intermediate = 0;  // of all shared experts; 0: there are none
  bool is_gated = true;
  DType dtype = DType::kBF16;  // of unquantized weights and activations
  int64_t num_moe_layers = 1;

  int64_t w1_rows(int64_t inner) const { return is_gated ? 2 * inner : inner; }
};

// How weights and activations are stored; nullopt stands for the layer's dtype.
struct Formats {
  std::string name = "none";
  std::optional<QuantizeSpec> weights;
  std::optional<QuantizeSpec> activations;
  QuantConfig quant;  // of experts with these formats, whatever their sizes
};

struct Deployment {
  LayerShape layer;
  Formats formats;
  int ranks = 1;
  int ranks_per_node = 0;       // 0: one node
  int tp = 1;                   // ranks in a TP group; divides ranks
  bool shards_experts = false;  // every rank has a part of every expert instead of whole experts
  int64_t tokens = 1;           // of a rank, per call
  int microbatches = 1;
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
  int64_t redundant_experts = 0;
  int64_t layers = 1;  // a rank holds its share of so many
  Device device;

  int dp() const { return ranks / tp; }
  // The tokens of all ranks; those of a TP group count once.
  int64_t all_tokens() const { return tokens * dp(); }
  // The tokens that a rank brings to a call.  Without a backend each rank computes on all tokens;
  // otherwise each rank of a TP group has a slice, and the first slices may be longer by one.
  int64_t own_tokens(All2AllBackend backend) const {
    return backend == All2AllBackend::kNone ? tokens : (tokens + tp - 1) / tp;
  }
  // The number of ranks that together bring all tokens if each brings own_tokens().  It is no whole
  // number where slices differ.
  double num_sources(All2AllBackend backend) const {
    return static_cast<double>(all_tokens()) / static_cast<double>(own_tokens(backend));
  }

  Topology topology() const { return Topology::make(0, ranks, ranks_per_node); }
  // Every expert and every redundant expert has a place.  Place p holds expert p mod E, and each
  // rank holds a stretch of places.
  int64_t num_places() const { return layer.routing.num_experts + redundant_experts; }
  ExpertRange places_of(int rank) const {
    return shards_experts ? ExpertRange{0, num_places()} : expert_range(num_places(), ranks, rank);
  }
  // The part of a routed expert's intermediate size that a rank has.
  int64_t local_intermediate() const {
    return shards_experts ? layer.intermediate / ranks : layer.intermediate;
  }
  // Where experts are sharded, local_intermediate() is a multiple of this, since blocks that share
  // a scale are not cut.
  int64_t shard_block() const {
    return formats.weights
               ? std::max({int64_t{1}, formats.weights->group.row, formats.weights->group.col})
               : 1;
  }
};

// Throws InvalidArgument naming both values for ranks without an expert, sizes that cannot be
// divided among ranks, and numbers that are too small or too large.
void expect_valid(const Deployment& deployment);

// Bytes of a matrix [rows, cols] as `spec` stores it, including scales.
int64_t matrix_bytes(const std::optional<QuantizeSpec>& spec,
                     DType dtype,
                     int64_t rows,
                     int64_t cols);
// Bytes of a row of hidden states in the layer's dtype, and in the format of activations.
int64_t row_bytes(const Deployment& deployment);
int64_t coded_row_bytes(const Deployment& deployment);
// Bytes of the w1 and w2 of an expert.
int64_t expert_bytes(const Deployment& deployment, int64_t intermediate);
// A multiply and an add count as two.
int64_t expert_flops_per_row(const LayerShape& layer, int64_t intermediate);

}  // namespace moebius::plan
