// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/shared_segments.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace moebius::comm {
namespace {

constexpr size_t kBytes = 4096;

// Makes a file in /dev/shm, which the destructor removes.
struct SharedFile {
  explicit SharedFile(const std::string& name)
      : path("/dev/shm/" + name + ".test." + std::to_string(::getpid())) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_GE(fd, 0) << path;
    EXPECT_EQ(::ftruncate(fd, kBytes), 0);
    data = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ::close(fd);
  }
  ~SharedFile() {
    unmap();
    ::unlink(path.c_str());
  }
  void unmap() {
    if (data != nullptr) {
      ::munmap(data, kBytes);
      data = nullptr;
    }
  }
  bool exists() const { return ::access(path.c_str(), F_OK) == 0; }

  std::string path;
  char* data = nullptr;
};

TEST(SharedSegments, OnlyThoseThatAreMappedAreRemoved) {
  SharedFile own("vader_segment.1");
  SharedFile newer("sm_segment.1");
  SharedFile of_another_job("vader_segment.2");
  of_another_job.unmap();
  const SharedFile other("somebody_else");
  remove_shared_segments();
  EXPECT_FALSE(own.exists());
  EXPECT_FALSE(newer.exists());
  EXPECT_TRUE(of_another_job.exists());
  EXPECT_TRUE(other.exists());
  own.data[0] = 1;  // what is mapped stays
  remove_shared_segments();
  EXPECT_EQ(own.data[0], 1);
}

}  // namespace
}  // namespace moebius::comm
