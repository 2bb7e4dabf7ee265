// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Files that the checkpoint tests read and write.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/error_text.h"
#include "tests/temp_dir.h"

namespace moebius::testing {

namespace fs = std::filesystem;

// Why the file is removed first: some file systems wait for the disk when a file is overwritten.
inline void write_text(const fs::path& path, std::string_view text) {
  fs::remove(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The bytes of a safetensors file: the header's length, the header and the data.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file.append(header).append(data);
}

// The message of the Error that `call` throws when files cannot exceed max_bytes, as on a full
// disk.
template <typename Call>
std::string message_on_full_disk(rlim_t max_bytes, const Call& call) {
  struct rlimit limit {};
  EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const struct rlimit small { max_bytes, limit.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of<Error>(call);
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  return message;
}

// The folder of checkpoints with expected outputs.
inline fs::path fixtures() {
  const char* folder = std::getenv("MOEBIUS_FIXTURES");
  return folder != nullptr ? fs::path(folder) : fs::path("../shared/fixtures");
}

}  // namespace moebius::testing
