// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_caches.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace moebius {
namespace {

class CacheFolder {
 public:
  explicit CacheFolder(const std::string& name) : path_(::testing::TempDir() + name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~CacheFolder() { std::filesystem::remove_all(path_); }

  void add(int level, const std::string& type, const std::string& size) {
    const std::string cache = path_ + "/index" + std::to_string(count_++);
    std::filesystem::create_directory(cache);
    std::ofstream(cache + "/level") << level << "\n";
    std::ofstream(cache + "/type") << type << "\n";
    std::ofstream(cache + "/size") << size << "\n";
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int count_ = 0;
};

TEST(CpuCaches, AreReadAsLinuxListsThem) {
  CacheFolder folder("caches");
  folder.add(1, "Data", "48K");
  folder.add(1, "Instruction", "32K");
  folder.add(2, "Unified", "2048K");
  folder.add(3, "Unified", "300M");
  const CpuCaches caches = read_cpu_caches(folder.path());
  EXPECT_EQ(caches.l1_data_bytes, 48 << 10);
  EXPECT_EQ(caches.l2_bytes, 2 << 20);
  EXPECT_EQ(caches.last_level_bytes, 300 << 20);
}

TEST(CpuCaches, WhatIsNotThereIsZero) {
  EXPECT_EQ(read_cpu_caches("/nowhere").last_level_bytes, 0);
  CacheFolder folder("odd_caches");
  folder.add(1, "Data", "many");
  folder.add(2, "Unified", "1M");
  const CpuCaches caches = read_cpu_caches(folder.path());
  EXPECT_EQ(caches.l1_data_bytes, 0);
  EXPECT_EQ(caches.last_level_bytes, 1 << 20);
}

}  // namespace
}  // namespace moebius
