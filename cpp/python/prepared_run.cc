// The type `Run`: a prepared operation that CPython calls without a Python frame.
#include <cstddef>

#include "python/module.h"

namespace rdmacoll::python {
namespace {

// rdmacoll/engine/prepared.py derives from it, and sets the members.
struct Run {
  PyObject_HEAD
      // Addresses are numbers in Python.
      unsigned long long prepared;  // an rc_prepared; 0: freed
  PyObject* result;
  int code;              // the last run's return value, until Python code resets it to 0
  unsigned long runner;  // the thread whose run has not ended; 0: none
  char is_short;
};

Run* self_of(PyObject* object) { return reinterpret_cast<Run*>(object); }

int run_once(Run& run) {
  auto* prepared = reinterpret_cast<rc_prepared*>(run.prepared);
  if (run.is_short) return library->prepared->run_locked(prepared);
  PyThreadState* state = PyEval_SaveThread();
  const int code = library->prepared->run(prepared);
  PyEval_RestoreThread(state);
  return code;
}

// Python code finishes a run that has not simply succeeded: `_end(code)`. It also decides about an
// earlier run whose value is still stored: `_resume(code)`.
PyObject* call(PyObject* object, PyObject* arguments, PyObject* keywords) {
  Run& run = *self_of(object);
  if (PyTuple_Size(arguments) > 0 || (keywords != nullptr && PyDict_Size(keywords) > 0)) {
    PyErr_SetString(PyExc_TypeError, "a prepared call takes no arguments");
    return nullptr;
  }
  const unsigned long thread = PyThread_get_thread_ident();
  if (run.runner != 0 && run.runner != thread) {
    return PyObject_CallMethod(object, "_refuse_thread", nullptr);
  }
  if (run.prepared == 0 || run.code != kDone) {
    return PyObject_CallMethod(object, "_resume", "i", run.code);
  }
  run.runner = thread;
  run.code = run_once(run);
  if (run.code == kDone) run.runner = 0;
  if (run.code != kDone) return PyObject_CallMethod(object, "_end", "i", run.code);
  return borrowed_to_new(run.result != nullptr ? run.result : Py_None);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(self_of(object)->result);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(self_of(object)->result);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"_address", T_ULONGLONG, offsetof(Run, prepared), 0, nullptr},
    {"out", T_OBJECT, offsetof(Run, result), 0, nullptr},
    {"_code", T_INT, offsetof(Run, code), 0, nullptr},
    {"_runner", T_ULONG, offsetof(Run, runner), 0, nullptr},
    {"_is_short", T_BOOL, offsetof(Run, is_short), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {
    "fast_calls.Run",
    sizeof(Run),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    slots,
};

}  // namespace

PyObject* make_run_type() { return PyType_FromSpec(&spec); }

}  // namespace rdmacoll::python
