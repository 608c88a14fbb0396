// The operations of one rank with their times, as a file in Chrome's trace format: a JSON list of
// events. chrome://tracing and Perfetto show it.
//
// Only the holder of the baton records. The file is a complete list after each write, so it can be
// read at any time, also after the process was killed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

class Timeline {
 public:
  // Creates the file. Times count from `now`. A later failure to write is logged once.
  static Status open(const std::string& path, const Clock& clock, Log log,
                     std::unique_ptr<Timeline>& timeline);
  ~Timeline();  // writes the rest
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Notes that the batch of an operation begins now.
  void begin(const Operation& operation);
  // Adds an operation that ends now: its wait for a decision, and its batch if one has begun. The
  // names of both are Horovod's, NEGOTIATE_ALLREDUCE and ALLREDUCE.
  void record(const Operation& operation, const Status& status);

 private:
  Timeline(std::string path, Fd file, const Clock& clock, Log log);

  int row_of(std::string_view name);
  void add(std::string_view event);
  void flush();

  const std::string path_;
  Fd file_;
  const Clock& clock_;
  const Log log_;
  const Nanoseconds opened_at_;
  Nanoseconds written_at_;
  std::string text_;      // not written yet
  uint64_t written_ = 0;  // bytes of the file, without the end of the list
  bool is_first_ = true;
  bool is_broken_ = false;                                     // a write has failed
  std::unordered_map<const Operation*, Nanoseconds> started_;  // when running operations began
  std::map<std::string, int> rows_;  // the numbers of names: a viewer shows a row for each
};

}  // namespace rdmacoll
