// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Results of transports in the C API, and transfers that are under way.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "c_api/handles.h"
#include "moebius/pending.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::c_api {

struct ResultObject : Object {
  static constexpr std::string_view kKind = "result";
  using Handle = moebius_result;

  // Keeps the transport, and so the group, that made it.
  explicit ResultObject(std::shared_ptr<Object> made_by)
      : Object(made_by->usage), owner(std::move(made_by)) {}
  // The array of a name; undefined where this result has none.
  virtual Tensor array(std::string_view name, int index) const = 0;
  virtual Event event() const { return {}; }

  std::shared_ptr<Object> owner;
};

// Throws InvalidArgument unless the handle is of a result of the type T, "of a dispatch".
template <std::derived_from<ResultObject> T>
std::shared_ptr<T> find_result(moebius_result handle, std::string_view what) {
  auto result = std::dynamic_pointer_cast<T>(find<ResultObject>(handle, what));
  expect(result != nullptr, [&] {
    return std::string(what) + " is a result of another call, expected one of " +
           std::string(T::kCall);
  });
  return result;
}

// Arrays of a result that a caller wants as DLManagedTensors.
class WantedArrays {
 public:
  // `user` stands for the stream that uses them last, unless the struct names one.  Throws
  // InvalidArgument.
  WantedArrays(const moebius_dlpack_arrays* given, const Stream& user);

  // Throws InvalidArgument unless they ask only for payloads that there are.
  void expect_payloads(int32_t num_payloads) const;
  // Writes all of them, or none where the result throws InvalidArgument.
  void give(const ResultObject& result) const;

 private:
  size_t size() const { return static_cast<size_t>(given_.num_arrays); }

  moebius_dlpack_arrays given_;
  Stream user_;
};

struct PendingObject : Object {
  static constexpr std::string_view kKind = "pending transfer";
  using Handle = moebius_pending;

  using Object::Object;
  virtual void hook() = 0;
  virtual std::shared_ptr<ResultObject> finish() = 0;
  virtual void finish_without_result() = 0;
};

// A transfer whose output becomes a Result(output, owner).
template <typename Result, typename Output>
class PendingResult : public PendingObject {
 public:
  PendingResult(Pending<Output> pending, std::shared_ptr<Object> owner)
      : PendingObject(owner->usage), owner_(std::move(owner)), pending_(std::move(pending)) {}

  void hook() override {
    if (const auto complete = std::exchange(pending_.hook, nullptr)) {
      auto receive = std::exchange(pending_.receive, nullptr);
      complete();
      pending_.receive = std::move(receive);
    }
  }
  std::shared_ptr<ResultObject> finish() override {
    return std::make_shared<Result>(receive(), owner_);
  }
  void finish_without_result() override { receive(); }

 private:
  Output receive() {
    expect(pending_.receive != nullptr, "this transfer was finished before, or has failed");
    // What has failed is not received at another attempt.
    const auto last = std::exchange(pending_.receive, nullptr);
    if (const auto complete = std::exchange(pending_.hook, nullptr)) {
      complete();
    }
    return last();
  }

  std::shared_ptr<Object> owner_;
  Pending<Output> pending_;
};

}  // namespace moebius::c_api
