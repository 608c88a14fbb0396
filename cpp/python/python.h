// CPython's stable ABI, the only part of CPython that this folder uses. One binary serves every
// CPython from 3.9 on.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>
#include <structmember.h>

#include <utility>

namespace rdmacoll::python {

// Owns one reference. Not for references that live while the interpreter's lock is released:
// `Held`.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Owns the references of one call, until drop(). It has no destructor. If the interpreter ends
// while a thread waits without the lock, CPython unwinds that thread, which may not touch objects
// then.
class Held {
 public:
  // Takes a new reference, or null, and returns it.
  PyObject* keep(PyObject* object) {
    if (object != nullptr) objects_[count_++] = object;
    return object;
  }
  void drop() {
    while (count_ > 0) Py_DECREF(objects_[--count_]);
  }

 private:
  static constexpr int kMax = 8;  // a call holds no more
  PyObject* objects_[kMax] = {};
  int count_ = 0;
};

inline PyObject* borrowed_to_new(PyObject* object) {
  Py_INCREF(object);
  return object;
}

}  // namespace rdmacoll::python
