// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: writes a file tensor by tensor.  AtomicFile: a file that appears as a whole or
// not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "moebius/tensor.h"

namespace moebius::checkpoint {

// Writes to a temporary file in the folder of `path`; commit() renames it.  Without commit()
// nothing remains; where the file system has files without names, that holds even when the process
// is killed.  All members throw Error naming the path and the system's error.
class AtomicFile {
 public:
  // Reserves total_bytes at once where the file system can, so that a full disk is noticed early.
  AtomicFile(std::filesystem::path path, uint64_t total_bytes);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  // When this returns, data and name are on disk.
  void commit();
  int64_t nbytes() const { return static_cast<int64_t>(total_bytes_); }

 private:
  [[noreturn]] void fail(const char* action) const;
  void discard();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  uint64_t total_bytes_;
  uint64_t written_ = 0;
  int fd_ = -1;
  bool is_named_ = true;  // whether temporary_ exists
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t nbytes() const;
};

class SafetensorsWriter {
 public:
  // Throws InvalidArgument for a name that is given twice or reserved, and Unsupported for u4,
  // which the format lacks.
  SafetensorsWriter(const std::filesystem::path& path,
                    std::vector<StoredTensor> specs,
                    const std::map<std::string, std::string>& metadata);

  // The tensors in the order of the file: those of larger elements come first, so that all are
  // aligned.
  const std::vector<StoredTensor>& specs() const { return specs_; }
  // Appends to the data, which is the tensors of specs() one after the other.
  void write(std::span<const std::byte> data);
  // REQUIRES: all of the data is written.
  void commit();
  int64_t nbytes() const { return file_.nbytes(); }

 private:
  std::vector<StoredTensor> specs_;
  std::string header_;  // including its length
  uint64_t remaining_;  // bytes of the data that are not written yet
  AtomicFile file_;
};

}  // namespace moebius::checkpoint
