// The type `Calls`: collectives on numpy arrays, checked, submitted and waited for without a Python
// frame. Only the usual case is done here. In all other cases a method returns None before it has
// submitted anything, and the caller's Python code does the work with its checks and errors.
#include <cstddef>
#include <cstring>

#include "python/array_view.h"
#include "python/module.h"

namespace rdmacoll::python {
namespace {

// One engine's calls.
struct Calls {
  PyObject_HEAD unsigned long long engine;  // an rc_engine, as a number for Python
  int ranks;
  char is_open;
  Py_ssize_t in_flight;  // calls that use the engine now
};

// Objects of Python, kept until the process ends.
constexpr int kOperators = 5;
PyObject* ndarray = nullptr;
PyObject* empty = nullptr;                 // numpy.empty
PyObject* error_from = nullptr;            // makes an exception from JSON
PyObject* operators[kOperators] = {};      // by their numbers
PyObject* codes_of_sums[kOperators] = {};  // dicts from dtypes to numbers, by operator
PyObject* codes_of_moves = nullptr;        // the same, for collectives that only move values
PyObject *name_of_dtype, *name_of_shape;   // interned

Calls& self_of(PyObject* object) { return *reinterpret_cast<Calls*>(object); }

// A request for one tensor, or for none, and the objects that it needs.
struct Request {
  rc_request request{};
  rc_tensor tensor{};
  uint64_t bytes = 0;
  Held held;

  Request(int kind, PyObject* set) {
    request.size = sizeof(request);
    request.kind = kind;
    request.process_set = static_cast<int32_t>(PyLong_AsLong(set));
    request.prescale = request.postscale = 1.0;
  }

  // `name`: None or a str. Returns false for names that need Python's checks.
  bool set_name(PyObject* name) {
    if (name == Py_None) return true;
    if (!PyUnicode_CheckExact(name)) return false;
    PyObject* bytes_of_name = held.keep(PyUnicode_AsUTF8String(name));
    if (bytes_of_name == nullptr) return false;
    request.name = PyBytes_AsString(bytes_of_name);
    return std::strlen(request.name) == static_cast<std::size_t>(PyBytes_Size(bytes_of_name));
  }

  void set_tensor(const ArrayView& source, const ArrayView& target) {
    tensor.input = source.data();
    tensor.output = target.data();
    tensor.ndim = source.ndim();
    for (int i = 0; i < source.ndim(); ++i) tensor.dims[i] = source.dim(i);
    request.n_tensors = 1;
    request.tensors = &tensor;
    bytes = source.bytes();
  }
};

// Sets the exception that the engine's error describes, and frees the text.
void raise_error(char* json) {
  const Ref text(
      json == nullptr
          ? PyUnicode_FromString("")
          : PyUnicode_DecodeUTF8(json, static_cast<Py_ssize_t>(std::strlen(json)), "replace"));
  library->text_free(json);
  if (!text) return;
  const Ref error(PyObject_CallFunctionObjArgs(error_from, text.get(), nullptr));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
}

// Calls engine.<method> with the arguments of `format`, beside a pending exception.
template <typename... Arguments>
void notify(PyObject* engine, const char* method, const char* format, Arguments... arguments) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref result(PyObject_CallMethod(engine, method, format, arguments...));
  if (!result) PyErr_WriteUnraisable(engine);
  PyErr_Restore(type, value, traceback);
}

// Waits until the operation is done. Returns false if a signal handler has raised an exception.
bool wait(rc_handle* handle, int& code, char*& error) {
  while (code == kTimeout) {
    if (PyErr_CheckSignals() != 0) return false;
    PyThreadState* state = PyEval_SaveThread();
    code = library->operation->wait(handle, kSliceMs, &error);
    PyEval_RestoreThread(state);
  }
  return true;
}

// Submits the request and waits for its end. Returns a new reference to `result`, or null with an
// exception. `engine`: the Engine in Python. `source`: the array that the engine reads, or None.
PyObject* perform(Calls& self, PyObject* engine, const Request& call, PyObject* source,
                  PyObject* result) {
  auto* const address = reinterpret_cast<rc_engine*>(self.engine);
  const rc_operation_api& operation = *library->operation;
  rc_handle* handle = nullptr;
  char* error = nullptr;
  int code = kTimeout;
  ++self.in_flight;
  if (call.bytes * static_cast<uint64_t>(self.ranks) <= kLockedBytesMax) {
    code = operation.call(address, &call.request, kSliceMs, 1, &handle, &error);
  } else {
    PyThreadState* state = PyEval_SaveThread();
    code = operation.call(address, &call.request, kSliceMs, 0, &handle, &error);
    PyEval_RestoreThread(state);
  }
  const bool has_ended = wait(handle, code, error);
  if (!has_ended) {
    // The engine may still use the arrays.
    notify(engine, "abandon", "K(OO)", reinterpret_cast<unsigned long long>(handle), source,
           result);
  } else if (handle != nullptr) {
    operation.free(handle);
  }
  --self.in_flight;
  if (!self.is_open) notify(engine, "free_if_unused", nullptr);
  if (!has_ended) return nullptr;
  if (code == kDone) return borrowed_to_new(result);
  raise_error(error);
  return nullptr;
}

// The method does not do this call. It has submitted nothing.
PyObject* left_to_python() {
  PyErr_Clear();
  Py_RETURN_NONE;
}

bool is_array(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == ndarray; }

// The array for the result: `out`, or a new one. Returns null if Python's checks are needed.
PyObject* result_for(PyObject* array, PyObject* dtype, PyObject* out, Held& held) {
  if (out == Py_None) {
    PyObject* shape = held.keep(PyObject_GetAttr(array, name_of_shape));
    return held.keep(PyObject_CallFunctionObjArgs(empty, shape, dtype, nullptr));
  }
  if (!is_array(out)) return nullptr;
  return held.keep(PyObject_GetAttr(out, name_of_dtype)) == dtype ? out : nullptr;
}

// Runs a collective whose result has the shape of `array`. `out`: None or the array for the result.
PyObject* run_on_array(Calls& self, PyObject* engine, Request& call, PyObject* codes,
                       PyObject* array, PyObject* name, PyObject* out) {
  if (!self.is_open || !is_array(array)) return left_to_python();
  PyObject* dtype = call.held.keep(PyObject_GetAttr(array, name_of_dtype));
  PyObject* code = dtype == nullptr ? nullptr : PyDict_GetItemWithError(codes, dtype);
  ArrayView source;
  if (code == nullptr || !source.read(array, call.held) || !source.is_readable() ||
      source.ndim() > 8 || !call.set_name(name)) {
    return left_to_python();
  }
  call.request.dtype = static_cast<int32_t>(PyLong_AsLong(code));
  if (out == array) {
    if (!source.is_writable()) return left_to_python();
    call.set_tensor(source, source);
    return perform(self, engine, call, Py_None, array);
  }
  PyObject* result = result_for(array, dtype, out, call.held);
  ArrayView target;
  if (result == nullptr || !target.read(result, call.held) || !target.is_writable() ||
      !target.has_shape_of(source) || target.overlaps(source)) {
    return left_to_python();
  }
  call.set_tensor(source, target);
  return perform(self, engine, call, array, result);
}

bool is_one(PyObject* factor) {
  return PyFloat_CheckExact(factor) && PyFloat_AsDouble(factor) == 1.0;
}

// allreduce(engine, array, op, name, out, prescale_factor, postscale_factor, set)
PyObject* allreduce(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 8 || !is_one(given(5)) || !is_one(given(6)))
    return left_to_python();
  for (int op = 0; op < kOperators; ++op) {
    if (given(2) != operators[op]) continue;
    Request call(RC_ALLREDUCE, given(7));
    call.request.op = op;
    PyObject* result = run_on_array(self_of(object), given(0), call, codes_of_sums[op], given(1),
                                    given(3), given(4));
    call.held.drop();
    return result;
  }
  return left_to_python();
}

