// The definitions of rc_engine, rc_handle and rc_result.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "api/rdmacoll_c.h"
#include "api/repeated_calls.h"
#include "api/session.h"

struct rc_engine {
  explicit rc_engine(std::unique_ptr<rdmacoll::Session> opened) : session(std::move(opened)) {}

  const std::unique_ptr<rdmacoll::Session> session;
  rdmacoll::RepeatedCalls repeated_calls;
};

struct rc_handle {
  rdmacoll::Driver* driver;
  rdmacoll::OperationRef operation;
  // If not null, keeps the operation when the handle is freed. root and stream: of its request.
  rdmacoll::RepeatedCalls* repeated_calls = nullptr;
  int32_t root = 0;
  uint64_t stream = 0;
  // The end of work on GPUs, if the handle has no operation.
  std::shared_ptr<const rdmacoll::GpuEnd> end = nullptr;
  // The memory of results that were taken, by their index.
  std::map<int32_t, std::weak_ptr<std::byte[]>> taken = {};
};

namespace rdmacoll {

// Whether the work has ended. Null: there was none.
bool has_passed(const GpuEnd* end);
// A handle for the end of the operation's work on GPUs. Null: it has ended.
rc_handle* end_of(const Operation& operation);

}  // namespace rdmacoll

struct rc_result {
  std::shared_ptr<std::byte[]> memory;
};
