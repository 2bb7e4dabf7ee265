// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MappedFile: maps a whole file into memory, read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace moebius::checkpoint {

struct MappedRange;

class MappedFile {
 public:
  // Throws InvalidArgument naming the path where it is missing, unreadable or no regular file.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The size when the file was opened.  If the file is truncated later, reading behind its end
  // raises SIGBUS; see mapped_file_at().
  uint64_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  // Asks the system to fetch the pages that hold [begin, end), and does not wait for them.
  void will_read(uint64_t begin, uint64_t end) const;
  // Drops the pages that hold [begin, end); they are read again when touched.
  void release(uint64_t begin, uint64_t end) const;

 private:
  explicit MappedFile(const std::filesystem::path& path);
  // Gives madvise() advice about the pages that hold [begin, end).
  void advise(uint64_t begin, uint64_t end, int advice) const;

  MappedRange* range_;               // for mapped_file_at()
  const std::byte* data_ = nullptr;  // null when the file is empty
  uint64_t size_ = 0;
};

}  // namespace moebius::checkpoint
