// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: a file written tensor by tensor; AtomicFile: a file that appears whole or not.
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
// nothing remains, not even of a process that is killed, where the file system has files without
// names. Throws Error naming path and system error.
class AtomicFile {
 public:
  // total_bytes: reserved at once where the file system can, so a full disk is noticed early.
  AtomicFile(std::filesystem::path path, uint64_t total_bytes);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  // Data and name are on disk when this returns.
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
  bool is_named_ = true;  // temporary_ is there
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t nbytes() const;
};

class SafetensorsWriter {
 public:
  // Throws InvalidArgument: a name twice or reserved.  Throws Unsupported: a dtype (u4) that the
  // format lacks.
  SafetensorsWriter(const std::filesystem::path& path,
                    std::vector<StoredTensor> specs,
                    const std::map<std::string, std::string>& metadata);

  // In the order of the file: larger elements first, so that all are aligned.
  const std::vector<StoredTensor>& specs() const { return specs_; }
  // The next bytes of the data, the tensors of specs() one after the other.
  void write(std::span<const std::byte> data);
  // REQUIRES: everything written.
  void commit();
  int64_t nbytes() const { return file_.nbytes(); }

 private:
  std::vector<StoredTensor> specs_;
  std::string header_;  // with its length
  uint64_t remaining_;  // bytes of data
  AtomicFile file_;
};

}  // namespace moebius::checkpoint
