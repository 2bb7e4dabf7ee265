// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Safetensors: reads one file or a sharded set through memory maps, and writes files.
// The format is a header length (8 bytes, little-endian), a JSON header {name: {dtype, shape,
// data_offsets}}, and the data: https://github.com/huggingface/safetensors
// Thread-safety: const members may be called at the same time.
// A file must not be truncated while it is mapped: reading what is gone raises SIGBUS, as with any
// memory map.  The library handles no signals; see mapped_file_at() for a handler of yours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/api.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// The header of a file has such an entry for each tensor.
struct SafetensorsEntry {
  std::string dtype_name;  // as the file spells it, such as "F8_E4M3"
  // u8 stands for types that are only passed through, such as F64 and U32.
  DType dtype = DType::kU8;
  Shape shape;         // elements; if there are more than 4 dimensions, the first are merged
  uint64_t begin = 0;  // bytes [begin, end) of the data section
  uint64_t end = 0;
};

class Safetensors {
 public:
  // Opens a file, or a directory with model.safetensors or, where there is none,
  // model.safetensors.index.json.  Shards may be links.  They are mapped when they are first
  // touched, so those that nobody touches may be missing.
  // Throws InvalidArgument with one line naming file, tensor and values, for: a truncated file, a
  // header longer than the file or than 100 MB, invalid JSON, duplicate names, offsets that
  // overlap, leave holes or pass the end, and sizes that contradict dtype and shape.  Members that
  // take a name throw the same for its shard, and for an unknown name, a missing shard, and index
  // entries that the shard lacks; contains() does not throw.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  std::vector<std::string> names() const;                         // sorted
  std::vector<std::string> names(std::string_view prefix) const;  // those that start with it
  // Whether entry(), tensor(), bytes() or release() has been called for the tensor.
  bool was_read(std::string_view name) const;
  bool contains(std::string_view name) const;
  // Opens the tensor's shard.  The entry lives as long as this object.
  const SafetensorsEntry& entry(std::string_view name) const;
  // The path of the file that holds the tensor, for messages.
  std::filesystem::path file_of(std::string_view name) const;
  // The paths of the files of the set, whether they exist or not.
  std::vector<std::filesystem::path> files() const;
  // A read-only view of the mapping, which lives as long as any tensor on it; writing to it faults.
  // Data may lie at any address, since headers have any length: where it is not aligned to its
  // elements, the tensor is a copy.  Types that are only passed through come as bytes().
  Tensor tensor(std::string_view name) const;
  // The stored bytes as u8 [nbytes], always a view.
  Tensor bytes(std::string_view name) const;
  // Tells the system that the pages of a tensor, or of its bytes [begin, end), are not needed any
  // longer.  They are read again when they are touched.  Throws InvalidArgument for bytes outside
  // the tensor.
  void release(std::string_view name) const;
  void release(std::string_view name, int64_t begin, int64_t end) const;
  // Tells the system that the tensor, or its bytes [begin, end), are read next.  It fetches them
  // from the disk meanwhile, and nobody waits.  Throws as release() does.
  void will_read(std::string_view name) const;
  void will_read(std::string_view name, int64_t begin, int64_t end) const;
  // The bytes that readers have counted so far.  Checkpoint::load_layer counts what it copies.
  int64_t bytes_read() const;
  void count_read(int64_t bytes) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The path of the file that Safetensors or Checkpoint has mapped at an address, such as si_addr of
// a SIGBUS; nullptr where there is none.  It is async-signal-safe.  The text stays while the file
// is mapped.
const char* mapped_file_at(const void* address) noexcept;

// Writes all tensors, which must be on the CPU, to a temporary file beside `path` and renames it:
// readers see the whole file or none.  Throws InvalidArgument (a name given twice or reserved, an
// undefined tensor, one on a GPU), Unsupported (u4 has no name in the format) or Error (disk full,
// no permission) naming the path.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace moebius
