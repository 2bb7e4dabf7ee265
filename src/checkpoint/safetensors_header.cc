// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

using nlohmann::json;

constexpr size_t kMaxStoredDims = 32;  // bounds the messages, which show shapes

constexpr std::array<SafetensorsDType, 22> kDTypes = {{
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, DType::kF8E5M2},
    {"I8", 8, DType::kI8},
    {"U8", 8, DType::kU8},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"BOOL", 8, DType::kBool},
    {"F4", 4, DType::kF4E2M1},
    {"F6_E3M2", 6, DType::kF6E3M2},
    {"F6_E2M3", 6, DType::kF6E2M3},
    {"F8_E8M0", 8, DType::kE8M0},
    {"I16", 16, DType::kU8, true},
    {"U16", 16, DType::kU8, true},
    {"U32", 32, DType::kU8, true},
    {"U64", 64, DType::kU8, true},
    {"F64", 64, DType::kU8, true},
    {"C64", 64, DType::kU8, true},
    {"F8_E4M3FNUZ", 8, DType::kU8, true},
    {"F8_E5M2FNUZ", 8, DType::kU8, true},
}};

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The fields of one tensor, which come in any order.
struct RawEntry {
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Merges the first dimensions where there are more than the four that Shape holds.  The row-major
// order of the elements stays the same.
Shape to_shape(const std::vector<uint64_t>& dims) {
  std::vector<int64_t> kept;
  const size_t merged = dims.size() > Shape::kMaxDims ? dims.size() - Shape::kMaxDims : 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = static_cast<int64_t>(dims[i]);
    if (i == 0 || i > merged) {
      kept.push_back(dim);
    } else {
      kept.front() *= dim;
    }
  }
  return Shape(std::span<const int64_t>(kept));
}

// Checks what does not depend on other tensors.
SafetensorsEntry make_entry(const RawEntry& raw, std::string_view file, std::string_view name) {
  const auto refuse = [&](std::string_view message) {
    refuse_file(file, fmt::format("tensor {}: {}", in_quotes(name), message));
  };
  if (!raw.dtype || !raw.shape || !raw.offsets) {
    refuse(fmt::format("{} is missing", !raw.dtype   ? "dtype"
                                        : !raw.shape ? "shape"
                                                     : "data_offsets"));
  }
  const SafetensorsDType* dtype = find_safetensors_dtype(*raw.dtype);
  if (dtype == nullptr) {
    refuse(fmt::format("dtype {} is not one of safetensors", in_quotes(*raw.dtype)));
  }
  if (raw.shape->size() > kMaxStoredDims) {
    refuse(fmt::format("shape has {} dimensions, expected at most {}", raw.shape->size(),
                       kMaxStoredDims));
  }
  if (raw.offsets->size() != 2) {
    refuse(fmt::format("data_offsets has {} values, expected 2", raw.offsets->size()));
  }
  const uint64_t begin = (*raw.offsets)[0];
  const uint64_t end = (*raw.offsets)[1];
  if (begin > end) {
    refuse(fmt::format("data_offsets begin at {}, after their end {}", begin, end));
  }
  // Dimensions of 0 are skipped, since they would hide an overflow of the others.
  uint64_t num_bits = static_cast<uint64_t>(dtype->bits);
  bool is_empty = false;
  bool overflow = false;
  for (const uint64_t dim : *raw.shape) {
    is_empty |= dim == 0;
    overflow |= __builtin_mul_overflow(num_bits, dim == 0 ? 1 : dim, &num_bits);
  }
  if (overflow || num_bits > uint64_t{1} << 62) {
    refuse(fmt::format("shape {} of {} has more bytes than can be addressed",
                       shape_text(*raw.shape), dtype->name));
  }
  num_bits = is_empty ? 0 : num_bits;
  const uint64_t pack = static_cast<uint64_t>(pack_factor(dtype->dtype));
  if (pack > 1 && (raw.shape->empty() || raw.shape->back() % pack != 0)) {
    refuse(fmt::format("last dimension of shape {} is not a multiple of {}, as {} needs",
                       shape_text(*raw.shape), pack, dtype->name));
  }
  if (num_bits / 8 != end - begin) {
    refuse(fmt::format("shape {} of {} is {} bytes, data_offsets [{}, {}] are {}",
                       shape_text(*raw.shape), dtype->name, num_bits / 8, begin, end, end - begin));
  }
  return {std::string(dtype->name), dtype->dtype, to_shape(*raw.shape), begin, end};
}

