// The extension module `fast_calls`: calls of the library from CPython, without ctypes.
#include "python/module.h"

#include "python/plain_calls.h"

namespace rdmacoll::python {

const rc_api* library = nullptr;

namespace {

constexpr long kContract = 2;  // CONTRACT in rdmacoll/_abi/fast_calls.py

void* save_thread() { return PyEval_SaveThread(); }
void restore_thread(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

// Takes the address of the library's table. Returns False if the table is another build's.
PyObject* connect(PyObject*, PyObject* address) {
  const auto* api = static_cast<const rc_api*>(PyLong_AsVoidPtr(address));
  if (api == nullptr) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, "no table.");
    return nullptr;
  }
  const bool fits = api->abi_version == RC_ABI_VERSION && api->header_hash == RC_HEADER_HASH;
  if (!fits) return borrowed_to_new(Py_False);
  library = api;
  library->operation->set_lock_hooks(save_thread, restore_thread);
  return borrowed_to_new(Py_True);
}

PyMethodDef functions[] = {
    {"connect", connect, METH_O, nullptr},
    {"prepare_calls", prepare_calls, METH_O, nullptr},
    {"use_engine", use_engine, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "fast_calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr,
};

bool add_object(PyObject* module, const char* name, PyObject* object) {
  if (object == nullptr) return false;
  if (PyModule_AddObject(module, name, object) == 0) return true;
  Py_DECREF(object);
  return false;
}

PyObject* make_module() {
  Ref module(PyModule_Create(&definition));
  const bool is_complete = module &&
                           PyModule_AddIntConstant(module.get(), "CONTRACT", kContract) == 0 &&
                           add_object(module.get(), "Run", make_run_type()) &&
                           add_object(module.get(), "Calls", make_calls_type()) &&
                           add_object(module.get(), "PlainFunction", make_plain_function_type()) &&
                           add_object(module.get(), "CAPSULE_DESTRUCTOR", capsule_destructor());
  return is_complete ? module.release() : nullptr;
}

}  // namespace
}  // namespace rdmacoll::python

PyMODINIT_FUNC PyInit_fast_calls() { return rdmacoll::python::make_module(); }
