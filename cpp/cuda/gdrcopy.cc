#include "cuda/gdrcopy.h"

#include <cstring>

#include "base/runtime_library.h"
#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

constexpr Address page_begin(Address address) {
  return address / Gdrcopy::kPageBytes * Gdrcopy::kPageBytes;
}

Status gdr_status(int error, const char* call) {
  if (error == 0) return {};
  return {Code::failed, cat(call, " of GDRCopy failed: ", std::strerror(error), ".")};
}

std::byte* mapped_place(const Gdrcopy::Mapping& mapping, Address address) {
  return static_cast<std::byte*>(mapping.memory) + (address - mapping.begin);
}

}  // namespace

std::shared_ptr<Gdrcopy> Gdrcopy::open(const std::string& library, Problem& problem) {
  problem = {};
  RuntimeLibrary opened(library);
  if (!opened.problem().empty()) {
    problem.text = cat(library, " cannot be opened: ", opened.problem());
    return nullptr;
  }
  problem.is_installed = true;
  gdr::Functions functions;
#define RC_GDR_NEED(result, name, parameters) opened.need(#name, functions.name);
  RC_GDR_FUNCTIONS(RC_GDR_NEED)
#undef RC_GDR_NEED
  if (!opened.missing().empty()) {
    problem.text = cat(library, " lacks the function ", opened.missing(), " of GDRCopy 2.0");
    return nullptr;
  }
  const gdr::Connection connection = functions.gdr_open();
  if (connection == nullptr) {
    problem.text =
        "its kernel module gdrdrv is not loaded, or this process may not use /dev/gdrdrv";
    return nullptr;
  }
  return std::make_shared<Gdrcopy>(functions, connection);
}

std::string Gdrcopy::version() const {
  int major = 0, minor = 0;
  call_.gdr_runtime_get_version(&major, &minor);
  return cat(major, ".", minor);
}

Status Gdrcopy::map(Address address, std::size_t bytes, Mapping& mapping) {
  const Address begin = page_begin(address);
  const std::size_t length = page_begin(address + bytes + kPageBytes - 1) - begin;
  Mapping made;
  const std::lock_guard lock(mutex_);
  RC_RETURN_IF_ERROR(gdr_status(call_.gdr_pin_buffer(connection_, begin, length, 0, 0, &made.pin),
                                "gdr_pin_buffer"));
  gdr::Info info{};
  Status status = gdr_status(call_.gdr_map(connection_, made.pin, &made.memory, length), "gdr_map");
  if (status.ok()) {
    made.bytes = length;
    status = gdr_status(call_.gdr_get_info(connection_, made.pin, &info), "gdr_get_info");
    made.begin = info.address;
    const bool holds_all = info.address <= address && address + bytes <= info.address + length;
    if (status.ok() && !holds_all) {
      status = {Code::failed, "GDRCopy has mapped other memory than was requested."};
    }
    if (!status.ok()) call_.gdr_unmap(connection_, made.pin, made.memory, length);
  }
  if (!status.ok()) {
    call_.gdr_unpin_buffer(connection_, made.pin);
    return status;
  }
  mapping = made;
  return {};
}

void Gdrcopy::unmap(const Mapping& mapping) {
  const std::lock_guard lock(mutex_);
  // If the memory was freed, the module has already ended both, and refuses.
  call_.gdr_unmap(connection_, mapping.pin, mapping.memory, mapping.bytes);
  call_.gdr_unpin_buffer(connection_, mapping.pin);
}

Status Gdrcopy::write(const Mapping& mapping, Address to, const void* from,
                      std::size_t bytes) const {
  return gdr_status(call_.gdr_copy_to_mapping(mapping.pin, mapped_place(mapping, to), from, bytes),
                    "gdr_copy_to_mapping");
}

Status Gdrcopy::read(const Mapping& mapping, void* to, Address from, std::size_t bytes) const {
  return gdr_status(
      call_.gdr_copy_from_mapping(mapping.pin, to, mapped_place(mapping, from), bytes),
      "gdr_copy_from_mapping");
}

}  // namespace rdmacoll::cuda
