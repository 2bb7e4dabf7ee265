// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the JSON parts of safetensors: the header of a file and the index of a sharded set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "moebius/safetensors.h"

namespace moebius::checkpoint {

using EntryMap = std::map<std::string, SafetensorsEntry, std::less<>>;

struct SafetensorsHeader {
  EntryMap entries;
  uint64_t data_begin = 0;  // byte of the file at which the data section begins
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation

// Parses and checks all of a file but its data.  `file` names it in messages.  Throws
// InvalidArgument for what Safetensors lists.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> contents,
                                           std::string_view file);

// The file name of every tensor, by the tensor's name.
using ShardMap = std::map<std::string, std::string, std::less<>>;
// Reads weight_map of model.safetensors.index.json.  Throws InvalidArgument for an index that
// cannot be read or is too long, invalid JSON, duplicates, a missing weight_map, and a file name
// that leads out of the directory.
ShardMap read_safetensors_index(const std::filesystem::path& path);

struct SafetensorsDType {
  std::string_view name;  // as headers spell it
  int bits;               // of an element
  DType dtype;
  bool passed_through = false;  // the library has no such dtype: the tensor is handled as bytes, u8
};
const SafetensorsDType* find_safetensors_dtype(std::string_view name);  // null when unknown
// Throws Unsupported for u4, which the format lacks.
const SafetensorsDType& safetensors_dtype(DType dtype);

// Throws InvalidArgument("FILE: MESSAGE").
[[noreturn]] void refuse_file(std::string_view file, std::string_view message);
// The most bytes of a name or number that messages show.
inline constexpr size_t kShownBytes = 120;
// A name as messages show it: in quotes, printable, and shortened.
std::string in_quotes(std::string_view name);

}  // namespace moebius::checkpoint
