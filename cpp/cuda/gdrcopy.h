// GDRCopy (libgdrapi.so.2 and the kernel module gdrdrv): mappings through which the processor
// writes memory of GPUs. The library is opened at run time, and NVIDIA's header is not needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace rdmacoll::cuda {

namespace gdr {

using Connection = struct ConnectionOfGdr*;  // gdr_t
struct Pin {                                 // gdr_mh_t
  unsigned long value;
};
struct Info {  // gdr_info_v1_t
  uint64_t address;
  uint64_t mapped_bytes;
  uint32_t page_bytes;
  uint64_t cycles;
  uint32_t cycles_per_ms;
  unsigned is_mapped : 1;
  unsigned combines_writes : 1;
};

// X(result, name, parameters): the functions that are used, as version 2.0 has them.
#define RC_GDR_FUNCTIONS(X)                                                                        \
  X(gdr::Connection, gdr_open, ())                                                                 \
  X(int, gdr_close, (gdr::Connection connection))                                                  \
  X(int, gdr_pin_buffer,                                                                           \
    (gdr::Connection connection, unsigned long address, std::size_t bytes, uint64_t token,         \
     uint32_t space, gdr::Pin* pin))                                                               \
  X(int, gdr_unpin_buffer, (gdr::Connection connection, gdr::Pin pin))                             \
  X(int, gdr_get_info, (gdr::Connection connection, gdr::Pin pin, gdr::Info * info))               \
  X(int, gdr_map, (gdr::Connection connection, gdr::Pin pin, void** memory, std::size_t bytes))    \
  X(int, gdr_unmap, (gdr::Connection connection, gdr::Pin pin, void* memory, std::size_t bytes))   \
  X(int, gdr_copy_to_mapping, (gdr::Pin pin, void* mapped, const void* memory, std::size_t bytes)) \
  X(int, gdr_copy_from_mapping,                                                                    \
    (gdr::Pin pin, void* memory, const void* mapped, std::size_t bytes))                           \
  X(void, gdr_runtime_get_version, (int* major, int* minor))

struct Functions {
#define RC_GDR_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  RC_GDR_FUNCTIONS(RC_GDR_MEMBER)
#undef RC_GDR_MEMBER
};

}  // namespace gdr

// The library, and a connection to the kernel module.
class Gdrcopy {
 public:
  // The page of a GPU, of which mappings are made.
  static constexpr std::size_t kPageBytes = std::size_t{64} << 10;
  struct Mapping {
    gdr::Pin pin{};
    void* memory = nullptr;
    Address begin = 0;
    std::size_t bytes = 0;
  };
  // The reason why it is not there. "": it is.
  struct Problem {
    bool is_installed = false;
    std::string text;
  };

  // `library`: a name or a path. Null if there is a problem.
  static std::shared_ptr<Gdrcopy> open(const std::string& library, Problem& problem);
  Gdrcopy(const gdr::Functions& functions, gdr::Connection connection)
      : call_(functions), connection_(connection) {}
  ~Gdrcopy() { call_.gdr_close(connection_); }
  Gdrcopy(const Gdrcopy&) = delete;
  Gdrcopy& operator=(const Gdrcopy&) = delete;

  std::string version() const;  // "2.4"
  // Maps the pages that hold these bytes, in up to a millisecond. Any thread may call the two.
  Status map(Address address, std::size_t bytes, Mapping& mapping);
  void unmap(const Mapping& mapping);
  // Writes bytes of a mapping that is not being unmapped. Work that is submitted to the GPU later
  // sees them. Earlier work may not, and must not use this memory any more.
  Status write(const Mapping& mapping, Address to, const void* from, std::size_t bytes) const;
  // Waits until earlier writes have reached the GPU. Reads are slow.
  Status read(const Mapping& mapping, void* to, Address from, std::size_t bytes) const;

 private:
  const gdr::Functions call_;
  const gdr::Connection connection_;
  std::mutex mutex_;  // the library keeps an unguarded list of pins
};

}  // namespace rdmacoll::cuda
