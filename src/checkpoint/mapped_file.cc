// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "moebius/error.h"
#include "moebius/safetensors.h"

namespace moebius {

namespace checkpoint {

// An address range that a file is, or was, mapped at.  Ranges form a list that only grows, so that
// a signal handler can walk it while other threads map and unmap; one that is empty is used again.
struct MappedRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> size{0};  // 0 while nothing is mapped
  std::string path;                // changes only while size is 0
  bool is_taken = false;           // guarded by ranges_mutex
  MappedRange* next = nullptr;     // never changes once the range is in the list
};

namespace {

std::atomic<MappedRange*> first_range{nullptr};
std::mutex ranges_mutex;  // of those who change the list

MappedRange* take_range(std::string path) {
  const std::lock_guard lock(ranges_mutex);
  MappedRange* range = first_range.load(std::memory_order_relaxed);
  while (range != nullptr && range->is_taken) {
    range = range->next;
  }
  if (range == nullptr) {
    range = new MappedRange;  // lives as long as the process
    range->next = first_range.load(std::memory_order_relaxed);
    first_range.store(range, std::memory_order_release);  // pairs with mapped_file_at: its members
  }
  range->is_taken = true;
  range->path = std::move(path);
  return range;
}

void give_back(MappedRange* range) {
  const std::lock_guard lock(ranges_mutex);
  range->size.store(0, std::memory_order_release);
  range->is_taken = false;
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw InvalidArgument(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Why O_NONBLOCK: opening a pipe must not wait for its writer; it is refused below.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) {
    fail(path);
  }
  if (!S_ISREG(info.st_mode)) {
    throw InvalidArgument(fmt::format("cannot open {}: not a regular file", path.string()));
  }
  const std::shared_ptr<MappedFile> mapped(new MappedFile(path));
  mapped->size_ = static_cast<uint64_t>(info.st_size);
  if (mapped->size_ > 0) {
    void* data = ::mmap(nullptr, mapped->size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data == MAP_FAILED) {
      fail(path);
    }
    mapped->data_ = static_cast<const std::byte*>(data);
    mapped->range_->begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
    // pairs with mapped_file_at: begin and path
    mapped->range_->size.store(mapped->size_, std::memory_order_release);
  }
  return mapped;
}

MappedFile::MappedFile(const std::filesystem::path& path) : range_(take_range(path.string())) {}

MappedFile::~MappedFile() {
  give_back(range_);
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::will_read(uint64_t begin, uint64_t end) const {
  advise(begin, end, MADV_WILLNEED);
}

void MappedFile::release(uint64_t begin, uint64_t end) const {
  advise(begin, end, MADV_DONTNEED);
}

// This is only advice: a failure costs time or memory, not correctness.
void MappedFile::advise(uint64_t begin, uint64_t end, int advice) const {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = std::min((end + page - 1) / page * page, size_);
  if (begin < end) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, advice);
  }
}

}  // namespace checkpoint

// A range that holds the address of a fault does not change meanwhile, since the reader that has
// faulted keeps its mapping.  Any other may, and then is not taken for it, since its size is
// loaded first and compared again.
const char* mapped_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const checkpoint::MappedRange* range =
           checkpoint::first_range.load(std::memory_order_acquire);
       range != nullptr; range = range->next) {
    const uintptr_t size = range->size.load(std::memory_order_acquire);
    const uintptr_t begin = range->begin.load(std::memory_order_acquire);
    if (at - begin < size && size == range->size.load(std::memory_order_relaxed)) {
      return range->path.c_str();
    }
  }
  return nullptr;
}

}  // namespace moebius
