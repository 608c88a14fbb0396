// The functions of the C interface (rdmacoll_c.h) that are about parameter servers.
#pragma once

#include "api/rdmacoll_c.h"

namespace rdmacoll::ps {

int rule_slots(const char* rule, char** json, char** error);
int update(const rc_update* update, char** error);

}  // namespace rdmacoll::ps
