// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ExpertSource: where the weights of a set of experts stand in the files.  It knows names and
// layouts (one module per expert, fused, fused and transposed) and checks every dtype and shape;
// the code above sees only matrices. Letters: E experts, H hidden, I intermediate; a projection is
// [N, K].
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "checkpoint/model_config.h"
#include "checkpoint/weight_scheme.h"
#include "moebius/safetensors.h"

namespace moebius::checkpoint {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// The stored elements that cover a range of a dimension, `unit` each (see StoredPart).  Throws
// InvalidArgument (naming `what`) when it starts or ends inside one; the last one of `total` may be
// incomplete.
Range in_units(Range range, int64_t unit, int64_t total, const std::string& what);

// rows x cols stored elements.
struct StoredMatrix {
  const Safetensors* files = nullptr;
  std::string tensor;
  std::string label;   // "FILE: tensor 'NAME'"
  int64_t offset = 0;  // byte of element (0, 0) within the tensor
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // bytes from row to row; of a transposed one from column to column
  DType dtype = DType::kU8;
  bool is_transposed = false;

  // The part of the matrix, row-major, to rows of dst_stride bytes; the source's pages are
  // released. No alignment of the source is assumed.
  void copy_to(std::byte* dst, int64_t dst_stride, Range take_rows, Range take_cols) const;
};

enum class Projection : uint8_t {
  kGate,    // [I, H]
  kUp,      // [I, H]
  kGateUp,  // [2*I, H], rows alternate
  kDown,    // [H, I]
};

class ExpertSource {
 public:
  // The routed experts of the block `prefix`.  first: an expert to look at for how all are stored.
  static ExpertSource routed(const Safetensors& files,
                             const ModelConfig& config,
                             const std::string& prefix,
                             int64_t first);
  // Its shared experts, as one expert.
  static ExpertSource shared(const Safetensors& files,
                             const ModelConfig& config,
                             const std::string& prefix);

  // What the file holds: the configuration's scheme, or kFloat for modules left unquantized.
  const WeightScheme& scheme() const { return scheme_; }
  const ModelConfig& config() const { return *config_; }
  int64_t num_experts() const { return num_experts_; }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  int64_t rows(Projection projection) const;
  int64_t cols(Projection projection) const;

  // REQUIRES: part.is_matrix().  Throws InvalidArgument: tensor missing, dtype, shape.
  StoredMatrix matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  // Of a fused set: row `expert` of the biases [E, N], as [1, N].
  StoredMatrix bias(int64_t expert, Projection projection) const;
  // A part with one value, which is checked: finite and not negative, an input scale normal.
  float scalar(int64_t expert, Projection projection, const StoredPart& part) const;
  // A global scale times the activations' scale, which must be finite.
  float alpha(int64_t expert,
              Projection projection,
              const StoredPart& part,
              float input_scale) const;
  // Throws unless weight_shape says [N, K].
  void check_weight_shape(int64_t expert, Projection projection, const StoredPart& part) const;

 private:
  ExpertSource(const Safetensors& files, const ModelConfig& config)
      : files_(&files), config_(&config) {}

  // kFloat where `weight` is stored in a float type, else the configuration's.
  WeightScheme scheme_of(const std::string& weight) const;
  std::string name(int64_t expert, Projection projection, std::string_view suffix) const;
  StoredMatrix module_matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  StoredMatrix fused_matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  // Checks a tensor's dtype (a float type stands for all three) and gives what is known so far.
  StoredMatrix describe(const std::string& tensor, DType expected) const;

  const Safetensors* files_;
  const ModelConfig* config_;
  std::string path_;  // "P.experts" or "P.shared_experts"
  bool is_routed_ = true;
  bool is_fused_ = false;
  WeightScheme scheme_;
  int64_t num_experts_ = 1;
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
};

// "FILE: tensor 'NAME'", as messages start.
std::string tensor_label(const Safetensors& files, std::string_view tensor);
// Throws InvalidArgument with both shapes where the file's is another.
void expect_file_shape(const SafetensorsEntry& entry,
                       const Shape& expected,
                       const std::string& label);

}  // namespace moebius::checkpoint
