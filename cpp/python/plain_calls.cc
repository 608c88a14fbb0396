// The collectives of plain_calls.h, and the type `Calls` of an engine that runs them.
#include "python/plain_calls.h"

#include <cstddef>
#include <cstring>

#include "python/array_view.h"
#include "python/call_request.h"
#include "python/module.h"

namespace rdmacoll::python {
namespace {

// The engine that calls use.
struct Calls {
  PyObject_HEAD unsigned long long engine;  // an rc_engine, as a number for Python
  int ranks;
  int rank;
  char is_open;
  Py_ssize_t in_flight;  // calls that use the engine now
};

// Objects of Python, kept until the process ends.
constexpr int kOperators = 5;
PyObject* ndarray = nullptr;               // null: the arrays of this numpy cannot be read
PyObject* empty = nullptr;                 // numpy.empty
PyObject* error_from = nullptr;            // makes an exception from JSON
PyObject* number_of = nullptr;             // the number of a process set in an engine
PyObject* global_set = nullptr;            // the set of all ranks, whose number is 0
PyObject* operators[kOperators] = {};      // by their numbers
PyObject* codes_of_sums[kOperators] = {};  // dicts from dtypes to numbers, by operator
PyObject* codes_of_moves = nullptr;        // the same, for collectives that only move values
constexpr std::size_t kDtypesMax = 32;
uint64_t itemsizes[kDtypesMax] = {};  // by the number of the dtype
PyObject* name_of_shape;              // interned

// The running engine, and its Calls. None: there is no engine.
PyObject *current_engine = nullptr, *current_calls = nullptr;

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

// Python code has to do the call.
PyObject* left_to_python() {
  PyErr_Clear();
  return nullptr;
}

// Whether two ranges of so many bytes share memory, and begin at different addresses.
bool overlap(const char* one, const char* other, uint64_t bytes) {
  return one != other && one < other + bytes && other < one + bytes;
}

// One call in the usual case. It has no destructor, as `Held`.
struct Call {
  Request request;
  PyObject* engine = nullptr;  // the Engine in Python
  Calls* calls = nullptr;

  explicit Call(int kind) : request(kind) {}
  bool begin(PyObject* const* given);
  PyObject* describe(PyObject* codes, PyObject* const* given);
  bool set_root(PyObject* root_rank);
  bool is_small() const {
    return request.bytes * static_cast<uint64_t>(calls->ranks) <= kLockedBytesMax;
  }
  PyObject* perform(PyObject* source, PyObject* result, PyObject* dtype = nullptr);
  PyObject* run_on_array(PyObject* codes, PyObject* const* given);
  PyObject* run_for_result(PyObject* codes, PyObject* const* given, bool has_result);

