// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <system_error>

#include "checkpoint/mapped_file.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius {

using namespace checkpoint;
namespace fs = std::filesystem;

struct Safetensors::State {
  // This says where a tensor is, and whether anybody has asked for it.
  struct Place {
    size_t shard = 0;
    mutable std::atomic<bool> is_read = false;

    explicit Place(size_t idx) : shard(idx) {}
  };

  struct Shard {
    fs::path path;
    std::shared_ptr<const MappedFile> file;  // null until a tensor of it is touched
    SafetensorsHeader header;

    void open() {
      auto mapped = MappedFile::open(path);
      header = parse_safetensors_header({mapped->data(), mapped->size()}, path.string());
      file = std::move(mapped);
    }
  };

  fs::path path;  // the file, or the index of a sharded set
  std::vector<std::unique_ptr<Shard>> shards;
  std::map<std::string, Place, std::less<>> shard_of;
  std::mutex mutex;  // guards the opening of shards
  std::atomic<int64_t> bytes_read{0};

  void open_single() {
    shards.push_back(std::make_unique<Shard>());
    shards.back()->path = path;
    shards.back()->open();
    for (const auto& [name, entry] : shards.back()->header.entries) {
      shard_of.try_emplace(name, 0);
    }
  }

  void open_index() {
    std::map<std::string, size_t, std::less<>> shard_idx;
    for (const auto& [name, file] : read_safetensors_index(path)) {
      const auto [it, is_new] = shard_idx.emplace(file, shards.size());
      if (is_new) {
        shards.push_back(std::make_unique<Shard>());
        shards.back()->path = path.parent_path() / file;
      }
      shard_of.try_emplace(name, it->second);
    }
  }

  // Opens the shard on first use and checks it against the index.  `wanted` is a tensor of it.
  const Shard& opened(size_t idx, std::string_view wanted) {
    const std::lock_guard lock(mutex);
    Shard& shard = *shards[idx];
    if (shard.file != nullptr) {
      return shard;
    }
    if (std::error_code error; !fs::exists(shard.path, error)) {
      throw InvalidArgument(fmt::format("{}: shard {}, which holds {}, {}", path.string(),
                                        in_quotes(shard.path.filename().string()),
                                        in_quotes(wanted),
                                        error ? error.message() : missing_file_text(shard.path)));
    }
    shard.open();
    for (const auto& [name, owner] : shard_of) {
      if (owner.shard == idx && shard.header.entries.count(name) == 0) {
        shard.file = nullptr;
        throw InvalidArgument(fmt::format("{}: tensor {} is missing, {} says it is here{}",
                                          shard.path.string(), in_quotes(name),
                                          path.filename().string(), real_place(name, idx)));
      }
    }
    return shard;
  }

  // Where a tensor is that is not in shard `idx`, for messages.  Shards that cannot be read do not
  // matter here.
  std::string real_place(const std::string& name, size_t idx) const {
    for (size_t other = 0; other < shards.size(); ++other) {
      try {
        Shard shard{shards[other]->path, nullptr, {}};
        if (other != idx) {
          shard.open();
        }
        if (shard.header.entries.count(name) > 0) {
          return fmt::format(", but it is in {}", in_quotes(shard.path.filename().string()));
        }
      } catch (const Error&) {
        continue;
      }
    }
    return "";
  }

  // What a message about a tensor that is nowhere adds where an index would have been ignored.
  std::string beside() const {
    const fs::path index = path.parent_path() / kIndexFile;
    std::error_code error;
    return path.filename() == kSingleFile && fs::exists(index, error)
               ? fmt::format("; {} beside it is not read", kIndexFile)
               : "";
  }

  const Place& place_of(std::string_view name) const {
    const auto it = shard_of.find(name);
    if (it == shard_of.end()) {
      throw InvalidArgument(
          fmt::format("{}: tensor {} is missing{}", path.string(), in_quotes(name), beside()));
    }
    return it->second;
  }

  struct Found {
    const Shard& shard;
    const SafetensorsEntry& entry;
    std::byte* data;

    uint64_t size() const { return entry.end - entry.begin; }
    uint64_t first_byte() const { return shard.header.data_begin + entry.begin; }
  };
  Found find(std::string_view name) {
    const Place& place = place_of(name);
    place.is_read.store(true, std::memory_order_relaxed);
    const Shard& shard = opened(place.shard, name);
    const SafetensorsEntry& entry = shard.header.entries.find(name)->second;
    const std::byte* data = shard.file->data() + shard.header.data_begin + entry.begin;
    return {shard, entry, const_cast<std::byte*>(data)};
  }

