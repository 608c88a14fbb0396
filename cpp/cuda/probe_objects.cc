#include "cuda/probe_objects.h"

namespace rdmacoll::cuda {

ProbeObjects::~ProbeObjects() {
  if (stream != nullptr) driver.call.cuStreamDestroy_v2(stream);
  if (device != 0) driver.call.cuMemFree_v2(device);
  if (host != nullptr) driver.call.cuMemFreeHost(host);
}

Status ProbeObjects::create(std::size_t host_bytes, std::size_t device_bytes) {
  const Functions& call = driver.call;
  RC_RETURN_IF_ERROR(driver.check(call.cuMemHostAlloc(&host, host_bytes, 0), "cuMemHostAlloc"));
  if (device_bytes > 0) {
    RC_RETURN_IF_ERROR(driver.check(call.cuMemAlloc_v2(&device, device_bytes), "cuMemAlloc"));
  }
  return driver.check(call.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
}

}  // namespace rdmacoll::cuda
