// Ints: a growable array of ints, which Python sees as a list and NumPy as an array.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

using i64 = std::int64_t;

template <class T> PyObject* object(T* x) { return reinterpret_cast<PyObject*>(x); }
template <class T> T* as(PyObject* x) { return reinterpret_cast<T*>(x); }

PyObject* graph_error;  // vpps.GraphError

struct Ints {
    PyObject_HEAD
    i64* data;
    Py_ssize_t size, capacity;
    Py_ssize_t exports;  // buffer views of the data, which must not move while any exist

    bool reserve(Py_ssize_t more)
    {
        const Py_ssize_t needed = size + more;
        if (needed <= capacity) return true;
        if (exports) {
            PyErr_SetString(graph_error, "a graph cannot grow while another thread plans it: record, then evaluate it");
            return false;
        }
        const Py_ssize_t larger = needed + needed / 2 + 64;
        void* moved = PyMem_Realloc(data, static_cast<std::size_t>(larger) * sizeof(i64));
        if (!moved) {
            PyErr_NoMemory();
            return false;
        }
        data = static_cast<i64*>(moved);
        capacity = larger;
        return true;
    }
};

PyTypeObject ints_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

void ints_free(PyObject* self)
{
    PyMem_Free(as<Ints>(self)->data);
    Py_TYPE(self)->tp_free(self);
}

// Append a NumPy array by copying its memory.
PyObject* extend_by_array(Ints* x, PyObject* array)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return nullptr;
    const bool fits = view.itemsize == sizeof(i64) && view.format && std::strchr("lq", view.format[0]);
    const Py_ssize_t n = fits ? view.len / view.itemsize : 0;
    const bool ok = fits && x->reserve(n);
    if (ok && n) std::memcpy(x->data + x->size, view.buf, static_cast<std::size_t>(view.len));
    PyBuffer_Release(&view);
    if (!fits) return PyErr_Format(PyExc_TypeError, "extend: expected an array of int64");
    if (!ok) return nullptr;
    x->size += n;
    Py_RETURN_NONE;
}

PyObject* ints_extend(PyObject* self, PyObject* items)
{
    Ints* x = as<Ints>(self);
    if (!PyList_Check(items) && !PyTuple_Check(items) && PyObject_CheckBuffer(items)) return extend_by_array(x, items);
    PyObject* sequence = PySequence_Fast(items, "extend: expected a sequence of ints");
    if (!sequence) return nullptr;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
    bool ok = x->reserve(n);
    for (Py_ssize_t k = 0; ok && k < n; k++) {
        x->data[x->size + k] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(sequence, k));
        ok = !PyErr_Occurred();
    }
    Py_DECREF(sequence);
    if (!ok) return nullptr;
    x->size += n;
    Py_RETURN_NONE;
}

Py_ssize_t ints_length(PyObject* self) { return as<Ints>(self)->size; }

PyObject* ints_item(PyObject* self, Py_ssize_t k)
{
    const Ints* x = as<Ints>(self);
    if (k >= 0 && k < x->size) return PyLong_FromLongLong(x->data[k]);
    PyErr_SetString(PyExc_IndexError, "index out of range");
    return nullptr;
}

int ints_view(PyObject* self, Py_buffer* view, int flags)
{
    Ints* x = as<Ints>(self);
    // NumPy requests an address even if a view has no elements.
    static Py_ssize_t stride = sizeof(i64);
    if (!x->reserve(1) || PyBuffer_FillInfo(view, self, x->data, x->size * stride, 0, flags)) return -1;
    static char format[] = "q";
    view->itemsize = stride;
    if (flags & PyBUF_FORMAT) view->format = format;
    if (flags & PyBUF_ND) view->shape = &x->size;
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = &stride;
    x->exports++;
    return 0;
}

void ints_release(PyObject* self, Py_buffer*) { as<Ints>(self)->exports--; }

}  // namespace
