#include "api/rdmacoll_c.h"

#include <cstdlib>

#include "api/tables.h"

namespace {

void text_free(char* text) { std::free(text); }

const rc_api kApi{
    .abi_version = RC_ABI_VERSION,
    .header_hash = RC_HEADER_HASH,
    .version = RDMACOLL_VERSION,
    .text_free = text_free,
    .engine = &rdmacoll::kEngineApi,
    .operation = &rdmacoll::kOperationApi,
    .prepared = &rdmacoll::kPreparedApi,
    .ps = &rdmacoll::kPsApi,
    .tools = &rdmacoll::kToolsApi,
};

}  // namespace

const rc_api* rc_get_api(uint32_t abi_version) {
  return abi_version == RC_ABI_VERSION ? &kApi : nullptr;
}
