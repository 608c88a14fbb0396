// The part of the CUDA driver API that rdmacoll uses. NVIDIA's header is not needed to build. The
// driver (libcuda.so.1) is opened at run time, and a library in tests/ can stand in for it.
//
// Types, numbers and functions are the driver's own, as CUDA 11.4 has them, which is the last
// version for a Tesla K80. Later functions are optional.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmacoll::cuda {

using Result = int;  // CUresult
using DeviceNumber = int;
using Address = unsigned long long;  // CUdeviceptr
using ContextHandle = struct ContextOfDriver*;
using StreamHandle = struct StreamOfDriver*;
using EventHandle = struct EventOfDriver*;
using ModuleHandle = struct ModuleOfDriver*;
using FunctionHandle = struct FunctionOfDriver*;

struct Uuid {
  unsigned char bytes[16];
};
struct MemoryHandle {  // CUipcMemHandle
  char bytes[64];
};

// Results that rdmacoll tells apart.
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kDeviceUnavailable = 46;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kDeviceNotLicensed = 102;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kAlreadyMapped = 208;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchTimeout = 702;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kAssertFailed = 710;
inline constexpr Result kMemoryAlreadyRegistered = 712;
inline constexpr Result kMemoryNotRegistered = 713;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kIllegalInstruction = 715;
inline constexpr Result kMisalignedAddress = 716;
inline constexpr Result kInvalidAddressSpace = 717;
inline constexpr Result kInvalidProgramCounter = 718;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr Result kStreamCaptureUnsupported = 900;
inline constexpr Result kStreamCaptureUnsafe = 901;
inline constexpr Result kStreamCaptureImplicit = 906;
inline constexpr Result kUnknown = 999;

// Streams with fixed handles.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventInterprocess = 4;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kHandleTypeDmaBuf = 1;
inline constexpr int kFlushCurrentDevice = 0;   // target
inline constexpr int kFlushToOwner = 100;       // scope
inline constexpr int kFlushToAllDevices = 200;  // scope
inline constexpr int kCaptureNone = 0;          // cuStreamIsCapturing
inline constexpr int kCaptureRelaxed = 2;       // mode
inline constexpr int kComputeModeDefault = 0;
inline constexpr int kComputeModeProhibited = 2;
inline constexpr int kComputeModeExclusiveProcess = 3;

enum class DeviceAttribute : int {
  multiprocessors = 16,
  can_map_host_memory = 19,
  compute_mode = 20,
  pci_bus = 33,
  pci_device = 34,
  l2_bytes = 38,
  unified_addressing = 41,
  pci_domain = 50,
  capability_major = 75,
  capability_minor = 76,
  managed_memory = 83,
  concurrent_managed_access = 89,
  multi_gpu_board = 84,
  multi_gpu_board_group = 85,
  host_register = 99,
  virtual_memory = 102,
  memory_pools = 115,
  gpudirect_rdma = 116,
  gpudirect_flush_options = 117,
  gpudirect_writes_ordering = 118,
  dma_buf = 124,
  ipc_events = 125,
};

enum class PointerAttribute : int {
  context = 1,
  memory_type = 2,  // unsigned: a MemoryType
  device_pointer = 3,
  host_pointer = 4,
  sync_memops = 6,
  buffer_id = 7,  // unsigned long long
  is_managed = 8,
  device_ordinal = 9,
  is_legacy_cuda_ipc_capable = 10,
  range_start = 11,
  range_size = 12,
  mapped = 13,
  allowed_handle_types = 14,
  is_gpu_direct_rdma_capable = 15,
  mempool_handle = 17,
};

enum class MemoryType : unsigned { none = 0, host = 1, device = 2, array = 3, unified = 4 };