  static std::shared_ptr<void> owner(const Found& found) {
    return std::const_pointer_cast<MappedFile>(found.shard.file);
  }
};

Safetensors::Safetensors(const fs::path& path) : state_(std::make_unique<State>()) {
  std::error_code error;
  state_->path = fs::is_directory(path, error) ? weights_file(path) : path;
  if (state_->path.extension() == ".json") {
    state_->open_index();
  } else {
    state_->open_single();
  }
}

Safetensors::~Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> result;
  result.reserve(state_->shard_of.size());
  for (const auto& [name, shard] : state_->shard_of) {
    result.push_back(name);
  }
  return result;
}

std::vector<std::string> Safetensors::names(std::string_view prefix) const {
  std::vector<std::string> result;
  for (auto it = state_->shard_of.lower_bound(prefix);
       it != state_->shard_of.end() && it->first.starts_with(prefix); ++it) {
    result.push_back(it->first);
  }
  return result;
}

bool Safetensors::was_read(std::string_view name) const {
  return state_->place_of(name).is_read.load(std::memory_order_relaxed);
}

bool Safetensors::contains(std::string_view name) const {
  return state_->shard_of.find(name) != state_->shard_of.end();
}

const SafetensorsEntry& Safetensors::entry(std::string_view name) const {
  return state_->find(name).entry;
}

fs::path Safetensors::file_of(std::string_view name) const {
  return state_->shards[state_->place_of(name).shard]->path;
}

std::vector<fs::path> Safetensors::files() const {
  std::vector<fs::path> result;
  for (const auto& shard : state_->shards) {
    result.push_back(shard->path);
  }
  return result;
}

Tensor Safetensors::tensor(std::string_view name) const {
  const State::Found found = state_->find(name);
  const SafetensorsDType& stored = *find_safetensors_dtype(found.entry.dtype_name);
  if (stored.passed_through) {
    return bytes(name);
  }
  const auto alignment = static_cast<uintptr_t>(std::max(stored.bits / 8, 1));
  if (reinterpret_cast<uintptr_t>(found.data) % alignment == 0) {
    return Tensor::share(State::owner(found), found.data, found.entry.shape, stored.dtype);
  }
  Tensor copy = Tensor::empty(found.entry.shape, stored.dtype);
  std::memcpy(copy.raw(), found.data, static_cast<size_t>(copy.nbytes()));
  return copy;
}

Tensor Safetensors::bytes(std::string_view name) const {
  const State::Found found = state_->find(name);
  const auto size = static_cast<int64_t>(found.entry.end - found.entry.begin);
  return Tensor::share(State::owner(found), found.data, Shape{size}, DType::kU8);
}

namespace {

// The bytes [begin, end) of a tensor of `size` bytes must be in it.
void expect_inside(std::string_view name, int64_t begin, int64_t end, uint64_t size) {
  expect(0 <= begin && begin <= end && static_cast<uint64_t>(end) <= size, [&] {
    return fmt::format("bytes [{}, {}) are outside tensor {} of {} bytes", begin, end,
                       in_quotes(name), size);
  });
}

}  // namespace

void Safetensors::release(std::string_view name) const {
  const State::Found found = state_->find(name);
  found.shard.file->release(found.first_byte(), found.first_byte() + found.size());
}

void Safetensors::release(std::string_view name, int64_t begin, int64_t end) const {
  const State::Found found = state_->find(name);
  expect_inside(name, begin, end, found.size());
  found.shard.file->release(found.first_byte() + static_cast<uint64_t>(begin),
                            found.first_byte() + static_cast<uint64_t>(end));
}

void Safetensors::will_read(std::string_view name) const {
  will_read(name, 0, static_cast<int64_t>(state_->find(name).size()));
}

void Safetensors::will_read(std::string_view name, int64_t begin, int64_t end) const {
  const State::Found found = state_->find(name);
  expect_inside(name, begin, end, found.size());
  found.shard.file->will_read(found.first_byte() + static_cast<uint64_t>(begin),
                              found.first_byte() + static_cast<uint64_t>(end));
}

void Safetensors::count_read(int64_t bytes) const {
  state_->bytes_read.fetch_add(bytes, std::memory_order_relaxed);
}

int64_t Safetensors::bytes_read() const {
  return state_->bytes_read.load(std::memory_order_relaxed);
}

}  // namespace moebius
