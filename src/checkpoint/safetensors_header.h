// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The JSON parts of safetensors: a file's header and the index of a sharded set.
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
  uint64_t data_begin = 0;  // in the file
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation

// Parses and checks all of a file but its data.  `file` names it in messages. Throws
// InvalidArgument: see Safetensors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> contents,
                                           std::string_view file);

// weight_map of model.safetensors.index.json: tensor name -> file name.  Throws InvalidArgument:
// a file that cannot be read or is too long, invalid JSON, duplicates, no weight_map, a file name
// that leads out of the directory.
using ShardMap = std::map<std::string, std::string, std::less<>>;
ShardMap read_safetensors_index(const std::filesystem::path& path);

// The dtype's name in a header, bits of an element, and our dtype (u8 where we have none).
struct SafetensorsDType {
  std::string_view name;
  int bits;
  DType dtype;
  bool passed_through = false;  // no dtype of ours: handled as bytes
};
const SafetensorsDType* find_safetensors_dtype(std::string_view name);  // null when unknown
// Throws Unsupported for u4, which the format lacks.
const SafetensorsDType& safetensors_dtype(DType dtype);

// Throws InvalidArgument("FILE: MESSAGE").
[[noreturn]] void refuse_file(std::string_view file, std::string_view message);
// A name as messages show it: in quotes, control characters replaced, shortened.
std::string in_quotes(std::string_view name);

}  // namespace moebius::checkpoint
