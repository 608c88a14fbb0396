// The driver's copies and fills.

#include <cstring>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

// One end of a copy. Memory that CUDA does not know is the host's own.
struct End {
  Address address;
  bool is_pageable = false;
};

// Checks an end that must be memory of a GPU, or pinned.
bool is_known(Call& call, Address address, std::size_t bytes) {
  int gpu = 0;
  return call.driver().memory.translate(address, bytes, gpu) != nullptr;
}

// Checks an end that must be memory of the host. Returns false for device memory and for a range
// that begins in pinned memory and does not end there.
bool find_host_end(Call& call, const void* memory, std::size_t bytes, End& end) {
  Memory& all = call.driver().memory;
  end = {address_of(memory)};
  if (!memory || all.is_device_address(end.address)) return false;
  const Pinned* const pinned = all.find_pinned(end.address);
  const Allocation* const managed = all.find(end.address);
  end.is_pageable = !pinned && !managed;
  return (!pinned || pinned->holds(end.address, bytes)) &&
         (!managed || managed->holds(end.address, bytes));
}

// Copies when the work is carried out. The memory is looked up then, since it may be gone.
Work copy_work(Driver& all, Address to, Address from, std::size_t bytes) {
  Work work;
  work.touches = {{to, bytes}, {from, bytes}};
  work.run = [&all, to, from, bytes] {
    int gpu = 0;
    std::byte* const target = all.memory.translate(to, bytes, gpu);
    const std::byte* const source = all.memory.translate(from, bytes, gpu);
    if (!target || !source) return false;
    std::memmove(target, source, bytes);
    return true;
  };
  return work;
}

void count_copy(Call& call, const std::string& way, std::size_t bytes, bool is_pageable) {
  Log& log = call.driver().log;
  log.count("copies " + way);
  log.count("bytes " + way, static_cast<long long>(bytes));
  if (is_pageable) log.count("copies of pageable memory");
}

Result copy_to_device(Call& call, Address to, const void* from, std::size_t bytes, Stream& stream) {
  End source;
  if (!find_host_end(call, from, bytes, source) || !is_known(call, to, bytes)) return kInvalidValue;
  count_copy(call, "host to device", bytes, source.is_pageable);
  if (!source.is_pageable) {
    return call.submit(stream, copy_work(call.driver(), to, source.address, bytes));
  }
  // The driver takes pageable bytes before it returns.
  const auto* const begin = static_cast<const std::byte*>(from);
  Driver& all = call.driver();
  Work work;
  work.touches = {{to, bytes}};
  work.run = [&all, to, bytes, taken = std::vector<std::byte>(begin, begin + bytes)] {
    int gpu = 0;
    std::byte* const target = all.memory.translate(to, bytes, gpu);
    if (!target) return false;
    std::memcpy(target, taken.data(), bytes);
    return true;
  };
  return call.submit(stream, std::move(work));
}

Result copy_to_host(Call& call, void* to, Address from, std::size_t bytes, Stream& stream) {
  End target;
  if (!find_host_end(call, to, bytes, target) || !is_known(call, from, bytes)) return kInvalidValue;
  count_copy(call, "device to host", bytes, target.is_pageable);
  if (!target.is_pageable) {
    return call.submit(stream, copy_work(call.driver(), target.address, from, bytes));
  }
  // A copy to pageable memory returns when it is done.
  Driver& all = call.driver();
  Work work;
  work.touches = {{from, bytes}};
  work.run = [&all, to, from, bytes] {
    int gpu = 0;
    const std::byte* const source = all.memory.translate(from, bytes, gpu);
    if (!source) return false;
    std::memcpy(to, source, bytes);
    return true;
  };
  const Result result = call.submit(stream, std::move(work));
  return result == kSuccess ? call.wait_for(stream) : result;
}

Result fill(Call& call, Address to, std::vector<std::byte> pattern, std::size_t count,
            Stream& stream) {
  const std::size_t bytes = pattern.size() * count;
  if (!is_known(call, to, bytes)) return kInvalidValue;
  call.driver().log.count("fills");
  Driver& all = call.driver();
  Work work;
  work.touches = {{to, bytes}};
  work.run = [&all, to, bytes, pattern = std::move(pattern)] {
    int gpu = 0;
    std::byte* const target = all.memory.translate(to, bytes, gpu);
    if (!target) return false;
    for (std::size_t at = 0; at < bytes; ++at) target[at] = pattern[at % pattern.size()];
    return true;
  };
  return call.submit(stream, std::move(work));
}

// Runs the body with a stream of the current context.
template <class Body>
Result on_stream(const char* name, StreamHandle handle, Body&& body) {
  return in_call(name, Needs::context, [&](Call& call) -> Result {
    Stream* const stream = call.stream(handle);
    return stream ? body(call, *stream) : kInvalidHandle;
  });
}

// Calls without a stream use the legacy one, and wait for it.
template <class Body>
Result waiting(const char* name, Body&& body) {
  return on_stream(name, nullptr, [&](Call& call, Stream& stream) -> Result {
    const Result result = body(call, stream);
    return result == kSuccess ? call.wait_for(stream) : result;
  });
}

}  // namespace

extern "C" {

Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, StreamHandle stream) {
  return on_stream("cuMemcpyHtoDAsync_v2", stream, [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : copy_to_device(call, to, from, bytes, own);
  });
}

Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, StreamHandle stream) {
  return on_stream("cuMemcpyDtoHAsync_v2", stream, [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : copy_to_host(call, to, from, bytes, own);
  });
}

Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, StreamHandle stream) {
  return on_stream("cuMemcpyDtoDAsync_v2", stream, [&](Call& call, Stream& own) -> Result {
    if (bytes == 0) return kSuccess;
    if (!is_known(call, to, bytes) || !is_known(call, from, bytes)) return kInvalidValue;
    count_copy(call, "device to device", bytes, false);
    return call.submit(own, copy_work(call.driver(), to, from, bytes));
  });
}

Result cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, StreamHandle stream) {
  return on_stream("cuMemsetD8Async", stream, [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : fill(call, to, {std::byte{value}}, bytes, own);
  });
}

Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  return waiting("cuMemcpyHtoD_v2", [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : copy_to_device(call, to, from, bytes, own);
  });
}

Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  return waiting("cuMemcpyDtoH_v2", [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : copy_to_host(call, to, from, bytes, own);
  });
}

Result cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
  return waiting("cuMemsetD8_v2", [&](Call& call, Stream& own) -> Result {
    return bytes == 0 ? kSuccess : fill(call, to, {std::byte{value}}, bytes, own);
  });
}

Result cuMemsetD32_v2(Address to, unsigned value, std::size_t words) {
  return waiting("cuMemsetD32_v2", [&](Call& call, Stream& own) -> Result {
    std::vector<std::byte> pattern(sizeof value);
    std::memcpy(pattern.data(), &value, sizeof value);
    return words == 0 ? kSuccess : fill(call, to, std::move(pattern), words, own);
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
