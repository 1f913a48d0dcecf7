// Recorder: appends vertices to one block, like the functions in vpps/record/call_cache.py.
#pragma once

#include <vector>
#include "interface.h"

namespace {

// ---- layout of Python objects, determined by bind() in module.cpp

PyTypeObject* expression_type;
Py_ssize_t owner_at, ref_at, shape_at;  // offsets of an expression's slots

PyObject*& slot(PyObject* x, Py_ssize_t offset)
{
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(x) + offset);
}

// ---- recorders

struct Argument {
    ArgumentKind kind;
    PyObject* shape = nullptr;  // shape of the vector, or of the list's elements
    i64 number = 0;             // the int's bound, or the number of the list's domain, from 0
    Ints *lengths = nullptr, *elements = nullptr;

    std::size_t domain() const { return static_cast<std::size_t>(number); }
};

struct Tape {
    PyObject_HEAD
    Py_ssize_t n_calls;
    Ints* levels;
};

struct Recorder {
    PyObject_HEAD
    vectorcallfunc call;
    Tape* tape;
    Ints* rows;
    PyObject* results;  // tuple of shapes
    std::vector<Argument>* arguments;
    std::vector<Py_ssize_t>* lengths;  // by domain, for the current call
    Py_ssize_t width, n_vectors;
    int single, takes_empty;

    PyObject* record(PyObject* graph, PyObject* const* args, Py_ssize_t n);
    bool read(PyObject* graph, PyObject* const* args, i64* row, i64& level);
    Py_ssize_t read_list(const Argument& a, PyObject* x, PyObject* graph, i64& level);
};

PyTypeObject tape_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject recorder_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// Return the value id of an expression with this graph and shape; -1 for anything else and on errors.
inline i64 fitting(PyObject* x, PyObject* graph, PyObject* shape, const Ints* levels)
{
    if (Py_TYPE(x) != expression_type || slot(x, owner_at) != graph) return -1;
    PyObject* of_x = slot(x, shape_at);
    if (of_x != shape && PyObject_RichCompareBool(of_x, shape, Py_EQ) != 1) return -1;
    const i64 ref = PyLong_AsLongLong(slot(x, ref_at));
    return ref < levels->size ? ref : -1;
}

PyObject* new_expression(PyObject* graph, i64 ref, PyObject* shape)
{
    PyObject* number = PyLong_FromLongLong(ref);
    PyObject* e = number ? PyType_GenericAlloc(expression_type, 0) : nullptr;
    if (!e) {
        Py_XDECREF(number);
        return nullptr;
    }
    slot(e, owner_at) = Py_NewRef(graph);
    slot(e, ref_at) = number;
    slot(e, shape_at) = Py_NewRef(shape);
    return e;
}

// If a list's elements fit, write them after the block's elements and return the list's length; otherwise return -1.
Py_ssize_t Recorder::read_list(const Argument& a, PyObject* x, PyObject* graph, i64& level)
{
    if (!PyList_CheckExact(x) && !PyTuple_CheckExact(x)) return -1;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(x);
    if (!a.elements->reserve(n) || !a.lengths->reserve(1)) return -1;
    i64* refs = a.elements->data + a.elements->size;
    const i64* levels = tape->levels->data;
    for (Py_ssize_t k = 0; k < n; k++) {
        refs[k] = fitting(PySequence_Fast_GET_ITEM(x, k), graph, a.shape, tape->levels);
        if (refs[k] < 0) return -1;
        if (levels[refs[k]] > level) level = levels[refs[k]];
    }
    return n;
}

// Return true if the arguments fit. Writes their value ids and ints to the row; raises `level` to their highest level.
bool Recorder::read(PyObject* graph, PyObject* const* args, i64* row, i64& level)
{
    i64 *vectors = row + ARGS, *ints = vectors + n_vectors;
    bool some_empty = false, some_filled = false;
    for (Py_ssize_t& length : *lengths) length = -1;
    for (const Argument& a : *arguments) {
        PyObject* x = *args++;
        if (a.kind == ArgumentKind::VECTOR) {
            const i64 ref = fitting(x, graph, a.shape, tape->levels);
            if (ref < 0) return false;
            if (tape->levels->data[ref] > level) level = tape->levels->data[ref];
            *vectors++ = ref;
        } else if (a.kind == ArgumentKind::INT) {
            int overflow;
            if (!PyLong_CheckExact(x)) return false;
            const i64 value = PyLong_AsLongLongAndOverflow(x, &overflow);
            if (overflow || value < 0 || value >= a.number) return false;
            *ints++ = value;
        } else {
            const Py_ssize_t n = read_list(a, x, graph, level);
            Py_ssize_t& length = (*lengths)[a.domain()];
            if (n < 0 || (length >= 0 && length != n)) return false;
            length = n;
            (n ? some_filled : some_empty) = true;
        }
    }
    return !some_empty || (!some_filled && takes_empty);
}

