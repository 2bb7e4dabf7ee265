// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

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
  const auto size = static_cast<uint64_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data == MAP_FAILED) {
      fail(path);
    }
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::release(uint64_t begin, uint64_t end) const {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = std::min((end + page - 1) / page * page, size_);
  if (begin < end) {
    // This is only advice: a failure costs memory, not correctness.
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

}  // namespace moebius::checkpoint
