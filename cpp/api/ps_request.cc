#include "api/ps_request.h"

#include <memory>
#include <span>
#include <vector>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

Status fit(const rc_ps_request& request, const rc_ps_tensor& tensor, const Client& client,
           uint32_t variable) {
  const VariableSpec& spec = client.spec(variable);
  const bool has_rows = request.rows != nullptr;
  if (has_rows && !spec.by_rows) return {};  // the client refuses it
  const uint64_t elements =
      has_rows ? static_cast<uint64_t>(request.n_rows) * spec.row_elements() : spec.elements();
  const auto dtype = static_cast<Dtype>(request.dtype);
  if (dtype == spec.dtype && tensor.bytes == elements * size_of(dtype)) return {};
  return {Code::invalid, cat("a tensor of ", tensor.bytes, " bytes of ", name_of(dtype), " for ",
                             has_rows ? cat(request.n_rows, " rows of ") : "", "variable ",
                             spec.name, ", which takes ", elements * size_of(spec.dtype),
                             " bytes of ", name_of(spec.dtype), ": give it that shape and dtype.")};
}

Status ask_for_rows(const rc_ps_request& request, const Tensor& tensor, Client& client,
                    CallRef& call) {
  const std::span<const int64_t> rows(request.rows, static_cast<std::size_t>(request.n_rows));
  if (request.transfer == RC_PS_PULL) {
    return client.pull_rows(tensor.variable, rows, tensor.data, call);
  }
  const std::optional<double> rate = rate_from(request.learning_rate);
  if (request.transfer == RC_PS_PUSH) {
    return client.push_rows(tensor.variable, rows, tensor.gradient, call, rate);
  }
  return client.exchange_rows(tensor, rows, call, rate);
}

}  // namespace

Status start_call(const rc_ps_request& request, Client& client, CallRef& call) {
  std::vector<Tensor> tensors;
  for (int32_t i = 0; i < request.n_tensors; ++i) {
    const rc_ps_tensor& from = request.tensors[i];
    uint32_t variable = 0;
    RC_RETURN_IF_ERROR(client.find(from.variable, variable));
    RC_RETURN_IF_ERROR(fit(request, from, client, variable));
    tensors.push_back({variable, static_cast<std::byte*>(from.value),
                       static_cast<const std::byte*>(from.gradient)});
  }
  if (request.rows != nullptr) return ask_for_rows(request, tensors[0], client, call);
  const std::optional<double> rate = rate_from(request.learning_rate);
  call = request.transfer == RC_PS_PUSH   ? client.push(tensors, rate)
         : request.transfer == RC_PS_PULL ? client.pull(tensors)
                                          : client.push_pull(tensors, rate);
  return {};
}

}  // namespace rdmacoll::ps
