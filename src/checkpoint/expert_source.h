// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ExpertSource: finds the weights of a set of experts in the files.  It knows names and layouts
// (one module per expert, fused, fused and transposed) and checks every dtype and shape; its
// callers see only matrices.  Letters: E experts, H hidden, I intermediate; a projection is [N, K].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layer_names.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_scheme.h"
#include "moebius/safetensors.h"

namespace moebius::checkpoint {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// The experts that a rank takes, in ascending order of their ids.
class ExpertIds {
 public:
  explicit ExpertIds(std::vector<int64_t> ids) : ids_(std::move(ids)) {}

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int64_t operator[](int64_t local) const { return ids_[static_cast<size_t>(local)]; }
  auto begin() const { return ids_.begin(); }
  auto end() const { return ids_.end(); }
  // The index of an expert that is one of them.
  int64_t local(int64_t expert) const {
    return std::lower_bound(ids_.begin(), ids_.end(), expert) - ids_.begin();
  }

 private:
  std::vector<int64_t> ids_;
};

// The stored elements that cover a range of a dimension.  Each covers `unit` elements of the weight
// (see StoredPart); the last one of `total` may cover fewer.  Throws InvalidArgument naming `what`
// when the range starts or ends inside a stored element.
Range in_units(Range range, int64_t unit, int64_t total, const std::string& what);

// A matrix [rows, cols] of stored elements in a tensor of the files.
struct StoredMatrix {
  const Safetensors* files = nullptr;
  std::string tensor;
  std::string label;   // "FILE: tensor 'NAME'"
  int64_t offset = 0;  // byte of element (0, 0) within the tensor
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // bytes from row to row, or from column to column if transposed
  DType dtype = DType::kU8;
  bool is_transposed = false;

  // The byte of element (row, col) within the tensor.
  int64_t byte_of(int64_t row, int64_t col) const {
    const int64_t elem_bytes = bits(dtype) / 8;
    return offset +
           (is_transposed ? col * stride + row * elem_bytes : row * stride + col * elem_bytes);
  }
  // Copies a part of the matrix, row-major, to rows that are dst_stride bytes apart.  The source
  // may be unaligned.
  void copy_to(std::byte* dst, int64_t dst_stride, Range take_rows, Range take_cols) const;
  // The bytes of the tensor from the first to the last element of a part.
  Range span(Range take_rows, Range take_cols) const;
  // Announces that a part is read next, and counts its bytes.
  void will_read(Range take_rows, Range take_cols) const;
  // Releases the pages of a part.  Parts should be large: reading a page maps some more before and
  // behind it, which may have been released already.
  void release(Range take_rows, Range take_cols) const;
  // The flat index of element (row, col) in the tensor.
  int64_t index(int64_t row, int64_t col) const { return byte_of(row, col) * 8 / bits(dtype); }
};

enum class Projection : uint8_t {
  kGate,    // [I, H]
  kUp,      // [I, H]
  kGateUp,  // [2*I, H], rows alternate
  kDown,    // [H, I]
};

class ExpertSource {
 public:
  // The routed experts of a layer.  The layout and the scheme of expert `first` are taken for those
  // of all.  Throws Unsupported where rules give its projections different schemes.
  static ExpertSource routed(const Safetensors& files,
                             const ModelConfig& config,
                             const LayerNames& names,
                             int64_t first);
  // The shared experts of the layer, as one expert.
  static ExpertSource shared(const Safetensors& files,
                             const ModelConfig& config,
                             const LayerNames& names);

  // The scheme of the stored weights: the one that rules of the configuration give, or kFloat for
  // modules that the file has unquantized.
  const WeightScheme& scheme() const { return scheme_; }
  // Its parts, as the file spells them.
  const std::vector<StoredPart>& parts() const { return parts_; }
  // nullptr: the scheme has none.
  const StoredPart* part(PartRole role) const;
  const ModelConfig& config() const { return *config_; }
  int64_t num_experts() const { return num_experts_; }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  int64_t rows(Projection projection) const;
  int64_t cols(Projection projection) const;

  // REQUIRES: part.is_matrix().  Throws InvalidArgument where the tensor is missing or has another
  // dtype or shape, and Unsupported where a fused tensor shares a value among rows.
  StoredMatrix matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  // Row `expert` of the biases [E, N] of fused experts, as a matrix [1, N].
  StoredMatrix bias(int64_t expert, Projection projection) const;
  // The value of a part that has only one.  Throws InvalidArgument unless it is finite and not
  // negative; an input scale, and what is stored as a reciprocal, must be a positive normal number.
  float scalar(int64_t expert, Projection projection, const StoredPart& part) const;
  // The product of the global scale and the activations' scale.  Throws InvalidArgument unless it
  // is finite.
  float alpha(int64_t expert,
              Projection projection,
              const StoredPart& part,
              float input_scale) const;
  // Throws InvalidArgument unless the tensor weight_shape holds [N, K].
  void check_weight_shape(int64_t expert, Projection projection, const StoredPart& part) const;
  // Whether the file has the part of the first expert's projection.
  bool has(int64_t expert, Projection projection, const StoredPart& part) const {
    return files_->contains(name(expert, projection, part.suffixes.front()));
  }
  // Which stored group each group of columns is, from a part kGroupIndex.  Throws InvalidArgument
  // where there is no such group, and Unsupported where the columns of a group are not beside each
  // other.
  std::vector<int64_t> group_order(int64_t expert,
                                   Projection projection,
                                   const StoredPart& part) const;

 private:
  ExpertSource(const Safetensors& files, const ModelConfig& config)
      : files_(&files), config_(&config) {}

  bool is_gated() const { return config_->activation.gated; }
  // Whether fused weights whose layout may be either are [E, K, N]: what their shapes say, and
  // where these allow both, what the family says.
  bool finds_transposed() const;
  // Sets scheme_ and parts_ by the projections of an expert, see scheme().
  void read_scheme(int64_t expert);
  WeightScheme scheme_of(const std::string& module, const std::string& weight) const;
  // The scheme's word in messages: "(quantization: fp8)".
  std::string scheme_text() const;
  std::string name(int64_t expert, Projection projection, std::string_view suffix) const;
  StoredMatrix module_matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  StoredMatrix fused_matrix(int64_t expert, Projection projection, const StoredPart& part) const;
  // A matrix with all but its size and place.  Throws InvalidArgument where the tensor has another
  // dtype than the part, see StoredPart::dtype.
  StoredMatrix describe(const std::string& tensor, const StoredPart& part) const;

  const Safetensors* files_;
  const ModelConfig* config_;
  ExpertNames names_;
  bool is_routed_ = true;
  bool is_fused_ = false;  // all routed experts, or gate and up of the shared ones, in a tensor
  bool is_transposed_ = false;  // the fused tensors are [E, K, N]
  WeightScheme scheme_;
  std::vector<StoredPart> parts_;
  int64_t num_experts_ = 1;
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
};

// "FILE: tensor 'NAME'", with which messages start.
std::string tensor_label(const Safetensors& files, std::string_view tensor);
// Throws InvalidArgument with both shapes unless the file has the expected one.
void expect_file_shape(const SafetensorsEntry& entry,
                       const Shape& expected,
                       const std::string& label);

}  // namespace moebius::checkpoint
