// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A mapped file that is truncated raises SIGBUS where it is read.  The library leaves that to its
// caller and names the file; the command reports it.
#include "app/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "app/commands.h"
#include "moebius/safetensors.h"
#include "tests/temp_dir.h"

namespace moebius::app {
namespace {

constexpr int64_t kBytes = 1 << 20;

std::string write_file(const TempDir& dir, const std::string& name) {
  const std::string path = (dir.path() / name).string();
  write_safetensors(path, {{"t", Tensor::zeros({kBytes}, DType::kU8)}});
  return path;
}

// Reads the last byte of a file of which only the first page is left.
void read_truncated(const std::string& path) {
  const Safetensors file(path);
  const Tensor tensor = file.bytes("t");
  std::filesystem::resize_file(path, 4096);
  const volatile std::byte last = tensor.bytes()[kBytes - 1];
  static_cast<void>(last);
}

TEST(Signals, ATruncatedFileIsNamed) {
  const TempDir dir;
  const std::string path = write_file(dir, "a\x1b[2J.safetensors");
  EXPECT_EXIT(
      {
        handle_signals();
        read_truncated(path);
      },
      ::testing::ExitedWithCode(kRunFailed),
      "^moebius: .*/a\\\\x1b\\[2J\\.safetensors was truncated while it was read\n$");
}

TEST(Signals, TheLibraryLeavesThemToItsCaller) {
  const TempDir dir;
  const std::string path = write_file(dir, "a.safetensors");
  EXPECT_EXIT(read_truncated(path), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST(Signals, OthersEndTheProcessAsBefore) {
  EXPECT_EXIT(
      {
        handle_signals();
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST(MappedFileAt, KnowsWhatIsMapped) {
  const TempDir dir;
  const std::string paths[] = {write_file(dir, "a.safetensors"), write_file(dir, "b.safetensors")};
  const std::byte* gone = nullptr;
  for (int round = 0; round < 3; ++round) {
    const Safetensors a(paths[0]);
    const Safetensors b(paths[1]);
    EXPECT_STREQ(mapped_file_at(a.bytes("t").bytes()), paths[0].c_str());
    gone = b.bytes("t").bytes();
    EXPECT_STREQ(mapped_file_at(gone + kBytes - 1), paths[1].c_str());
    EXPECT_EQ(mapped_file_at(&round), nullptr);
    EXPECT_EQ(mapped_file_at(nullptr), nullptr);
  }
  EXPECT_EQ(mapped_file_at(gone), nullptr);
}

}  // namespace
}  // namespace moebius::app