 private:
  PyObject* copied_result(rc_handle* handle, PyObject* dtype);
  PyObject* result_for(PyObject* array, PyObject* dtype, PyObject* out);
};

// Takes the engine and the process set. Returns false if Python's checks are needed.
bool Call::begin(PyObject* const* given) {
  const PyObject *stream = given[kStream], *splits = given[kSplits];
  if (ndarray == nullptr || current_calls == nullptr || current_calls == Py_None ||
      (stream != nullptr && stream != Py_None) || (splits != nullptr && splits != Py_None)) {
    return false;
  }
  engine = request.held.keep(borrowed_to_new(current_engine));
  calls = &self_of(request.held.keep(borrowed_to_new(current_calls)));
  PyObject* const set = given[kProcessSet];
  if (set != global_set) {
    PyObject* number =
        request.held.keep(PyObject_CallFunctionObjArgs(number_of, engine, set, nullptr));
    if (number == nullptr) return false;
    request.request.process_set = static_cast<int32_t>(PyLong_AsLong(number));
  }
  return request.set_name(given[kName]);
}

// Describes the array that a collective reads. Returns its dtype, or null if Python's checks are
// needed.
PyObject* Call::describe(PyObject* codes, PyObject* const* given) {
  PyObject* const array = given[kArray];
  if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != ndarray) return nullptr;
  const ArrayView source(array);
  PyObject* code = PyDict_GetItemWithError(codes, source.dtype());
  if (code == nullptr || !source.is_readable() || source.ndim() > 8) return nullptr;
  request.request.dtype = static_cast<int32_t>(PyLong_AsLong(code));
  request.set_tensor(source, source, itemsizes[request.request.dtype]);
  return source.dtype();
}

// Reads the root. Returns false if Python's checks are needed.
bool Call::set_root(PyObject* root_rank) {
  if (Py_TYPE(root_rank) != &PyLong_Type) return false;
  const long root = PyLong_AsLong(root_rank);
  request.request.root = static_cast<int32_t>(root);
  return root >= 0 && root < calls->ranks;
}

// Returns a new array with a copy of the operation's first result, or null with an exception.
PyObject* Call::copied_result(rc_handle* handle, PyObject* dtype) {
  int32_t ndim = 0;
  int64_t dims[8];
  const void* memory = library->operation->result_at(handle, 0, &ndim, dims);
  const Ref shape(PyTuple_New(ndim));
  for (int i = 0; shape && i < ndim; ++i) {
    PyTuple_SetItem(shape.get(), i, PyLong_FromLongLong(dims[i]));
  }
  Ref result(shape ? PyObject_CallFunctionObjArgs(empty, shape.get(), dtype, nullptr) : nullptr);
  if (!result) return nullptr;
  const ArrayView view(result.get());
  std::memcpy(view.data(), memory, view.elements() * itemsizes[request.request.dtype]);
  return result.release();
}

// Submits the request and waits for its end. Returns a new reference to `result`, or null with an
// exception. `source`: the array that the engine reads, or None. `dtype`: null, or of the result
// that the engine makes: a copy of it is returned instead, or `result` if that is not null.
PyObject* Call::perform(PyObject* source, PyObject* result, PyObject* dtype) {
  // Nothing lets another thread run from here to the submission, so the engine cannot end.
  if (!calls->is_open) return left_to_python();
  auto* const address = reinterpret_cast<rc_engine*>(calls->engine);
  const rc_operation_api& operation = *library->operation;
  const auto run = dtype == nullptr ? operation.call : operation.call_for_result;
  rc_handle* handle = nullptr;
  char* error = nullptr;
  int code = kTimeout;
  ++calls->in_flight;
  if (is_small()) {
    code = run(address, &request.request, kSliceMs, 1, &handle, &error);
  } else {
    PyThreadState* state = PyEval_SaveThread();
    code = run(address, &request.request, kSliceMs, 0, &handle, &error);
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
  --calls->in_flight;
  if (!calls->is_open) notify(engine, "free_if_unused", nullptr);
  if (has_ended && code != kDone) raise_error(error);
  return returned;
}

// Runs a collective whose result the engine makes, for a small array of one dimension or more.
// Larger results are not worth a copy. `has_result`: otherwise the call returns None.
PyObject* Call::run_for_result(PyObject* codes, PyObject* const* given, bool has_result) {
  PyObject* dtype = describe(codes, given);
  if (dtype == nullptr || request.tensor.ndim == 0 || !is_small()) return left_to_python();
  return perform(given[kArray], has_result ? nullptr : Py_None, dtype);
}

// The array for the result: `out`, or a new one. Returns null if Python's checks are needed.
PyObject* Call::result_for(PyObject* array, PyObject* dtype, PyObject* out) {
  if (out == Py_None) {
    PyObject* shape = request.held.keep(PyObject_GetAttr(array, name_of_shape));
    return request.held.keep(PyObject_CallFunctionObjArgs(empty, shape, dtype, nullptr));
  }
  const bool is_array = reinterpret_cast<PyObject*>(Py_TYPE(out)) == ndarray;
  return is_array && ArrayView(out).dtype() == dtype ? out : nullptr;
}

// Runs a collective whose result has the shape of the array.
PyObject* Call::run_on_array(PyObject* codes, PyObject* const* given) {
  PyObject *const array = given[kArray], *const out = given[kOut];
  PyObject* dtype = describe(codes, given);
  if (dtype == nullptr) return left_to_python();
  const ArrayView source(array);
  if (out == array) {
    return source.is_writable() ? perform(Py_None, array) : left_to_python();
  }
  PyObject* result = result_for(array, dtype, out);
  if (result == nullptr) return left_to_python();
  const ArrayView target(result);
  if (!target.is_writable() || !target.has_shape_of(source) ||
      overlap(source.data(), target.data(), request.bytes)) {
    return left_to_python();
  }
  request.set_tensor(source, target, itemsizes[request.request.dtype]);
  return perform(array, result);
}

bool is_one(PyObject* factor) {
  return PyFloat_CheckExact(factor) && PyFloat_AsDouble(factor) == 1.0;
}

// Reads the operator of a reduction. Returns -1 if Python's checks are needed.
int operator_of(PyObject* const* given) {
  if (!is_one(given[kPrescaleFactor]) || !is_one(given[kPostscaleFactor])) return -1;
  for (int number = 0; number < kOperators; ++number) {
    if (given[kOp] == operators[number]) return number;
  }
  return -1;
}

PyObject* allreduce(Call& call, PyObject* const* given) {
  const int op = call.request.request.op = operator_of(given);
  return op < 0 ? left_to_python() : call.run_on_array(codes_of_sums[op], given);
}

PyObject* reduce(Call& call, PyObject* const* given) {
  const int op = call.request.request.op = operator_of(given);
  if (op < 0 || !call.set_root(given[kRootRank])) return left_to_python();
  PyObject* const codes = codes_of_sums[op];
  if (call.request.request.root == call.calls->rank) return call.run_on_array(codes, given);
  if (call.describe(codes, given) == nullptr) return left_to_python();
  return call.perform(given[kArray], Py_None);
}

PyObject* reducescatter(Call& call, PyObject* const* given) {
  const int op = call.request.request.op = operator_of(given);
  return op < 0 ? left_to_python() : call.run_for_result(codes_of_sums[op], given, true);
}

PyObject* move(Call& call, PyObject* const* given) {
  return call.run_for_result(codes_of_moves, given, true);
}

PyObject* gather(Call& call, PyObject* const* given) {
  if (!call.set_root(given[kRootRank])) return left_to_python();
  const bool has_result = call.request.request.root == call.calls->rank;
  return call.run_for_result(codes_of_moves, given, has_result);
}

PyObject* scatter(Call& call, PyObject* const* given) {
  return call.set_root(given[kRootRank]) ? move(call, given) : left_to_python();
}

PyObject* broadcast(Call& call, PyObject* const* given) {
  if (!call.set_root(given[kRootRank])) return left_to_python();
  return call.run_on_array(codes_of_moves, given);
}

PyObject* barrier(Call& call, PyObject* const*) { return call.perform(Py_None, Py_None); }

template <int kind, PyObject* (*run)(Call& call, PyObject* const* given)>
PyObject* plain_call(PyObject* const* given) {
  Call call(kind);
  PyObject* result = call.begin(given) ? run(call, given) : left_to_python();
  call.request.held.drop();
  return result;
}

constexpr struct {
  const char* name;
  PlainCall call;
} kPlainCalls[] = {
    {"allreduce", plain_call<RC_ALLREDUCE, allreduce>},
    {"broadcast", plain_call<RC_BROADCAST, broadcast>},
    {"reduce", plain_call<RC_REDUCE, reduce>},
    {"reducescatter", plain_call<RC_REDUCESCATTER, reducescatter>},
    {"allgather", plain_call<RC_ALLGATHER, move>},
    {"alltoall", plain_call<RC_ALLTOALL, move>},
    {"gather", plain_call<RC_GATHER, gather>},
    {"scatter", plain_call<RC_SCATTER, scatter>},
    {"barrier", plain_call<RC_BARRIER, barrier>},
};

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

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"fast_calls.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

PlainCall plain_call_of(const char* name) {
  for (const auto& known : kPlainCalls) {
    if (std::strcmp(known.name, name) == 0) return known.call;
  }
  return nullptr;
}

PyObject* make_calls_type() { return PyType_FromSpec(&spec); }

PyObject* prepare_calls(PyObject*, PyObject* arguments) {
  PyObject *type, *example, *dtype, *address, *sizes;
  if (!PyArg_ParseTuple(arguments, "OOOOO(OOO)(OOOOO)(OOOOO)OO!", &type, &empty, &error_from,
                        &number_of, &global_set, &example, &dtype, &address, &operators[0],
                        &operators[1], &operators[2], &operators[3], &operators[4],
                        &codes_of_sums[0], &codes_of_sums[1], &codes_of_sums[2], &codes_of_sums[3],
                        &codes_of_sums[4], &codes_of_moves, &PyTuple_Type, &sizes)) {
    return nullptr;
  }
  Py_INCREF(arguments);  // keeps the objects
  const auto dtypes = static_cast<std::size_t>(PyTuple_Size(sizes));
  for (std::size_t number = 0; number < dtypes && number < kDtypesMax; ++number) {
    itemsizes[number] =
        PyLong_AsUnsignedLongLong(PyTuple_GetItem(sizes, static_cast<Py_ssize_t>(number)));
  }
  name_of_shape = PyUnicode_InternFromString("shape");
  const bool fits =
      dtypes <= kDtypesMax && ArrayView::fits(example, dtype, PyLong_AsVoidPtr(address));
  ndarray = fits ? type : nullptr;
  return PyErr_Occurred() == nullptr ? PyBool_FromLong(fits) : nullptr;
}

PyObject* use_engine(PyObject*, PyObject* arguments) {
  PyObject *engine, *calls;
  if (!PyArg_ParseTuple(arguments, "OO", &engine, &calls)) return nullptr;
  const Ref old_engine(std::exchange(current_engine, borrowed_to_new(engine)));
  const Ref old_calls(std::exchange(current_calls, borrowed_to_new(calls)));
  Py_RETURN_NONE;
}

}  // namespace rdmacoll::python
