// Assigns variables to servers. Pure, so all ranks that add the same variables have the same
// assignment.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace rdmacoll::ps {

struct VariableSpec {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> dims;
  bool by_rows = false;  // an embedding: cut only between rows, and pushed and pulled by rows

  uint64_t elements() const;
  // Elements of one row. 1 for variables that are not by rows.
  uint64_t row_elements() const;
};

// Limits for variables. They ensure that sums and products of sizes do not overflow.
inline constexpr std::size_t kVariableNameBytesMax = 1024;
inline constexpr std::size_t kVariableDimsMax = 8;
inline constexpr uint64_t kVariableElementsMax = uint64_t{1} << 44;
Status check(const VariableSpec& spec);

// A range of elements that lies on one server.
struct Share {
  int server = 0;
  uint64_t first = 0;     // position in the flattened variable
  uint64_t elements = 0;  // by rows: whole rows
  uint64_t place = 0;     // position among this variable's elements on that server
};

class Sharding {
 public:
  // Shares have at most `share_bytes`, except for large rows and for adjacent shares on one server.
  Sharding(int servers, std::size_t share_bytes);

  // Adds variables, which are balanced together: the largest share first, each to the server with
  // the fewest bytes. The same variables in other portions give another sharding.
  void add(std::span<const VariableSpec> specs);

  int servers() const { return static_cast<int>(bytes_.size()); }
  std::size_t variables() const { return variables_.size(); }
  // In the order of their elements. Empty for a variable without elements.
  const std::vector<Share>& shares(std::size_t variable) const;
  uint64_t elements_on(std::size_t variable, int server) const;
  // A hash of the elements on this server (FNV-1a: Fowler, Noll, Vo).
  uint64_t mark_of(std::size_t variable, int server) const;
  uint64_t bytes_on(int server) const { return bytes_[static_cast<std::size_t>(server)]; }
  // A readable description, with a line for each server.
  std::string text() const;

 private:
  struct Variable {
    VariableSpec spec;
    std::vector<Share> shares;
  };
  std::vector<Share> cut(const VariableSpec& spec) const;

  std::size_t share_bytes_;
  std::vector<Variable> variables_;
  std::vector<uint64_t> bytes_;  // by server
};

}  // namespace rdmacoll::ps
