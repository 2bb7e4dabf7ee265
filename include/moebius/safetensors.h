// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Safetensors: memory-mapped reading of one file or of a sharded set, and writing.
// Format: 8 bytes little-endian header length, JSON header {name: {dtype, shape, data_offsets}},
// data.  https://github.com/huggingface/safetensors
// Thread-safety: const members may be called at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/tensor.h"

namespace moebius {

// Dtype as the file spells it ("F8_E4M3") and ours (u8 stands for types we only pass through, such
// as F64 and U32).
struct SafetensorsEntry {
  std::string dtype_name;
  DType dtype = DType::kU8;
  Shape shape;         // elements; of more than 4 dimensions the first ones are merged
  uint64_t begin = 0;  // in the data section
  uint64_t end = 0;
};

class Safetensors {
 public:
  // Opens a file, or a directory with model.safetensors or model.safetensors.index.json; shards are
  // mapped when first touched.  Throws InvalidArgument, one line naming file, tensor and values:
  // truncated file, header longer than the file or than 100 MB, invalid JSON, duplicate names,
  // offsets that overlap, leave holes or pass the end, sizes that contradict dtype and shape,
  // missing shard, index entries that the shard lacks.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const;
  // The entry; opens its shard's header.
  const SafetensorsEntry& entry(std::string_view name) const;
  // The file a tensor is in, for messages.
  std::filesystem::path file_of(std::string_view name) const;
  // A read-only view of the mapping, which lives as long as any tensor on it.  Writing faults.
  // Header lengths make any alignment possible: data that its type cannot be read from in place is
  // copied.  Types that are passed through come as bytes().
  Tensor tensor(std::string_view name) const;
  // The stored bytes as u8 [nbytes]; a view in any case.
  Tensor bytes(std::string_view name) const;
  // Tells the system that a tensor's pages are no longer needed (they are re-read if touched), or
  // those of its bytes [begin, end).
  void release(std::string_view name) const;
  void release(std::string_view name, int64_t begin, int64_t end) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes all tensors (CPU) to a temporary file beside `path`, then renames: readers see the whole
// file or none.  Throws InvalidArgument (names given twice), Unsupported (u4 has no name in the
// format) or Error (disk full, no permission), naming the path.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace moebius
