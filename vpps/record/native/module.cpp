// The compiled recorder: the call cache and the lists of vpps/record/vertices.py, four times as fast.
//
// No object here refers to a graph, so no reference cycles are left to the garbage collector. The interpreter's lock is
// held throughout.
#include <array>
#include "map.h"

#include <structmember.h>

namespace {

PyObject* in_progress;  // vpps.ops.operand.in_progress
PyObject* recorders_name;

// ---- Method: Cell.__call__, Graph.call and Graph.lookup; tries a recorder before the Python method

struct Method {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject* method;    // the Python method, used as fallback
    PyObject* of_graph;  // for Graph methods: class of the first argument, such as Cell; null for Cell.__call__
};

PyTypeObject method_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// Return the recorder of a graph's latest call of a kind, borrowed; null if there is none or it is a Python recorder.
Recorder* recorder_of(PyObject* graph, PyObject* kind)
{
    PyObject* all = PyObject_GetAttr(graph, recorders_name);
    if (!all) return nullptr;
    PyObject* found = PyDict_GetItemWithError(all, kind);
    Py_DECREF(all);
    return found && Py_TYPE(found) == &recorder_type ? as<Recorder>(found) : nullptr;
}

PyObject* method_call(PyObject* self, PyObject* const* args, std::size_t flagged, PyObject* names)
{
    const Py_ssize_t n = PyVectorcall_NARGS(flagged);
    PyObject* of_graph = as<Method>(self)->of_graph;
    const Py_ssize_t skip = of_graph ? 2 : 1;
    if (!names && n >= 2) {
        PyObject *graph = nullptr, *kind = nullptr;
        if (of_graph) {  // graph.call(cell, ...), graph.lookup(table, row)
            graph = object(Py_TYPE(args[1])) == of_graph ? args[0] : nullptr;
            kind = args[1];
        } else if (Py_TYPE(args[1]) == expression_type && !PyList_GET_SIZE(in_progress)) {  // cell(expression, ...)
            graph = slot(args[1], owner_at);
            kind = args[0];
        }
        if (graph) {
            Recorder* recorder = recorder_of(graph, kind);
            PyObject* found = nullptr;
            if (recorder) {
                Py_INCREF(object(recorder));
                found = recorder->record(graph, args + skip, n - skip);
                Py_DECREF(object(recorder));
            }
            if (found || PyErr_Occurred()) return found;
        }
    }
    return PyObject_Vectorcall(as<Method>(self)->method, args, flagged, names);
}

PyObject* method_new(PyTypeObject* type, PyObject* args, PyObject*)
{
    PyObject *method, *of_graph = nullptr;
    if (!PyArg_ParseTuple(args, "O|O!", &method, &PyType_Type, &of_graph)) return nullptr;
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    as<Method>(self)->call = method_call;
    as<Method>(self)->method = Py_NewRef(method);
    as<Method>(self)->of_graph = Py_XNewRef(of_graph);
    return self;
}

void method_free(PyObject* self)
{
    Py_XDECREF(as<Method>(self)->method);
    Py_XDECREF(as<Method>(self)->of_graph);
    Py_TYPE(self)->tp_free(self);
}

PyObject* method_get(PyObject* self, PyObject* instance, PyObject*)
{
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

// Name, documentation and signature come from the Python method; __class__ does not. inspect.unwrap finds the method.
PyObject* method_attribute(PyObject* self, PyObject* name)
{
    if (!PyUnicode_CompareWithASCIIString(name, "__class__")) return PyObject_GenericGetAttr(self, name);
    PyObject* method = as<Method>(self)->method;
    return PyUnicode_CompareWithASCIIString(name, "__wrapped__") ? PyObject_GetAttr(method, name) : Py_NewRef(method);
}

// ---- the module

PyObject* bind(PyObject*, PyObject* args)
{
    PyObject *expression, *list, *error;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &expression, &PyList_Type, &list, &error)) return nullptr;
    const std::array<const char*, 3> names = {"owner", "ref", "_shape"};
    const std::array<Py_ssize_t*, 3> offsets = {&owner_at, &ref_at, &shape_at};
    for (std::size_t k = 0; k < names.size(); k++) {
        PyObject* member = PyObject_GetAttrString(expression, names[k]);
        if (!member) return nullptr;
        const bool is_slot = Py_TYPE(member) == &PyMemberDescr_Type;
        if (is_slot) *offsets[k] = as<PyMemberDescrObject>(member)->d_member->offset;
        Py_DECREF(member);
        if (!is_slot) return PyErr_Format(PyExc_TypeError, "%s of an expression is not a slot", names[k]);
    }
    expression_type = as<PyTypeObject>(Py_NewRef(expression));
    in_progress = Py_NewRef(list);
    graph_error = Py_NewRef(error);
    recorders_name = PyUnicode_InternFromString("recorders");
    if (!recorders_name) return nullptr;
    Py_RETURN_NONE;
}

