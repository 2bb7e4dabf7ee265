// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/shared_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/allocate.h"
#include "moebius/error.h"

namespace moebius::comm {

namespace {

[[noreturn]] void fail_system(std::string_view what, int error) {
  throw Unsupported(fmt::format("memory shared by processes: {}: {}", what, std::strerror(error)));
}

// The abstract socket name of a mailbox.
socklen_t fill_name(const FileMailbox::Address& address, sockaddr_un& socket_address) {
  socket_address.sun_family = AF_UNIX;
  const std::string name = fmt::format("moebius/file/{:02x}", fmt::join(address.name, ""));
  name.copy(socket_address.sun_path + 1, sizeof(socket_address.sun_path) - 1);  // after a zero byte
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

File make_socket() {
  File made(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.is_open()) {
    fail_system("socket", errno);
  }
  return made;
}

// A message that is a secret with a descriptor.
struct Parcel {
  std::array<unsigned char, 16> secret{};
  iovec part{secret.data(), secret.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};

  Parcel() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;
};

}  // namespace

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

File File::make_memory(int64_t bytes) {
  File file(memfd_create("moebius", MFD_CLOEXEC));
  if (!file.is_open()) {
    fail_system("memfd_create", errno);
  }
  if (ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) {
    fail_system(fmt::format("ftruncate to {} bytes", bytes), errno);
  }
  return file;
}

Mapping::Mapping(const File& file, int64_t bytes) : bytes_(bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, file.fd(), 0);
  if (data == MAP_FAILED) {
    fail_system(fmt::format("mmap of {} bytes", bytes), errno);
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, static_cast<size_t>(bytes_));
  }
}

void reserve_memory(const File& file, int64_t begin, int64_t end) {
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(file.fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  }
  if (error == ENOSPC || error == ENOMEM) {
    throw_out_of_memory(end - begin, Device::cpu(), std::strerror(error));
  }
  if (error != 0) {
    fail_system(fmt::format("posix_fallocate of {} bytes", end - begin), error);
  }
}

FileMailbox::FileMailbox() : socket_(make_socket()) {
  if (getrandom(address_.name.data(), address_.name.size(), 0) < 0 ||
      getrandom(address_.secret.data(), address_.secret.size(), 0) < 0) {
    fail_system("getrandom", errno);
  }
  struct stat status {};
  if (stat("/proc/self/ns/net", &status) == 0) {
    address_.network = status.st_ino;
  }
  sockaddr_un name{};
  const socklen_t length = fill_name(address_, name);
  if (bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    fail_system("bind", errno);
  }
}

File FileMailbox::receive() {
  for (;;) {
    Parcel parcel;
    const ssize_t bytes = recvmsg(socket_.fd(), &parcel.message, MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno == EINTR) {
      continue;
    }
    if (bytes < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        fail_system("recvmsg", errno);
      }
      return File();
    }
    File file;
    const cmsghdr* control = CMSG_FIRSTHDR(&parcel.message);
    if (control != nullptr && control->cmsg_level == SOL_SOCKET &&
        control->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control), sizeof(fd));
      file = File(fd);
    }
    // A stranger's message is dropped, with its file.
    if (file.is_open() && bytes == static_cast<ssize_t>(parcel.secret.size()) &&
        parcel.secret == address_.secret) {
      return file;
    }
  }
}

bool send_file(const FileMailbox::Address& to, const File& file) {
  const File from = make_socket();
  Parcel parcel;
  parcel.secret = to.secret;
  cmsghdr* control = CMSG_FIRSTHDR(&parcel.message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = file.fd();
  std::memcpy(CMSG_DATA(control), &fd, sizeof(fd));
  sockaddr_un name{};
  parcel.message.msg_namelen = fill_name(to, name);
  parcel.message.msg_name = &name;
  if (sendmsg(from.fd(), &parcel.message, MSG_NOSIGNAL) >= 0) {
    return true;
  }
  // Too much is under way, perhaps of others, or the mailbox is gone with its process.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ||
      errno == ENOBUFS || errno == ETOOMANYREFS) {
    return false;
  }
  fail_system("sendmsg", errno);
}

}  // namespace moebius::comm
