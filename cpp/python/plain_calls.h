// Collectives on numpy arrays, checked, submitted and waited for without a Python frame.
#pragma once

#include "python/python.h"

namespace rdmacoll::python {

// The parameters of all collectives.
enum Parameter {
  kArray,
  kRootRank,
  kOp,
  kName,
  kOut,
  kPrescaleFactor,
  kPostscaleFactor,
  kSplits,
  kProcessSet,
  kStream,
  kParameters
};
inline constexpr const char* kParameterNames[kParameters] = {
    "array",           "root_rank",        "op",     "name",        "out",
    "prescale_factor", "postscale_factor", "splits", "process_set", "stream"};

// Runs a collective in the usual case. given: by Parameter; null for those that it does not have.
// Returns a new reference, or null with an exception. Returns null without an exception in all
// other cases: nothing has been submitted then, and Python code does the work with its checks.
using PlainCall = PyObject* (*)(PyObject* const* given);

// The collective with this name, or null.
PlainCall plain_call_of(const char* name);

PyObject* make_plain_function_type();
PyObject* make_calls_type();
// Takes a tuple of the Python objects that calls need. Returns whether arrays of this numpy can be
// read: otherwise Python code does all calls.
PyObject* prepare_calls(PyObject* module, PyObject* objects);
// Takes the running engine and its Calls, or (None, None).
PyObject* use_engine(PyObject* module, PyObject* engine_and_calls);

}  // namespace rdmacoll::python
