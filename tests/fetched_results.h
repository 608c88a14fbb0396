// Results of operations on memory of a GPU, fetched to the host.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// Replaces the results of an operation that has ended by copies in host memory. `fetched(memory,
// bytes)` makes a copy. `kept` holds those of the callers' tensors.
template <typename Fetched>
void fetch_results(Operation& operation, std::vector<std::shared_ptr<std::byte[]>>& kept,
                   Fetched fetched) {
  Request& request = operation.request;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    TensorRef& tensor = request.tensors[i];
    if (row_of(request.kind).makes_result) {
      Operation::Result& result = operation.results[i];
      result.memory = fetched(result.memory.get(), result.bytes);
    } else {
      kept.push_back(fetched(tensor.output, tensor.bytes(request.dtype)));
      tensor.output = kept.back().get();
    }
    tensor.gpu = kHost;
  }
}

}  // namespace rdmacoll
