// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowLayout: how n rows of several fields lie in one block of memory.  The fields follow each
// other, each starting at a multiple of 256 bytes.  Receive banks and messages between nodes use it
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moebius {

class RowLayout {
 public:
  // The bytes of a row's ids and weights; 0 for what does not travel.
  struct Routing {
    int64_t ids = 0;
    int64_t weights = 0;
  };

  // Only payloads.
  explicit RowLayout(std::vector<int64_t> payload_bytes)
      : num_payloads_(static_cast<int>(payload_bytes.size())),
        field_bytes_(std::move(payload_bytes)) {}
  // The fields are the payloads, then the ids, the weights, and the source token, 4 bytes.
  RowLayout(std::vector<int64_t> payload_bytes, const Routing& routing)
      : num_payloads_(static_cast<int>(payload_bytes.size())),
        has_weights_(routing.weights > 0),
        field_bytes_(std::move(payload_bytes)) {
    field_bytes_.insert(field_bytes_.end(), {routing.ids, routing.weights, 4});
  }

  int num_fields() const { return static_cast<int>(field_bytes_.size()); }
  int num_payloads() const { return num_payloads_; }
  bool has_routing() const { return num_fields() > num_payloads_; }
  bool has_weights() const { return has_weights_; }
  int ids_field() const { return num_payloads_; }
  int weights_field() const { return num_payloads_ + 1; }
  int token_field() const { return num_payloads_ + 2; }

  int64_t field_bytes(int field) const { return field_bytes_[static_cast<size_t>(field)]; }
  int64_t row_bytes() const {
    int64_t total = 0;
    for (const int64_t bytes : field_bytes_) {
      total += bytes;
    }
    return total;
  }
  // Bytes from the block's begin to this field, in a block of `rows` rows.
  int64_t offset(int field, int64_t rows) const {
    constexpr int64_t kAlignment = 256;
    int64_t at = 0;
    for (int f = 0; f < field; ++f) {
      at += (field_bytes(f) * rows + kAlignment - 1) / kAlignment * kAlignment;
    }
    return at;
  }
  int64_t block_bytes(int64_t rows) const { return offset(num_fields(), rows); }

 private:
  int num_payloads_ = 0;
  bool has_weights_ = false;
  std::vector<int64_t> field_bytes_;
};

}  // namespace moebius
