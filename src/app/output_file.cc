// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "moebius/error.h"

namespace moebius::app {

namespace fs = std::filesystem;

void expect_writable(std::string_view option, const std::string& path) {
  if (path.empty()) {
    return;
  }
  const auto refuse = [&](std::string_view why) {
    throw InvalidArgument(fmt::format("{} {}: {}", option, path, why));
  };
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    refuse("is a folder, expected a file");
  }
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
    refuse("is a device or a pipe, expected a file");  // a rename would replace it
  }
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) {
    folder = ".";
  }
  if (!fs::is_directory(folder, ignored)) {
    refuse(fmt::format("there is no folder {}", folder.string()));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(fmt::format("cannot write in {}: {}", folder.string(), std::strerror(errno)));
  }
}

void write_text(const std::string& path, std::string_view text) {
  if (path.empty()) {
    return;
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) {
    fs::rename(temporary, path, error);
  }
  if (!file || error) {
    const int code = error ? error.value() : errno;
    fs::remove(temporary, error);
    throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(code)));
  }
}

}  // namespace moebius::app
