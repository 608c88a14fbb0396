// Which server stores what: pure, and the same at every rank that is told the same variables.
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
  bool by_rows = false;  // an embedding: cut between rows only, and pushed and pulled by rows

  uint64_t elements() const;
  // Of one row; of a variable that is not by rows: 1.
  uint64_t row_elements() const;
};

// What a variable may be. Sums and products of its sizes fit then.
inline constexpr std::size_t kVariableNameBytesMax = 1024;
inline constexpr std::size_t kVariableDimsMax = 8;
inline constexpr uint64_t kVariableElementsMax = uint64_t{1} << 44;
Status check(const VariableSpec& spec);

// Neighbouring elements that lie on one server.
struct Share {
  int server = 0;
  uint64_t first = 0;     // in the flattened variable
  uint64_t elements = 0;  // whole rows of a variable that is by rows
  uint64_t place = 0;     // of the first among the elements of this variable on that server
};

class Sharding {
 public:
  // Shares are not larger than `share_bytes`, unless a row is, or neighbours meet on one server.
  Sharding(int servers, std::size_t share_bytes);

  // Variables that are told together are balanced together: the largest share first, each to the
  // server that has the fewest bytes. Who tells them in other portions gets another sharding.
  void add(std::span<const VariableSpec> specs);

  int servers() const { return static_cast<int>(bytes_.size()); }
  std::size_t variables() const { return variables_.size(); }
  // In the order of their elements; none for a variable without elements.
  const std::vector<Share>& shares(std::size_t variable) const;
  uint64_t elements_on(std::size_t variable, int server) const;
  // A number that is another one where the elements there are others (FNV-1a: Fowler, Noll, Vo).
  uint64_t mark_of(std::size_t variable, int server) const;
  uint64_t bytes_on(int server) const { return bytes_[static_cast<std::size_t>(server)]; }
  // For a person: a line for each server.
  std::string text() const;

 private:
  struct Variable {
    VariableSpec spec;
    std::vector<Share> shares;
  };
  std::vector<Share> cut(const VariableSpec& spec) const;

  std::size_t share_bytes_;
  std::vector<Variable> variables_;
  std::vector<uint64_t> bytes_;  // of each server
};

}  // namespace rdmacoll::ps
