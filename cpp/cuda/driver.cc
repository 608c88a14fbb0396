#include "cuda/driver.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/runtime_library.h"
#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

constexpr int kVersionMin = 11'000;  // the first with cuDevicePrimaryCtxRelease_v2

struct Cure {
  Result result;
  std::string_view sentence;
};
constexpr std::string_view kAfterAFault =
    "Work on this GPU has failed before, maybe a kernel of the program: run it with "
    "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, and start the job again.";
constexpr Cure kCures[] = {
    {kOutOfMemory, "Free memory of the GPU, or use smaller arrays."},
    {kNotInitialized,
     "If this process was forked from one that used CUDA, start it with the \"spawn\" method."},
    {kDeinitialized, "The process is ending: call shutdown() before its end."},
    {kStubLibrary, "This libcuda.so is a stub of the toolkit: take it out of LD_LIBRARY_PATH."},
    {kDeviceUnavailable, "Another process holds the GPU: run \"nvidia-smi -c DEFAULT\"."},
    {kNoDevice, "Look at \"nvidia-smi\" and at CUDA_VISIBLE_DEVICES."},
    {kInvalidDevice, "Look at \"nvidia-smi\" and at CUDA_VISIBLE_DEVICES."},
    {kEccUncorrectable, "The GPU's memory is faulty: look at \"nvidia-smi -q -d ECC\"."},
    {kInvalidHandle, "The stream or its library's context may have ended already."},
    {kIllegalAddress, kAfterAFault},
    {kMisalignedAddress, kAfterAFault},
    {kLaunchFailed, kAfterAFault},
    {kContextIsDestroyed, "The program has reset this GPU: call shutdown() before a reset."},
    {kSystemDriverMismatch, "libcuda and the kernel's module differ: restart the machine."},
};

std::string_view cure_of(Result result) {
  for (const Cure& cure : kCures) {
    if (cure.result == result) return cure.sentence;
  }
  return "";
}

Status not_opened(const std::string& library, std::string_view cause) {
  return {Code::invalid,
          cat("arrays on a GPU need NVIDIA's driver, and ", library, " cannot be used: ", cause,
              ". Install the driver, give the container its GPUs (--gpus all), or name the "
              "library by RDMACOLL_CUDA_LIBRARY.")};
}

Status load(const std::string& library, Functions& functions) {
  RuntimeLibrary opened(library);
  if (!opened.problem().empty()) return not_opened(library, opened.problem());
#define RC_CUDA_NEED(name, parameters) opened.need(#name, functions.name);
#define RC_CUDA_TAKE(name, parameters) opened.take_if_there(#name, functions.name);
  RC_CUDA_FUNCTIONS(RC_CUDA_NEED)
  RC_CUDA_OPTIONAL_FUNCTIONS(RC_CUDA_TAKE)
#undef RC_CUDA_NEED
#undef RC_CUDA_TAKE
  if (opened.missing().empty()) return {};
  return not_opened(library, cat("it lacks the function ", opened.missing(), " of CUDA 11.0"));
}

std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

Driver::Driver(const Functions& functions) : call(functions), owner_(::getpid()) {}

Status Driver::open(const std::string& library, const Driver*& driver) {
  // One of each library, as in the process itself.
  static auto& drivers = *new std::map<std::string, std::unique_ptr<const Driver>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto found = drivers.find(library);
  if (found == drivers.end()) {
    Functions functions;
    RC_RETURN_IF_ERROR(load(library, functions));
    auto opened = std::make_unique<Driver>(functions);
    RC_RETURN_IF_ERROR(opened->initialize());
    found = drivers.emplace(library, std::move(opened)).first;
  }
  RC_RETURN_IF_ERROR(found->second->usable());
  driver = found->second.get();
  return {};
}

Status Driver::initialize() {
  RC_RETURN_IF_ERROR(check(call.cuDriverGetVersion(&version_), "cuDriverGetVersion"));
  if (version_ < kVersionMin) {
    return {Code::invalid, cat("the driver of the GPU is for CUDA ", version_text(version_),
                               ", and rdmacoll needs CUDA ", version_text(kVersionMin),
                               " or later: install driver R450 or a later one.")};
  }
  return check(call.cuInit(0), "cuInit");
}

bool Driver::is_forked_child() const { return ::getpid() != owner_; }

Status Driver::usable() const {
  if (!is_forked_child()) return {};
  return {Code::uninitialized,
          cat("this process was forked from process ", owner_,
              ", which had used CUDA, and CUDA does not work in a forked child. Start workers "
              "with the \"spawn\" method.")};
}

std::string Driver::name_of(Result result) const {
  const char* name = nullptr;
  if (call.cuGetErrorName(result, &name) != kSuccess || name == nullptr) return cat(result);
  return name;
}

Status Driver::error(Result result, std::string_view what) const {
  const char* text = nullptr;
  if (call.cuGetErrorString(result, &text) != kSuccess || text == nullptr) text = "unknown error";
  const std::string_view cure = cure_of(result);
  return {Code::failed,
          cat(what, " failed: ", text, " (", name_of(result), ").", cure.empty() ? "" : " ", cure)};
}

bool is_sticky(Result result) {
  switch (result) {
    case kEccUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssertFailed:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidProgramCounter:
    case kLaunchFailed:
      return true;
    default:
      return false;
  }
}

}  // namespace rdmacoll::cuda
