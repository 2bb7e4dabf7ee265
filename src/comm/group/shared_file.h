// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes of a machine map: an anonymous file, and how one process hands it
// to another.
//
// Why an anonymous file: it has no name that anybody could leave behind, it goes with the last
// process that holds it, however that ends, and it does not lie in /dev/shm, which containers keep
// small.
// Why it is handed over through a socket: another way would be /proc/<pid>/fd, which the system
// denies among users, containers and processes that may not be traced.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moebius::comm {

// A descriptor, closed by the destructor.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // New memory of zeros.  It takes pages only where it is touched.  Throws Unsupported.
  static File make_memory(int64_t bytes);
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A file's memory in this process.  The destructor unmaps it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const File& file, int64_t bytes);  // throws Unsupported
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Takes the pages of [begin, end) now, near the calling thread, so that too little memory is an
// error here and not a signal later.  Throws OutOfMemory and Unsupported.
void reserve_memory(const File& file, int64_t begin, int64_t end);

// A socket to which other processes of the machine send files.  Its name is abstract (unix(7)), so
// it vanishes with its process.
class FileMailbox {
 public:
  // Made of bytes, so that it can be sent to others.  Who does not know the secret sends in vain.
  struct Address {
    std::array<unsigned char, 16> name{};
    std::array<unsigned char, 16> secret{};
    uint64_t network = 0;  // the namespace in which the name can be found
  };

  FileMailbox();  // throws Unsupported
  const Address& address() const { return address_; }
  // A file that has come; one that is not open when none has.  It does not wait.
  File receive();

 private:
  Address address_;
  File socket_;
};

// False when the mailbox does not take it, so that the caller tries again until its deadline.
// Throws Unsupported where the system does not allow it.
bool send_file(const FileMailbox::Address& to, const File& file);

}  // namespace moebius::comm
