// The definitions of rc_engine and rc_handle.
#pragma once

#include <memory>

#include "api/rdmacoll_c.h"
#include "api/session.h"

struct rc_engine {
  std::unique_ptr<rdmacoll::Session> session;
};

struct rc_handle {
  rdmacoll::Driver* driver;
  rdmacoll::OperationRef operation;
};