// addresses(*arrays): the address of each array, 0 if it has no elements; raises an error if one is not contiguous.
PyObject* addresses(PyObject*, PyObject* const* args, Py_ssize_t n)
{
    PyObject* found = PyTuple_New(n);
    for (Py_ssize_t k = 0; found && k < n; k++) {
        Py_buffer view;
        PyObject* at = nullptr;
        if (!PyObject_GetBuffer(args[k], &view, PyBUF_C_CONTIGUOUS)) {
            at = PyLong_FromVoidPtr(view.len ? view.buf : nullptr);
            PyBuffer_Release(&view);
        }
        if (at) PyTuple_SET_ITEM(found, k, at);
        else Py_CLEAR(found);
    }
    return found;
}

PyCFunction as_function(PyObject* (*f)(PyObject*, PyObject* const*, Py_ssize_t))
{
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "bind(Expression, in_progress, GraphError); call it first"},
    {"addresses", as_function(addresses), METH_FASTCALL, "addresses(*arrays)"},
    {"join", as_function(join), METH_FASTCALL, "join(source, starts, sizes, to, shift)"},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef ints_methods[] = {
    {"extend", ints_extend, METH_O, "Append ints, like list.extend."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef tape_methods[] = {
    {"recorder", tape_recorder, METH_VARARGS, "recorder(rows, arguments, results, single, takes_empty)"},
    {"map", as_function(tape_map), METH_FASTCALL, "map(form, kind, children, levels, columns, shapes, zeros, zeros_of)"},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef tape_members[] = {
    {"n_calls", T_PYSSIZET, offsetof(Tape, n_calls), 0, nullptr},
    {"levels", T_OBJECT_EX, offsetof(Tape, levels), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PySequenceMethods ints_sequence;
PyBufferProcs ints_buffer = {ints_view, ints_release};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "vpps_recorder", nullptr, -1, functions, nullptr, nullptr, nullptr,
                      nullptr};

bool ready(PyTypeObject& type, const char* name, std::size_t size, newfunc make, destructor free)
{
    type.tp_name = name;
    type.tp_basicsize = static_cast<Py_ssize_t>(size);
    type.tp_new = make;
    type.tp_dealloc = free;
    type.tp_flags |= Py_TPFLAGS_DEFAULT;
    return PyType_Ready(&type) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit_vpps_recorder()
{
    ints_sequence.sq_length = ints_length;
    ints_sequence.sq_item = ints_item;
    ints_type.tp_as_sequence = &ints_sequence;
    ints_type.tp_as_buffer = &ints_buffer;
    ints_type.tp_methods = ints_methods;
    tape_type.tp_methods = tape_methods;
    tape_type.tp_members = tape_members;
    recorder_type.tp_flags = Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    recorder_type.tp_vectorcall_offset = offsetof(Recorder, call);
    recorder_type.tp_call = PyVectorcall_Call;
    method_type.tp_flags = Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    method_type.tp_vectorcall_offset = offsetof(Method, call);
    method_type.tp_call = PyVectorcall_Call;
    method_type.tp_descr_get = method_get;
    method_type.tp_getattro = method_attribute;
    if (!ready(ints_type, "vpps_recorder.Ints", sizeof(Ints), PyType_GenericNew, ints_free) ||
        !ready(tape_type, "vpps_recorder.Tape", sizeof(Tape), tape_new, tape_free) ||
        !ready(recorder_type, "vpps_recorder.Recorder", sizeof(Recorder), nullptr, recorder_free) ||
        !ready(method_type, "vpps_recorder.Method", sizeof(Method), method_new, method_free))
        return nullptr;
    PyObject* m = PyModule_Create(&module);
    if (m && (PyModule_AddObjectRef(m, "Tape", object(&tape_type)) ||
              PyModule_AddObjectRef(m, "Method", object(&method_type))))
        Py_CLEAR(m);
    return m;
}
