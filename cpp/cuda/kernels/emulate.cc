#include "cuda/kernels/emulate.h"

#include <algorithm>
#include <vector>

#include "compute/float_mode.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/write_word.h"

namespace rdmacoll::cuda {
namespace {

using Body = void (*)(const ReduceParameters& job, Thread at);

struct Kernel {
  std::string_view name;
  std::size_t element;  // bytes
  Body body;
};

template <typename T, typename Op>
constexpr Kernel kernel(std::string_view name) {
  return {name, sizeof(typename T::Raw),
          [](const ReduceParameters& job, Thread at) { Reduction<T, Op>(job, at).run(); }};
}

constexpr Kernel kKernels[] = {
#define RC_EMULATED(name, dtype, op) kernel<dtype, op>(#name),
    RC_CUDA_REDUCTIONS(RC_EMULATED) RC_CUDA_COPIES(RC_EMULATED)
#undef RC_EMULATED
};

Word address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// Replaces an operand's device address by the address of its memory here.
bool translate(Word& address, Word count, std::size_t element, bool is_written,
               EmulatedMemory& memory) {
  const Word mark = address & kWideMark;
  const std::size_t bytes = count * (mark != 0 ? sizeof(float) : element);
  std::byte* at = memory.at(address & ~kWideMark, bytes, is_written);
  address = address_of(at) | mark;
  return at != nullptr;
}

Emulated reduce(const Kernel& kernel, unsigned blocks, const ReduceParameters& given,
                EmulatedMemory& memory) {
  const std::size_t width = kRowHead + given.sources;
  const std::size_t words = given.rows * width;
  const auto* from = given.words;
  if (given.table != 0) {
    from = reinterpret_cast<const Word*>(memory.at(given.table, words * sizeof(Word), false));
    if (from == nullptr) return Emulated::fault;
  } else if (words > kInlineWords) {
    return Emulated::fault;
  }
  std::vector<Word> table(from, from + words);
  for (std::size_t row = 0; row < given.rows; ++row) {
    Word* const head = table.data() + row * width;
    for (std::size_t i = kRowHead - 1; i < width; ++i) {
      const bool is_written = i == kRowHead - 1;
      if (!translate(head[i], head[1], kernel.element, is_written, memory)) return Emulated::fault;
    }
  }
  ReduceParameters job = given;
  if (given.table == 0) {
    std::copy(table.begin(), table.end(), job.words);
  } else {
    job.table = address_of(table.data());
  }
  const FloatMode exact;
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      kernel.body(job, {block, blocks, thread});
    }
  }
  return Emulated::done;
}

Emulated write_word(WriteWordParameters job, EmulatedMemory& memory) {
  std::byte* to = memory.at(job.address, sizeof job.value, true);
  if (to == nullptr) return Emulated::fault;
  job.address = address_of(to);
  write(job);
  return Emulated::done;
}

}  // namespace

Emulated emulate(std::string_view name, unsigned blocks, unsigned threads, void* const* parameters,
                 EmulatedMemory& memory) {
  if (name == "write_word") {
    return write_word(*static_cast<const WriteWordParameters*>(parameters[0]), memory);
  }
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != name) continue;
    if (threads != kThreads) return Emulated::wrong_block;
    return reduce(kernel, blocks, *static_cast<const ReduceParameters*>(parameters[0]), memory);
  }
  return Emulated::unknown_kernel;
}

}  // namespace rdmacoll::cuda