// Reads the JSON of a header: {"name": {"dtype": "..", "shape": [..], "data_offsets": [b, e]}}.
class HeaderSax : public nlohmann::json_sax<json> {
 public:
  HeaderSax(std::string_view file, EntryMap& entries) : file_(file), entries_(entries) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(text); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (numbers_ == nullptr) {
      return unexpected(std::to_string(value));
    }
    numbers_->push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (in_metadata_ && depth_ == 2) {
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") {
      return unexpected(in_quotes(value));
    }
    raw_.dtype = value;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 2) {
      return unexpected("an object");
    }
    ++depth_;
    raw_ = {};
    seen_.clear();
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      name_ = value;
      in_metadata_ = value == "__metadata__";
      if (!names_.insert(value).second) {
        refuse_file(file_, fmt::format("{} appears twice in the header", in_quotes(value)));
      }
      return true;
    }
    field_ = value;
    if (!seen_.insert(value).second) {
      refuse_file(file_, fmt::format("{} appears twice in {}", in_quotes(value), in_quotes(name_)));
    }
    if (!in_metadata_ && value != "dtype" && value != "shape" && value != "data_offsets") {
      refuse_file(file_,
                  fmt::format("tensor {}: unknown field {}", in_quotes(name_), in_quotes(value)));
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      entries_.emplace(name_, make_entry(raw_, file_, name_));
    }
    if (depth_ == 1) {
      in_metadata_ = false;
    }
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || numbers_ != nullptr || field_ == "dtype") {
      return unexpected("a list");
    }
    auto& target = field_ == "shape" ? raw_.shape : raw_.offsets;
    target.emplace();
    numbers_ = &*target;
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const json::exception& e) override {
    if (dynamic_cast<const json::out_of_range*>(&e) != nullptr) {  // a number beyond double
      return unexpected(printable(token, kShownBytes));
    }
    refuse_file(file_, fmt::format("header is not valid JSON at byte {} of it", position));
  }

 private:
  bool unexpected(std::string_view what) const {
    if (depth_ == 0) {
      refuse_file(file_, fmt::format("header is {}, expected an object", what));
    }
    refuse_file(file_, fmt::format("tensor {}: {} is {}, expected {}", in_quotes(name_),
                                   depth_ == 1 ? "entry" : field_, what,
                                   depth_ == 1           ? "an object"
                                   : in_metadata_        ? "a string"
                                   : field_ == "dtype"   ? "a string"
                                   : numbers_ == nullptr ? "a list"
                                                         : "integers of at least 0"));
  }

  std::string_view file_;
  EntryMap& entries_;
  std::set<std::string, std::less<>> names_;
  std::set<std::string, std::less<>> seen_;  // fields of the current object
  std::string name_;
  std::string field_;
  RawEntry raw_;
  std::vector<uint64_t>* numbers_ = nullptr;  // the list that is being read
  int depth_ = 0;
  bool in_metadata_ = false;
};

// Checks that the tensors cover the data section exactly.
void check_layout(const EntryMap& entries, uint64_t data_bytes, std::string_view file) {
  std::vector<const EntryMap::value_type*> order;
  for (const auto& item : entries) {
    order.push_back(&item);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  const EntryMap::value_type* previous = nullptr;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    if (entry.end > data_bytes) {
      refuse_file(file,
                  fmt::format("tensor {} ends at byte {} of the data, which has {} (truncated?)",
                              in_quotes(name), entry.end, data_bytes));
    }
    if (entry.begin < covered) {
      refuse_file(file, fmt::format("tensors {} [{}, {}) and {} [{}, {}) overlap",
                                    in_quotes(previous->first), previous->second.begin,
                                    previous->second.end, in_quotes(name), entry.begin, entry.end));
    }
    if (entry.begin > covered) {
      refuse_file(file, fmt::format("bytes [{}, {}) before tensor {} belong to no tensor", covered,
                                    entry.begin, in_quotes(name)));
    }
    covered = entry.end;
    previous = item;
  }
  if (covered != data_bytes) {
    refuse_file(file, fmt::format("bytes [{}, {}) at the end of the data belong to no tensor",
                                  covered, data_bytes));
  }
}

}  // namespace

const SafetensorsDType* find_safetensors_dtype(std::string_view name) {
  const auto* it = std::find_if(kDTypes.begin(), kDTypes.end(),
                                [&](const SafetensorsDType& d) { return d.name == name; });
  return it == kDTypes.end() ? nullptr : it;
}

const SafetensorsDType& safetensors_dtype(DType dtype) {
  for (const SafetensorsDType& candidate : kDTypes) {
    if (candidate.dtype == dtype && !candidate.passed_through) {
      return candidate;
    }
  }
  throw Unsupported(fmt::format("safetensors has no dtype for {}", name(dtype)));
}

void refuse_file(std::string_view file, std::string_view message) {
  throw InvalidArgument(fmt::format("{}: {}", file, message));
}

std::string in_quotes(std::string_view name) {
  return fmt::format("'{}'", printable(name, kShownBytes));
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> contents,
                                           std::string_view file) {
  constexpr uint64_t kPrefix = 8;
  if (contents.size() < kPrefix) {
    refuse_file(file, fmt::format("truncated: {} bytes, a header length alone has {}",
                                  contents.size(), kPrefix));
  }
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&length, contents.data(), kPrefix);
  if (length > kMaxHeaderBytes) {
    refuse_file(file, fmt::format("header length is {}, the limit is {}", length, kMaxHeaderBytes));
  }
  if (length > contents.size() - kPrefix) {
    refuse_file(file, fmt::format("truncated: header length is {}, the file has {} bytes after it",
                                  length, contents.size() - kPrefix));
  }
  SafetensorsHeader header;
  header.data_begin = kPrefix + length;
  const auto* text = reinterpret_cast<const char*>(contents.data()) + kPrefix;
  HeaderSax sax(file, header.entries);
  json::sax_parse(text, text + length, &sax);
  check_layout(header.entries, contents.size() - header.data_begin, file);
  return header;
}

}  // namespace moebius::checkpoint
