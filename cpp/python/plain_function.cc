// The type `PlainFunction`: a collective as Python programs see it. It looks like the Python
// function that it was made from, which does all but the usual case.
#include <cstddef>
#include <cstdint>

#include "python/module.h"
#include "python/plain_calls.h"

namespace rdmacoll::python {
namespace {

// CPython has had the vectorcall protocol since 3.8 (PEP 590). The names came to the stable ABI
// with 3.12.
using Vectorcall = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);
constexpr unsigned long kHasVectorcall = 1UL << 11;
constexpr std::size_t kArgumentsOffset = std::size_t{1} << (8 * sizeof(std::size_t) - 1);

struct PlainFunction {
  PyObject_HEAD Vectorcall vectorcall;
  PyObject* attributes;  // __name__, __doc__ and the like
  PyObject* weak_references;
  PyObject* function;  // the Python function
  PyObject* defaults;  // a tuple, which owns the objects of `given`
  PlainCall plain_call;
  Py_ssize_t positional;              // the number of parameters that may be positional
  Py_ssize_t count;                   // the number of all parameters
  Parameter parameters[kParameters];  // in their order
  PyObject* names[kParameters];       // in the same order, interned
  PyObject* given[kParameters];       // by Parameter: the default, or null
};

PlainFunction& self_of(PyObject* object) { return *reinterpret_cast<PlainFunction*>(object); }

// The Python function does the call.
PyObject* call_function(const PlainFunction& self, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* keywords) {
  const Ref positional(PyTuple_New(count));
  const Ref named(keywords == nullptr ? nullptr : PyDict_New());
  if (!positional || (keywords != nullptr && !named)) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SetItem(positional.get(), i, borrowed_to_new(arguments[i]));
  }
  for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_Size(keywords); ++i) {
    PyObject* name = PyTuple_GetItem(keywords, i);
    if (PyDict_SetItem(named.get(), name, arguments[count + i]) != 0) return nullptr;
  }
  return PyObject_Call(self.function, positional.get(), named.get());
}

// The place of a parameter that may be named in a call, or -1.
Py_ssize_t place_of(const PlainFunction& self, PyObject* name, Py_ssize_t from) {
  for (Py_ssize_t place = from; place < self.count; ++place) {
    if (self.names[place] == name) return place;
  }
  return -1;
}

// Sorts the arguments by parameter. Returns false if they do not fit, or if the names are not
// interned: a Python function finds out.
bool sort(const PlainFunction& self, PyObject* const* arguments, Py_ssize_t count,
          PyObject* keywords, PyObject** given) {
  if (count > self.positional) return false;
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    given[parameter] = self.given[parameter];
  }
  for (Py_ssize_t i = 0; i < count; ++i) given[self.parameters[i]] = arguments[i];
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
  for (Py_ssize_t i = 0; i < named; ++i) {
    const Py_ssize_t place = place_of(self, PyTuple_GetItem(keywords, i), count);
    if (place < 0) return false;
    given[self.parameters[place]] = arguments[count + i];
  }
  for (Py_ssize_t place = 0; place < self.count; ++place) {
    if (given[self.parameters[place]] == nullptr) return false;
  }
  return true;
}

PyObject* call(PyObject* object, PyObject* const* arguments, std::size_t flags,
               PyObject* keywords) {
  const PlainFunction& self = self_of(object);
  const auto count = static_cast<Py_ssize_t>(flags & ~kArgumentsOffset);
  PyObject* given[kParameters];
  if (sort(self, arguments, count, keywords, given)) {
    PyObject* result = self.plain_call(given);
    if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  }
  return call_function(self, arguments, count, keywords);
}

// Only for callers that do not know the vectorcall protocol.
PyObject* call_slowly(PyObject* object, PyObject* arguments, PyObject* keywords) {
  return PyObject_Call(self_of(object).function, arguments, keywords);
}

bool take_parameters(PlainFunction& self, PyObject* names) {
  self.count = PyTuple_Size(names);
  if (self.count > kParameters) return false;
  for (Py_ssize_t place = 0; place < self.count; ++place) {
    int parameter = 0;
    PyObject* name = PyTuple_GetItem(names, place);
    while (parameter < kParameters &&
           PyUnicode_CompareWithASCIIString(name, kParameterNames[parameter]) != 0) {
      ++parameter;
    }
    if (parameter == kParameters) return false;
    self.parameters[place] = static_cast<Parameter>(parameter);
    self.names[place] = PyUnicode_InternFromString(kParameterNames[parameter]);
  }
  return true;
}

// PlainFunction(function, its name, names of parameters, defaults of the last ones, positional
// ones)
int init(PyObject* object, PyObject* arguments, PyObject*) {
  PlainFunction& self = self_of(object);
  PyObject *function, *names, *defaults;
  const char* name;
  if (!PyArg_ParseTuple(arguments, "OsO!O!n", &function, &name, &PyTuple_Type, &names,
                        &PyTuple_Type, &defaults, &self.positional)) {
    return -1;
  }
  self.plain_call = plain_call_of(name);
  const Py_ssize_t required = PyTuple_Size(names) - PyTuple_Size(defaults);
  if (self.plain_call == nullptr || required < 0 || !take_parameters(self, names)) {
    PyErr_SetString(PyExc_ValueError, "no such collective, or other parameters than it has.");
    return -1;
  }
  for (Py_ssize_t place = required; place < self.count; ++place) {
    self.given[self.parameters[place]] = PyTuple_GetItem(defaults, place - required);
  }
  self.function = borrowed_to_new(function);
  self.defaults = borrowed_to_new(defaults);
  self.vectorcall = call;
  return 0;
}

// As a method, it is the Python function bound to the object.
PyObject* get(PyObject* self, PyObject* object, PyObject* type) {
  if (object == nullptr || object == Py_None) return borrowed_to_new(self);
  return PyObject_CallMethod(self_of(self).function, "__get__", "OO", object,
                             type == nullptr ? Py_None : type);
}

PyObject* repr(PyObject* object) { return PyObject_Repr(self_of(object).function); }

// Copies and pickles are the name, as of Python functions.
PyObject* reduce(PyObject* object, PyObject*) {
  return PyObject_GetAttrString(object, "__qualname__");
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(self_of(object).attributes);
  Py_VISIT(self_of(object).function);
  Py_VISIT(self_of(object).defaults);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(self_of(object).attributes);
  Py_CLEAR(self_of(object).function);
  Py_CLEAR(self_of(object).defaults);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self_of(object).weak_references != nullptr) PyObject_ClearWeakRefs(object);
  clear(object);
  for (PyObject* name : self_of(object).names) Py_XDECREF(name);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

PyObject* get_dict(PyObject* object, void*) {
  PyObject*& attributes = self_of(object).attributes;
  if (attributes == nullptr) attributes = PyDict_New();
  return attributes == nullptr ? nullptr : borrowed_to_new(attributes);
}

PyGetSetDef properties[] = {
    {"__dict__", get_dict, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlainFunction, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(PlainFunction, attributes), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PlainFunction, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_call, reinterpret_cast<void*>(call_slowly)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {
    "fast_calls.PlainFunction",
    sizeof(PlainFunction),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | kHasVectorcall,
    slots,
};

}  // namespace

PyObject* make_plain_function_type() { return PyType_FromSpec(&spec); }

}  // namespace rdmacoll::python