// X(name, parameters): the functions that every supported driver has. The `_v2` entry points have
// their full names, since the plain names are older functions with other types.
#define RC_CUDA_FUNCTIONS(X)                                                                      \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (Result result, const char** name))                                           \
  X(cuGetErrorString, (Result result, const char** text))                                         \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (DeviceNumber * device, int index))                                              \
  X(cuDeviceGetName, (char* name, int bytes, DeviceNumber device))                                \
  X(cuDeviceGetUuid, (Uuid * uuid, DeviceNumber device))                                          \
  X(cuDeviceGetAttribute, (int* value, int attribute, DeviceNumber device))                       \
  X(cuDeviceTotalMem_v2, (std::size_t * bytes, DeviceNumber device))                              \
  X(cuDeviceGetPCIBusId, (char* text, int bytes, DeviceNumber device))                            \
  X(cuDeviceCanAccessPeer, (int* can, DeviceNumber device, DeviceNumber peer))                    \
  X(cuDevicePrimaryCtxRetain, (ContextHandle * context, DeviceNumber device))                     \
  X(cuDevicePrimaryCtxRelease_v2, (DeviceNumber device))                                          \
  X(cuDevicePrimaryCtxGetState, (DeviceNumber device, unsigned* flags, int* is_active))           \
  X(cuCtxPushCurrent_v2, (ContextHandle context))                                                 \
  X(cuCtxPopCurrent_v2, (ContextHandle * context))                                                \
  X(cuCtxGetCurrent, (ContextHandle * context))                                                   \
  X(cuCtxGetDevice, (DeviceNumber * device))                                                      \
  X(cuCtxEnablePeerAccess, (ContextHandle peer, unsigned flags))                                  \
  X(cuStreamCreate, (StreamHandle * stream, unsigned flags))                                      \
  X(cuStreamDestroy_v2, (StreamHandle stream))                                                    \
  X(cuStreamWaitEvent, (StreamHandle stream, EventHandle event, unsigned flags))                  \
  X(cuStreamQuery, (StreamHandle stream))                                                         \
  X(cuStreamSynchronize, (StreamHandle stream))                                                   \
  X(cuStreamIsCapturing, (StreamHandle stream, int* status))                                      \
  X(cuStreamGetCtx, (StreamHandle stream, ContextHandle * context))                               \
  X(cuEventCreate, (EventHandle * event, unsigned flags))                                         \
  X(cuEventDestroy_v2, (EventHandle event))                                                       \
  X(cuEventRecord, (EventHandle event, StreamHandle stream))                                      \
  X(cuEventQuery, (EventHandle event))                                                            \
  X(cuEventSynchronize, (EventHandle event))                                                      \
  X(cuMemAlloc_v2, (Address * address, std::size_t bytes))                                        \
  X(cuMemFree_v2, (Address address))                                                              \
  X(cuMemGetAddressRange_v2, (Address * base, std::size_t * bytes, Address address))              \
  X(cuMemHostAlloc, (void** memory, std::size_t bytes, unsigned flags))                           \
  X(cuMemFreeHost, (void* memory))                                                                \
  X(cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))                      \
  X(cuMemHostUnregister, (void* memory))                                                          \
  X(cuMemHostGetDevicePointer_v2, (Address * address, void* memory, unsigned flags))              \
  X(cuMemcpyHtoDAsync_v2, (Address to, const void* from, std::size_t bytes, StreamHandle stream)) \
  X(cuMemcpyDtoHAsync_v2, (void* to, Address from, std::size_t bytes, StreamHandle stream))       \
  X(cuMemcpyDtoDAsync_v2, (Address to, Address from, std::size_t bytes, StreamHandle stream))     \
  X(cuMemsetD8Async, (Address to, unsigned char value, std::size_t bytes, StreamHandle stream))   \
  X(cuPointerGetAttribute, (void* value, int attribute, Address address))                         \
  X(cuPointerGetAttributes,                                                                       \
    (unsigned count, const int* attributes, void** values, Address address))                      \
  X(cuPointerSetAttribute, (const void* value, int attribute, Address address))                   \
  X(cuIpcGetMemHandle, (MemoryHandle * handle, Address address))                                  \
  X(cuIpcOpenMemHandle_v2, (Address * address, MemoryHandle handle, unsigned flags))              \
  X(cuIpcCloseMemHandle, (Address address))                                                       \
  X(cuModuleLoadData, (ModuleHandle * module, const void* image))                                 \
  X(cuModuleUnload, (ModuleHandle module))                                                        \
  X(cuModuleGetFunction, (FunctionHandle * function, ModuleHandle module, const char* name))      \
  X(cuLaunchKernel, (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                     StreamHandle stream, void** parameters, void** extra))                       \
  X(cuLaunchHostFunc, (StreamHandle stream, void (*function)(void*), void* context))

// Functions that a driver may lack, with their first CUDA version.
#define RC_CUDA_OPTIONAL_FUNCTIONS(X)                                                           \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))         /* 10.1 */                          \
  X(cuFlushGPUDirectRDMAWrites, (int target, int scope))    /* 11.3 */                          \
  X(cuDeviceGetUuid_v2, (Uuid * uuid, DeviceNumber device)) /* 11.4 */                          \
  X(cuMemGetHandleForAddressRange, (void* handle, Address address, std::size_t bytes, int type, \
                                    unsigned long long flags)) /* 11.7 */

// The functions of an opened driver. Optional ones may be null.
struct Functions {
#define RC_CUDA_MEMBER(name, parameters) Result(*name) parameters = nullptr;
  RC_CUDA_FUNCTIONS(RC_CUDA_MEMBER)
  RC_CUDA_OPTIONAL_FUNCTIONS(RC_CUDA_MEMBER)
#undef RC_CUDA_MEMBER
};

}  // namespace rdmacoll::cuda
