// The type `Calls`: collectives on numpy arrays, checked, submitted and waited for without a Python
// frame. Only the usual case is done here. In all other cases a method returns None before it has
// submitted anything, and the caller's Python code does the work with its checks and errors.
#include <cstddef>
#include <cstring>

#include "python/array_view.h"
#include "python/call_request.h"
#include "python/module.h"

namespace rdmacoll::python {
namespace {

// One engine's calls.
struct Calls {
  PyObject_HEAD unsigned long long engine;  // an rc_engine, as a number for Python
  int ranks;
  int rank;
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

// Returns a new array with a copy of the operation's first result, or null with an exception.
PyObject* copied_result(rc_handle* handle, PyObject* dtype) {
  int32_t ndim = 0;
  int64_t dims[8];
  const void* memory = library->operation->result_at(handle, 0, &ndim, dims);
  const Ref shape(PyTuple_New(ndim));
  for (int i = 0; shape && i < ndim; ++i) {
    PyTuple_SetItem(shape.get(), i, PyLong_FromLongLong(dims[i]));
  }
  Ref result(shape ? PyObject_CallFunctionObjArgs(empty, shape.get(), dtype, nullptr) : nullptr);
  if (!result) return nullptr;
  Held held;
  ArrayView view;
  if (view.read(result.get(), held)) std::memcpy(view.data(), memory, view.bytes());
  held.drop();
  return result.release();
}

// Submits the request and waits for its end. Returns a new reference to `result`, or null with an
// exception. `engine`: the Engine in Python. `source`: the array that the engine reads, or None.
// `dtype`: null, or of the result that the engine makes: a copy of it is returned instead, or
// `result` if that is not null.
PyObject* perform(Calls& self, PyObject* engine, const Request& call, PyObject* source,
                  PyObject* result, PyObject* dtype = nullptr) {
  auto* const address = reinterpret_cast<rc_engine*>(self.engine);
  const rc_operation_api& operation = *library->operation;
  const auto run = dtype == nullptr ? operation.call : operation.call_for_result;
  rc_handle* handle = nullptr;
  char* error = nullptr;
  int code = kTimeout;
  ++self.in_flight;
  if (call.bytes * static_cast<uint64_t>(self.ranks) <= kLockedBytesMax) {
    code = run(address, &call.request, kSliceMs, 1, &handle, &error);
  } else {
    PyThreadState* state = PyEval_SaveThread();
    code = run(address, &call.request, kSliceMs, 0, &handle, &error);
    PyEval_RestoreThread(state);
  }
  const bool has_ended = wait(handle, code, error);
  if (!has_ended) {
    // The engine may still use the arrays.
    notify(engine, "abandon", "K(OO)", reinterpret_cast<unsigned long long>(handle), source,
           result == nullptr ? Py_None : result);
  }
  PyObject* returned = nullptr;
  if (has_ended && code == kDone) {
    returned = result == nullptr ? copied_result(handle, dtype) : borrowed_to_new(result);
  }
  if (has_ended && handle != nullptr) operation.free(handle);
  --self.in_flight;
  if (!self.is_open) notify(engine, "free_if_unused", nullptr);
  if (has_ended && code != kDone) raise_error(error);
  return returned;
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

// Describes the array that a collective reads. Returns its dtype, or null if Python's checks are
// needed.
PyObject* describe(Request& call, ArrayView& source, PyObject* codes, PyObject* array,
                   PyObject* name) {
  if (!is_array(array)) return nullptr;
  PyObject* dtype = call.held.keep(PyObject_GetAttr(array, name_of_dtype));
  PyObject* code = dtype == nullptr ? nullptr : PyDict_GetItemWithError(codes, dtype);
  if (code == nullptr || !source.read(array, call.held) || !source.is_readable() ||
      source.ndim() > 8 || !call.set_name(name)) {
    return nullptr;
  }
  call.request.dtype = static_cast<int32_t>(PyLong_AsLong(code));
  return dtype;
}

// Runs a collective whose result the engine makes, for a small array of one dimension or more.
// Larger results are not worth a copy. `has_result`: otherwise the method returns False.
PyObject* run_for_result(Calls& self, PyObject* engine, Request& call, PyObject* codes,
                         PyObject* array, PyObject* name, bool has_result) {
  ArrayView source;
  PyObject* dtype = self.is_open ? describe(call, source, codes, array, name) : nullptr;
  if (dtype == nullptr || source.ndim() == 0 ||
      source.bytes() * static_cast<uint64_t>(self.ranks) > kLockedBytesMax) {
    return left_to_python();
  }
  call.set_tensor(source, source);
  return perform(self, engine, call, array, has_result ? nullptr : Py_False, dtype);
}

// Reads the root of a collective. Returns false if Python's checks are needed.
bool set_root(Request& call, const Calls& self, PyObject* root_rank) {
  if (Py_TYPE(root_rank) != &PyLong_Type) return false;
  const long root = PyLong_AsLong(root_rank);
  call.request.root = static_cast<int32_t>(root);
  return root >= 0 && root < self.ranks;
}

// Runs a collective whose result has the shape of `array`. `out`: None or the array for the result.
PyObject* run_on_array(Calls& self, PyObject* engine, Request& call, PyObject* codes,
                       PyObject* array, PyObject* name, PyObject* out) {
  ArrayView source;
  PyObject* dtype = self.is_open ? describe(call, source, codes, array, name) : nullptr;
  if (dtype == nullptr) return left_to_python();
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

// The operator's number, or -1 if Python's checks are needed.
int number_of(PyObject* op) {
  for (int number = 0; number < kOperators; ++number) {
    if (op == operators[number]) return number;
  }
  return -1;
}

// allreduce(engine, array, op, name, out, prescale_factor, postscale_factor, set)
PyObject* allreduce(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 8 || !is_one(given(5)) || !is_one(given(6)))
    return left_to_python();
  const int op = number_of(given(2));
  if (op < 0) return left_to_python();
  Request call(RC_ALLREDUCE, given(7));
  call.request.op = op;
  PyObject* result = run_on_array(self_of(object), given(0), call, codes_of_sums[op], given(1),
                                  given(3), given(4));
  call.held.drop();
  return result;
}

// reduce(engine, array, root_rank, op, name, out, prescale_factor, postscale_factor, set). Returns
// False on ranks that get no result.
PyObject* reduce(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 9 || !is_one(given(6)) || !is_one(given(7)))
    return left_to_python();
  Calls& self = self_of(object);
  const int op = number_of(given(3));
  if (op < 0) return left_to_python();
  Request call(RC_REDUCE, given(8));
  call.request.op = op;
  PyObject* result = nullptr;
  if (!set_root(call, self, given(2))) return left_to_python();
  if (call.request.root == self.rank) {
    result = run_on_array(self, given(0), call, codes_of_sums[op], given(1), given(4), given(5));
  } else {
    ArrayView source;
    const bool is_usual =
        self.is_open && describe(call, source, codes_of_sums[op], given(1), given(4)) != nullptr;
    if (is_usual) call.set_tensor(source, source);
    result = is_usual ? perform(self, given(0), call, given(1), Py_False) : left_to_python();
  }
  call.held.drop();
  return result;
}

// reducescatter(engine, array, op, name, prescale_factor, postscale_factor, set)
PyObject* reducescatter(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 7 || !is_one(given(4)) || !is_one(given(5)))
    return left_to_python();
  const int op = number_of(given(2));
  if (op < 0) return left_to_python();
  Request call(RC_REDUCESCATTER, given(6));
  call.request.op = op;
  PyObject* result =
      run_for_result(self_of(object), given(0), call, codes_of_sums[op], given(1), given(3), true);
  call.held.drop();
  return result;
}

// kind(engine, array, name, set)
template <int kind>
PyObject* move(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 4) return left_to_python();
  Request call(kind, given(3));
  PyObject* result =
      run_for_result(self_of(object), given(0), call, codes_of_moves, given(1), given(2), true);
  call.held.drop();
  return result;
}

// kind(engine, array, root_rank, name, set). A gather returns False on ranks that get no result.
template <int kind>
PyObject* move_by_root(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 5) return left_to_python();
  Calls& self = self_of(object);
  Request call(kind, given(4));
  if (!set_root(call, self, given(2))) return left_to_python();
  const bool has_result = kind == RC_SCATTER || call.request.root == self.rank;
  PyObject* result =
      run_for_result(self, given(0), call, codes_of_moves, given(1), given(3), has_result);
  call.held.drop();
  return result;
}

// broadcast(engine, array, root_rank, name, out, set)
PyObject* broadcast(PyObject* object, PyObject* arguments) {
  const auto given = [arguments](int index) { return PyTuple_GetItem(arguments, index); };
  if (PyTuple_Size(arguments) != 6) return left_to_python();
  Request call(RC_BROADCAST, given(5));
  if (!set_root(call, self_of(object), given(2))) return left_to_python();
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

// Calls(engine's address, ranks, this rank)
int init(PyObject* object, PyObject* arguments, PyObject*) {
  Calls& self = self_of(object);
  self.is_open = 1;
  return PyArg_ParseTuple(arguments, "Kii", &self.engine, &self.ranks, &self.rank) ? 0 : -1;
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
    {"reduce", reduce, METH_VARARGS, nullptr},
    {"reducescatter", reducescatter, METH_VARARGS, nullptr},
    {"allgather", move<RC_ALLGATHER>, METH_VARARGS, nullptr},
    {"alltoall", move<RC_ALLTOALL>, METH_VARARGS, nullptr},
    {"gather", move_by_root<RC_GATHER>, METH_VARARGS, nullptr},
    {"scatter", move_by_root<RC_SCATTER>, METH_VARARGS, nullptr},
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
