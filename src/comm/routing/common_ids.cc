// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/routing/common_ids.h"

#include <algorithm>
#include <map>

namespace moebius::comm {

std::vector<int64_t> common_ids(Group& group, std::string_view op, std::span<const int64_t> own) {
  const int64_t longest = all_reduce_max(group, op, static_cast<int64_t>(own.size()));
  if (longest == 0) {
    return {};
  }
  std::vector<int64_t> padded(static_cast<size_t>(longest), -1);
  std::copy(own.begin(), own.end(), padded.begin());
  std::vector<int64_t> all(padded.size() * static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, padded.data(), longest * static_cast<int64_t>(sizeof(int64_t)),
                   all.data());
  std::map<int64_t, int> named_by;
  for (const int64_t id : all) {
    ++named_by[id];
  }
  std::vector<int64_t> common;
  for (const auto& [id, ranks] : named_by) {
    if (id >= 0 && ranks == group.size()) {
      common.push_back(id);
    }
  }
  return common;
}

}  // namespace moebius::comm