// broadcast(engine, array, root_rank, name, out, set)
PyObject* broadcast(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 6 || Py_TYPE(given(2)) != &PyLong_Type) return left_to_python();
  const long root = PyLong_AsLong(given(2));
  if (root < 0 || root >= self_of(object).ranks) return left_to_python();
  Request call(RC_BROADCAST, given(5));
  call.request.root = static_cast<int32_t>(root);
  PyObject* result =
      run_on_array(self_of(object), given(0), call, codes_of_moves, given(1), given(3), given(4));
  call.held.drop();
  return result;
}

// barrier(engine, name, set). Returns True when it is done.
PyObject* barrier(PyObject* object, PyObject* arguments) {
  Calls& self = self_of(object);
  if (PyTuple_Size(arguments) != 3 || !self.is_open) return left_to_python();
  Request call(RC_BARRIER, PyTuple_GetItem(arguments, 2));
  PyObject* result = call.set_name(PyTuple_GetItem(arguments, 1))
                         ? perform(self, PyTuple_GetItem(arguments, 0), call, Py_None, Py_True)
                         : left_to_python();
  call.held.drop();
  return result;
}

// Calls(engine's address, ranks)
int init(PyObject* object, PyObject* arguments, PyObject*) {
  Calls& self = self_of(object);
  self.is_open = 1;
  return PyArg_ParseTuple(arguments, "Ki", &self.engine, &self.ranks) ? 0 : -1;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"is_open", T_BOOL, offsetof(Calls, is_open), 0, nullptr},
    {"in_flight", T_PYSSIZET, offsetof(Calls, in_flight), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {
    {"allreduce", allreduce, METH_VARARGS, nullptr},
    {"broadcast", broadcast, METH_VARARGS, nullptr},
    {"barrier", barrier, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"fast_calls.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

PyObject* make_calls_type() { return PyType_FromSpec(&spec); }

PyObject* prepare_calls(PyObject*, PyObject* arguments) {
  if (!PyArg_ParseTuple(arguments, "OOO(OOOOO)(OOOOO)O", &ndarray, &empty, &error_from,
                        &operators[0], &operators[1], &operators[2], &operators[3], &operators[4],
                        &codes_of_sums[0], &codes_of_sums[1], &codes_of_sums[2], &codes_of_sums[3],
                        &codes_of_sums[4], &codes_of_moves)) {
    return nullptr;
  }
  Py_INCREF(arguments);  // keeps the objects
  ArrayView::attribute = PyUnicode_InternFromString("__array_struct__");
  name_of_dtype = PyUnicode_InternFromString("dtype");
  name_of_shape = PyUnicode_InternFromString("shape");
  Py_RETURN_NONE;
}

}  // namespace rdmacoll::python
