// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <system_error>

#include "checkpoint/safetensors_header.h"
#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// The commit that refs/main names, or else the only snapshot there is.
fs::path snapshot_name(const fs::path& directory) {
  std::string commit;
  std::ifstream(directory / "refs" / "main") >> commit;
  if (!commit.empty()) {
    return commit;
  }
  const std::vector<fs::path> snapshots = entries_of(directory / "snapshots");
  return snapshots.size() == 1 ? snapshots.front().filename() : fs::path();
}

}  // namespace

fs::path cached_snapshot(const fs::path& directory) {
  if (is_there(directory / kConfigFile) || !is_there(directory / "snapshots")) {
    return {};
  }
  const fs::path name = snapshot_name(directory);
  const fs::path snapshot = directory / "snapshots" / name.filename();
  return !name.empty() && is_there(snapshot) ? snapshot : fs::path();
}

void expect_no_cache_root(const fs::path& directory) {
  if (const fs::path snapshot = cached_snapshot(directory); !snapshot.empty()) {
    throw InvalidArgument(fmt::format("{} is the root of a model in a hub's cache; the model is {}",
                                      directory.string(), snapshot.string()));
  }
}

fs::path weights_file(const fs::path& directory) {
  for (const std::string_view name : {kSingleFile, kIndexFile}) {
    if (is_there(directory / name)) {
      return directory / name;
    }
  }
  expect_no_cache_root(directory);
  for (const std::string_view name : {kSingleFile, kIndexFile}) {
    if (std::error_code error; fs::is_symlink(directory / name, error)) {
      throw InvalidArgument(
          fmt::format("{} {}", (directory / name).string(), missing_file_text(directory / name)));
    }
  }
  const std::vector<std::string> shards = unused_shards(directory, {});
  throw InvalidArgument(
      fmt::format("{} has neither {} nor {}{}", directory.string(), kSingleFile, kIndexFile,
                  shards.empty() ? ""
                                 : fmt::format(", but {} that need an index, the first is {}",
                                               shards.size(), printable(shards.front()))));
}

std::string missing_file_text(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  return error ? "is missing" : fmt::format("is a link to {}, which is missing", target.string());
}

std::vector<std::string> unused_shards(const fs::path& directory,
                                       const std::vector<fs::path>& used) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(directory)) {
    const bool is_used = std::any_of(used.begin(), used.end(), [&](const fs::path& path) {
      return path.filename() == entry.filename();
    });
    if (entry.extension() == ".safetensors" && !is_used) {
      names.push_back(entry.filename().string());
    }
  }
  return names;
}

std::vector<fs::path> model_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const std::string_view name : {kConfigFile, kQuantConfigFile, kSingleFile, kIndexFile}) {
    files.push_back(directory / name);
  }
  std::error_code error;
  if (const fs::path index = files.back(); fs::exists(index, error)) {
    for (const auto& [tensor, shard] : read_safetensors_index(index)) {
      if (directory / shard != files.back()) {  // neighbours mostly share a shard
        files.push_back(directory / shard);
      }
    }
  }
  return files;
}

}  // namespace moebius::checkpoint