// Record a call that fits and return its results. Return null otherwise, with an error only if Python failed.
PyObject* Recorder::record(PyObject* graph, PyObject* const* args, Py_ssize_t n)
{
    const Py_ssize_t n_results = PyTuple_GET_SIZE(results);
    Ints* levels = tape->levels;
    if (n != static_cast<Py_ssize_t>(arguments->size()) || !rows->reserve(width) || !levels->reserve(n_results))
        return nullptr;
    i64* row = rows->data + rows->size;
    i64 level = -1;
    if (!read(graph, args, row, level)) return nullptr;
    const i64 first = levels->size;
    PyObject* found;
    if (single) {
        found = new_expression(graph, first, PyTuple_GET_ITEM(results, 0));
    } else {
        found = PyTuple_New(n_results);
        for (Py_ssize_t k = 0; found && k < n_results; k++) {
            PyObject* e = new_expression(graph, first + k, PyTuple_GET_ITEM(results, k));
            if (e) PyTuple_SET_ITEM(found, k, e);
            else Py_CLEAR(found);
        }
    }
    if (!found) return nullptr;
    // Allocation may trigger a garbage collection that runs code which records in this graph; then start again.
    if (first != levels->size || row != rows->data + rows->size) {
        Py_DECREF(found);
        return nullptr;
    }
    // Nothing can fail after this point.
    level++;
    row[CALL] = tape->n_calls++;
    row[FIRST] = first;
    row[LEVEL] = level;
    rows->size += width;
    for (Py_ssize_t k = 0; k < n_results; k++) levels->data[levels->size++] = level;
    for (const Argument& a : *arguments) {
        if (a.kind != ArgumentKind::LIST) continue;
        const Py_ssize_t length = (*lengths)[a.domain()];
        a.lengths->data[a.lengths->size++] = length;
        a.elements->size += length;
    }
    return found;
}

PyObject* recorder_call(PyObject* self, PyObject* const* args, std::size_t n, PyObject* names)
{
    if (names || PyVectorcall_NARGS(n) != 2 || !(PyTuple_CheckExact(args[1]) || PyList_CheckExact(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "expected a graph and the arguments of a call, a tuple or list");
        return nullptr;
    }
    PyObject* items = Py_NewRef(args[1]);
    PyObject* found =
        as<Recorder>(self)->record(args[0], PySequence_Fast_ITEMS(items), PySequence_Fast_GET_SIZE(items));
    Py_DECREF(items);
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

void recorder_free(PyObject* self)
{
    Recorder* x = as<Recorder>(self);
    if (x->arguments)
        for (Argument& a : *x->arguments) {
            Py_XDECREF(a.shape);
            Py_XDECREF(object(a.lengths));
            Py_XDECREF(object(a.elements));
        }
    delete x->arguments;
    delete x->lengths;
    Py_XDECREF(object(x->tape));
    Py_XDECREF(object(x->rows));
    Py_XDECREF(x->results);
    Py_TYPE(self)->tp_free(self);
}

// Parse an `Argument` of vpps/record/call_cache.py.
bool parse(PyObject* description, Argument& a)
{
    long kind;
    PyObject *shape, *into;
    if (!PyArg_ParseTuple(description, "lOLO", &kind, &shape, &a.number, &into)) return false;
    a.kind = static_cast<ArgumentKind>(kind);
    a.shape = Py_NewRef(shape);
    if (a.kind != ArgumentKind::LIST) return true;
    a.lengths = as<Ints>(PySequence_GetItem(into, 0));
    a.elements = as<Ints>(PySequence_GetItem(into, 1));
    return a.lengths && a.elements;
}

// ---- Tape: state that a graph's blocks share (vpps/record/vertices.py)

PyObject* tape_new(PyTypeObject* type, PyObject*, PyObject*)
{
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    as<Tape>(self)->levels = as<Ints>(PyObject_CallNoArgs(object(&ints_type)));
    if (!as<Tape>(self)->levels) Py_CLEAR(self);
    return self;
}

void tape_free(PyObject* self)
{
    Py_XDECREF(object(as<Tape>(self)->levels));
    Py_TYPE(self)->tp_free(self);
}

PyObject* tape_recorder(PyObject* self, PyObject* args)
{
    PyObject *rows, *arguments, *results;
    int single, takes_empty;
    if (!PyArg_ParseTuple(args, "O!O!O!pp", &ints_type, &rows, &PyTuple_Type, &arguments, &PyTuple_Type, &results,
                          &single, &takes_empty))
        return nullptr;
    PyObject* made = recorder_type.tp_alloc(&recorder_type, 0);
    if (!made) return nullptr;
    Recorder* x = as<Recorder>(made);
    x->call = recorder_call;
    x->tape = as<Tape>(Py_NewRef(self));
    x->rows = as<Ints>(Py_NewRef(rows));
    x->results = Py_NewRef(results);
    x->single = single;
    x->takes_empty = takes_empty;
    x->width = ARGS;
    x->arguments = new std::vector<Argument>;
    x->lengths = new std::vector<Py_ssize_t>;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(arguments); k++) {
        Argument& a = x->arguments->emplace_back();
        if (!parse(PyTuple_GET_ITEM(arguments, k), a)) {
            Py_DECREF(made);
            return nullptr;
        }
        x->width += a.kind != ArgumentKind::LIST;
        x->n_vectors += a.kind == ArgumentKind::VECTOR;
        if (a.kind == ArgumentKind::LIST && a.domain() >= x->lengths->size()) x->lengths->resize(a.domain() + 1);
    }
    return made;
}

}  // namespace
