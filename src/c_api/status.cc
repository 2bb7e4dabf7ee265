// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/status.h"

#include <array>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>

#include "c_api/structs.h"
#include "core/printable.h"
#include "moebius/version.h"

namespace moebius::c_api {

namespace {

struct LastError {
  moebius_status status = MOEBIUS_OK;
  int32_t rank = -1;
  int32_t peer = -1;
  bool peer_is_silent = false;
  std::array<char, 4096> message{};  // one line; what is longer is cut

  void set(moebius_status new_status, std::string_view text) {
    status = new_status;
    rank = peer = -1;
    peer_is_silent = false;
    message[printable_into(text, std::span(message).first(message.size() - 1))] = '\0';
  }
};

thread_local LastError last_error;

}  // namespace

moebius_status keep_error() noexcept {
  LastError& last = last_error;
  try {
    throw;
  } catch (const InvalidArgument& error) {
    last.set(MOEBIUS_INVALID_ARGUMENT, error.what());
  } catch (const Unsupported& error) {
    last.set(MOEBIUS_UNSUPPORTED, error.what());
  } catch (const CommError& error) {
    last.set(MOEBIUS_COMM_ERROR, error.what());
    last.rank = error.rank();
    last.peer = error.peer();
    last.peer_is_silent = error.peer_is_silent();
  } catch (const CudaError& error) {
    last.set(MOEBIUS_CUDA_ERROR, error.what());
  } catch (const OutOfMemory& error) {
    last.set(MOEBIUS_OUT_OF_MEMORY, error.what());
  } catch (const std::bad_alloc&) {
    last.set(MOEBIUS_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {  // a list that no memory has room for
    last.set(MOEBIUS_OUT_OF_MEMORY, "out of memory: a list is longer than any memory");
  } catch (const std::exception& error) {
    last.set(MOEBIUS_ERROR, error.what());
  } catch (...) {
    last.set(MOEBIUS_ERROR, "an exception of an unknown type");
  }
  return last.status;
}

}  // namespace moebius::c_api

using namespace moebius::c_api;

moebius_status moebius_last_error(moebius_error_info* info) {
  const LastError last = last_error;  // the call itself may fail
  return guarded([&] {
    write_struct(info, "info",
                 {.struct_size = 0,
                  .status = last.status,
                  .rank = last.rank,
                  .peer = last.peer,
                  .peer_is_silent = last.peer_is_silent ? 1 : 0,
                  .message = last_error.message.data()});
  });
}

const char* moebius_status_name(moebius_status status) {
  constexpr std::array kNames = {
      "ok",         "invalid argument", "unsupported", "communication failed",
      "CUDA error", "out of memory",    "error"};
  const auto index = static_cast<size_t>(status);
  return index < kNames.size() ? kNames[index] : "unknown status";
}

int32_t moebius_abi_version(void) {
  return MOEBIUS_ABI_VERSION;
}

const char* moebius_version(void) {
  return MOEBIUS_VERSION;
}
