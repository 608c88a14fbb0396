// The variable names that this rank has sent to the other ranks. Each rank sends them once, with
// the first operation that has them, and again when they change.
#pragma once

#include <map>
#include <string>

#include "operation/operation.h"

namespace rdmacoll {

class SaidNames {
 public:
  // `checks`: whether ranks compare names. If not, none are sent.
  explicit SaidNames(bool checks) : checks_(checks) {}

  // Whether the operation has names that the other ranks have not received.
  bool has_new(const Operation& operation) const;
  // Returns the names to send with the operation, or "" if none are new.
  std::string say(Operation& operation);
  // The operation has ended. `is_agreed`: without an error.
  void ended(const Operation& operation, bool is_agreed);
  // Forgets names that were sent without a decision.
  void forget_unheard();

 private:
  struct Said {
    std::string digests;
    bool is_heard = false;  // an operation with these names has succeeded
  };

  const bool checks_;
  // by the operation's name, or by its descriptor if unnamed
  std::map<std::string, Said> said_;
};

}  // namespace rdmacoll
