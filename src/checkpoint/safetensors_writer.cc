// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"
#include "moebius/safetensors.h"

namespace moebius::checkpoint {

namespace fs = std::filesystem;

namespace {

// The header's length and the header, padded with spaces so that the data starts at a multiple of
// 64 bytes.  Sorts `specs` by the size of their elements.
std::string make_header(std::vector<StoredTensor>& specs,
                        const std::map<std::string, std::string>& metadata) {
  std::stable_sort(specs.begin(), specs.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return bits(a.dtype) > bits(b.dtype);
  });
  // Why ordered_json: the header lists the tensors in the order of their data.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::set<std::string_view> names{"__metadata__"};
  int64_t offset = 0;
  for (const StoredTensor& spec : specs) {
    expect(names.insert(spec.name).second, [&] {
      return fmt::format("tensor name {} is {}", in_quotes(spec.name),
                         spec.name == "__metadata__" ? "reserved" : "given twice");
    });
    std::vector<int64_t> dims;
    for (int i = 0; i < spec.shape.size(); ++i) {
      dims.push_back(spec.shape[i]);
    }
    nlohmann::ordered_json& entry = header[spec.name];
    entry["dtype"] = safetensors_dtype(spec.dtype).name;
    entry["shape"] = dims;
    entry["data_offsets"] = {offset, offset + spec.nbytes()};
    offset += spec.nbytes();
  }
  std::string text = header.dump();
  constexpr size_t kAlignment = 64;
  text.resize((text.size() + 8 + kAlignment - 1) / kAlignment * kAlignment - 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

uint64_t data_bytes(const std::vector<StoredTensor>& specs) {
  uint64_t total = 0;
  for (const StoredTensor& spec : specs) {
    total += static_cast<uint64_t>(spec.nbytes());
  }
  return total;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string link_of(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

// Opens a file without a name, which ends with its process.  Returns -1 where the file system has
// no such files, or where this one could not be named later.
int open_unnamed(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (fd >= 0 && ::access(link_of(fd).c_str(), F_OK) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path, uint64_t total_bytes)
    : path_(std::move(path)), total_bytes_(total_bytes) {
  static std::atomic<int> counter{0};
  // Why not path_ with a suffix: path_ may be as long as names can be.
  temporary_ = folder_of(path_) / fmt::format(".moebius-{}-{}.tmp", ::getpid(), counter++);
  fd_ = open_unnamed(folder_of(path_));
  is_named_ = fd_ < 0;
  if (is_named_) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) {
    fail("create");
  }
  if (total_bytes_ > 0 && ::fallocate(fd_, 0, 0, static_cast<off_t>(total_bytes_)) != 0 &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
    const int reason = errno;
    discard();
    errno = reason;
    fail("reserve");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    discard();
  }
}

void AtomicFile::discard() {
  ::close(fd_);
  fd_ = -1;
  if (is_named_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* action) const {
  throw Error(fmt::format("cannot {} {}: {} ({} of {} bytes written)", action, path_.string(),
                          std::strerror(errno), written_, total_bytes_));
}

void AtomicFile::write(std::span<const std::byte> data) {
  // Why: the kernel writes at most 2 GiB at a time.
  constexpr size_t kMaxWrite = size_t{1} << 30;
  while (!data.empty()) {
    const ssize_t n = ::write(fd_, data.data(), std::min(data.size(), kMaxWrite));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      fail("write");
    }
    written_ += static_cast<uint64_t>(n);
    data = data.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) {
    fail("write");
  }
  if (!is_named_) {  // first a temporary name, since a link cannot replace what is at path_
    if (::linkat(AT_FDCWD, link_of(fd_).c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      fail("create");
    }
    is_named_ = true;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("create");
  }
  ::close(fd_);
  fd_ = -1;
  // The new name is on disk when the folder is.  File systems that cannot sync folders need no
  // help.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

int64_t StoredTensor::nbytes() const {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.size(); ++i) {
    rows *= shape[i];
  }
  return shape.size() == 0 ? bits(dtype) / 8 : rows * row_bytes(dtype, shape.back());
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path,
                                     std::vector<StoredTensor> specs,
                                     const std::map<std::string, std::string>& metadata)
    : specs_(std::move(specs)),
      header_(make_header(specs_, metadata)),
      remaining_(data_bytes(specs_)),
      file_(path, header_.size() + remaining_) {
  file_.write(std::as_bytes(std::span(header_)));
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  assert(data.size() <= remaining_);
  remaining_ -= data.size();
  file_.write(data);
}

void SafetensorsWriter::commit() {
  assert(remaining_ == 0);
  file_.commit();
}

}  // namespace moebius::checkpoint

namespace moebius {

using namespace checkpoint;

void write_safetensors(const fs::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::map<std::string_view, const Tensor*> by_name;
  std::vector<StoredTensor> specs;
  for (const auto& [name, tensor] : tensors) {
    expect_defined(tensor, in_quotes(name));
    expect(tensor.device().is_cpu(), [&stored = name, &value = tensor] {
      return fmt::format("tensor {} is on {}, expected cpu", in_quotes(stored),
                         to_string(value.device()));
    });
    specs.push_back({name, tensor.dtype(), tensor.shape()});
    by_name.emplace(name, &tensor);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const StoredTensor& spec : writer.specs()) {
    const Tensor& tensor = *by_name.at(spec.name);
    writer.write({tensor.bytes(), static_cast<size_t>(tensor.nbytes())});
  }
  writer.commit();
}

}  // namespace moebius
