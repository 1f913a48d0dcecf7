// What vpps/graph/bulk.py does for maps of the usual form, and vpps/graph/ranges.py: in one call, without a temporary.
//
// Whatever is not of that form, or not what it should be, is left to NumPy, which also knows what to say about it: then
// these functions return None (False) and have changed nothing.
#pragma once

#include <algorithm>
#include <memory>
#include "recorder.h"

namespace {

using std::int32_t;
using u64 = std::uint64_t;

// A view on an array, of none where the object is none, or not of the wanted form.
struct View {
    Py_buffer view;
    bool is_there = false;

    View(PyObject* array, int dimensions, int flags = PyBUF_C_CONTIGUOUS)
    {
        if (PyObject_GetBuffer(array, &view, flags | PyBUF_FORMAT)) {
            PyErr_Clear();
            return;
        }
        is_there = view.ndim == dimensions || dimensions < 0;
        if (!is_there) PyBuffer_Release(&view);
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    ~View()
    {
        if (is_there) PyBuffer_Release(&view);
    }
    // Whether the elements are signed ints of so many bytes.
    bool holds_ints(Py_ssize_t bytes) const
    {
        return is_there && view.itemsize == bytes && view.format && std::strchr("bhilq", view.format[0]) &&
               !view.format[1];
    }
    Py_ssize_t length() const { return view.shape[0]; }
    template <class T> const T* data() const { return static_cast<const T*>(view.buf); }
};

// ---- vertices

// The form of a map (vpps/graph/packed.py): arity, outputs of a vertex, number of columns, number of kinds; then of
// each kind how many vector arguments and ints it has, its vector arguments (number of a child, and which of its
// results), and its ints (column, lowest value, what is past the highest).
struct Kinds {
    const i64 *at, *end;

    bool has(i64 n) const { return end - at >= n; }
};

struct PartOfMap {
    i64 kind, n, at;  // where its arrays begin in the memory
    const i64 *arguments, *ints;
    i64 n_arguments, n_ints;
    int32_t* rows;
};

bool read_part(Kinds& from, i64 arity, i64 n_columns, PartOfMap& part)
{
    if (!from.has(2)) return false;
    part.n_arguments = *from.at++;
    part.n_ints = *from.at++;
    if (!from.has(2 * part.n_arguments + 3 * part.n_ints)) return false;
    part.arguments = from.at;
    part.ints = from.at += 2 * part.n_arguments;
    from.at += 3 * part.n_ints;
    for (i64 k = 0; k < part.n_arguments; k++)
        if (part.arguments[2 * k] < 0 || part.arguments[2 * k] >= arity) return false;
    for (i64 k = 0; k < part.n_ints; k++)
        if (part.ints[3 * k] < 0 || part.ints[3 * k] >= n_columns) return false;
    return true;
}

// What follows reads from one array and writes to another. Numbers are copied out of structures first, which the
// compiler could not do for fear of overlap, and each loop has the registers for itself.

template <class T>
[[gnu::noinline]] bool fill_ints(const T* __restrict column, const int32_t* __restrict rows, i64 n, i64* __restrict to,
                                 i64 step, i64 low, i64 high)
{
    const u64 range = static_cast<u64>(high - low);
    bool beyond = false;
    for (i64 i = 0; i < n; i++) {
        const i64 value = column[rows[i]];
        beyond |= static_cast<u64>(value) - static_cast<u64>(low) >= range;
        to[i * step] = value;
    }
    return !beyond;
}

[[gnu::noinline]] bool fill_argument(const int32_t* __restrict children, const int32_t* __restrict rows, i64 n,
                                     i64* __restrict to, i64 step, i64 arity, i64 number, i64 width, i64 result,
                                     i64 n_all)
{
    bool beyond = false;
    for (i64 i = 0; i < n; i++) {
        const i64 child = children[rows[i] * arity + number];
        beyond |= static_cast<u64>(child) >= static_cast<u64>(n_all);
        to[i * step] = result + width * child;
    }
    return !beyond;
}

[[gnu::noinline]] void fill_vertices(const int32_t* __restrict heights, const int32_t* __restrict rows, i64 n,
                                     i64* __restrict to, i64 start, i64 base, i64 width)
{
    for (i64 i = 0; i < n; i++) to[i] = start + rows[i];
    for (i64 i = 0; i < n; i++) to[n + i] = base + width * rows[i];
    for (i64 i = 0; i < n; i++) to[2 * n + i] = heights[rows[i]];
}

// Fill the arrays of one kind: calls, first values, levels, arguments, ints. Whether children and ints are in range.
bool fill(const PartOfMap& part, i64* to, const Tape* tape, i64 n_all, i64 arity, i64 width, const int32_t* heights,
          const int32_t* children, const std::vector<std::unique_ptr<View>>& columns)
{
    const i64 n = part.n, base = tape->levels->size;
    if (!n) return true;
    fill_vertices(heights, part.rows, n, to, tape->n_calls, base, width);
    i64* args = to + 3 * n;
    i64* ints = args + n * part.n_arguments;
    for (i64 k = 0; k < part.n_arguments; k++)
        if (!fill_argument(children, part.rows, n, args + k, part.n_arguments, arity, part.arguments[2 * k], width,
                           base + part.arguments[2 * k + 1], n_all))
            return false;
    for (i64 k = 0; k < part.n_ints; k++) {
        const i64* of = part.ints + 3 * k;
        const View& column = *columns[of[0]];
        const bool fits =
            column.view.itemsize == 4
                ? fill_ints(column.data<int32_t>(), part.rows, n, ints + k, part.n_ints, of[1], of[2])
                : fill_ints(column.data<i64>(), part.rows, n, ints + k, part.n_ints, of[1], of[2]);
        if (!fits) return false;
    }
    return true;
}

// The vertices of a kind; without a branch, which nobody could foresee.
[[gnu::noinline]] i64 find_rows(const signed char* __restrict kind, i64 n, i64 wanted, int32_t* __restrict rows)
{
    i64 found = 0;
    for (i64 i = 0; i < n; i++) {
        rows[found] = static_cast<int32_t>(i);
        found += kind[i] == wanted;
    }
    return found;
}

[[gnu::noinline]] void fill_levels(const int32_t* __restrict heights, i64 n, i64 width, i64* __restrict to)
{
    for (i64 k = 0; k < width; k++)
        for (i64 i = 0; i < n; i++) to[i * width + k] = heights[i];
}

// map(form, kind, children, levels, columns): makes the values of n vertices and, in one memory, the arrays of each
// kind's chunk. Returns (memory, its address, first value, highest level, ((kind, vertices, place in the memory),
// ...)), the kinds in the order of their first vertices.
PyObject* tape_map(PyObject* self, PyObject* const* args, Py_ssize_t n_given)
{
    if (n_given != 5 || !PyTuple_CheckExact(args[4])) Py_RETURN_NONE;
    Tape* tape = as<Tape>(self);
    const View form(args[0], 1), levels(args[3], 1);
    const i64 n = levels.holds_ints(4) ? levels.length() : 0;
    if (!n || n > INT32_MAX || !form.holds_ints(sizeof(i64)) || form.length() < 4) Py_RETURN_NONE;
    Kinds from{form.data<i64>(), form.data<i64>() + form.length()};
    const i64 arity = *from.at++, width = *from.at++, n_columns = *from.at++, n_kinds = *from.at++;
    const View children(args[2], 2);
    if (arity && !(children.holds_ints(4) && children.length() == n && children.view.shape[1] == arity))
        Py_RETURN_NONE;
    std::vector<std::unique_ptr<View>> columns;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args[4]); k++) {
        columns.push_back(std::make_unique<View>(PyTuple_GET_ITEM(args[4], k), 1));
        const View& column = *columns.back();
        if (!(column.holds_ints(4) || column.holds_ints(8)) || column.length() != n) Py_RETURN_NONE;
    }
    if (static_cast<i64>(columns.size()) != n_columns || width < 1 || n_kinds < 1 || n_kinds > form.length())
        Py_RETURN_NONE;
    std::vector<PartOfMap> parts(static_cast<std::size_t>(n_kinds));
    for (PartOfMap& part : parts) {
        part.kind = &part - parts.data();
        if (!read_part(from, arity, n_columns, part)) Py_RETURN_NONE;
    }
    const std::unique_ptr<int32_t[]> rows(new int32_t[static_cast<std::size_t>(n + 1)]);  // one more for find_rows
    if (args[1] == Py_None) {
        if (n_kinds != 1) Py_RETURN_NONE;
        parts[0].rows = rows.get();
        parts[0].n = n;
        for (i64 i = 0; i < n; i++) rows[static_cast<std::size_t>(i)] = static_cast<int32_t>(i);
    } else {
        const View kind(args[1], 1);
        if (!kind.holds_ints(1) || kind.length() != n) Py_RETURN_NONE;
        i64 all = 0;
        for (PartOfMap& part : parts) {
            part.rows = rows.get() + all;
            part.n = find_rows(kind.data<signed char>(), n, part.kind, part.rows);
            all += part.n;
        }
        if (all != n) Py_RETURN_NONE;  // some are of no kind
    }
    i64 size = 0;
    for (PartOfMap& part : parts) {
        part.at = size;
        size += part.n * (3 + part.n_arguments + part.n_ints);
    }
    const int32_t* heights = levels.data<int32_t>();
    PyObject* made = PyObject_CallNoArgs(object(&ints_type));
    if (!made || !as<Ints>(made)->reserve(size) || !tape->levels->reserve(n * width)) {
        Py_XDECREF(made);
        return nullptr;
    }
    Ints* memory = as<Ints>(made);
    const int32_t* of_children = arity ? children.data<int32_t>() : nullptr;
    memory->size = size;
    for (const PartOfMap& part : parts)
        if (!fill(part, memory->data + part.at, tape, n, arity, width, heights, of_children, columns)) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
    std::vector<const PartOfMap*> order;
    for (const PartOfMap& part : parts)
        if (part.n) order.push_back(&part);
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->rows[0] < b->rows[0]; });
    const i64 base = tape->levels->size;
    PyObject* found = PyTuple_New(static_cast<Py_ssize_t>(order.size()));
    for (std::size_t k = 0; found && k < order.size(); k++) {
        PyObject* part = Py_BuildValue("LLL", order[k]->kind, order[k]->n, order[k]->at);
        if (part) PyTuple_SET_ITEM(found, static_cast<Py_ssize_t>(k), part);
        else Py_CLEAR(found);
    }
    const i64 highest = *std::max_element(heights, heights + n);
    const i64 address = static_cast<i64>(reinterpret_cast<std::intptr_t>(memory->data));
    PyObject* result = found ? Py_BuildValue("NLLLN", made, address, base, highest, found) : nullptr;
    if (!result) {
        if (!found) Py_DECREF(made);
        return nullptr;
    }
    // New objects may have started a garbage collection, and it code that recorded in this graph: then NumPy does it.
    if (base != tape->levels->size || !tape->levels->reserve(n * width)) {
        Py_DECREF(result);
        if (PyErr_Occurred()) return nullptr;
        Py_RETURN_NONE;
    }
    fill_levels(heights, n, width, tape->levels->data + base);
    tape->levels->size += n * width;
    return result;
}

// ---- ranges of rows

// join(source, starts, sizes, to, shift): copies the rows of each range, one range after the other; whether that could
// be done. With `shift` elements are int32, and to those that are not negative the row is added where their range
// begins; the others become -1.
PyObject* join(PyObject*, PyObject* const* args, Py_ssize_t n_given)
{
    if (n_given != 5) Py_RETURN_FALSE;
    const View source(args[0], -1), starts(args[1], 1), sizes(args[2], 1);
    const View to(args[3], -1, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const bool shift = args[4] == Py_True;
    if (!source.is_there || !to.is_there || !starts.holds_ints(8) || !sizes.holds_ints(8)) Py_RETURN_FALSE;
    if (source.view.ndim < 1 || to.view.ndim != source.view.ndim || starts.length() != sizes.length()) Py_RETURN_FALSE;
    if (source.view.itemsize != to.view.itemsize || (shift && !source.holds_ints(4))) Py_RETURN_FALSE;
    i64 width = 1;
    for (int d = 1; d < source.view.ndim; d++) {
        if (source.view.shape[d] != to.view.shape[d]) Py_RETURN_FALSE;
        width *= source.view.shape[d];
    }
    i64 total = 0;
    for (i64 k = 0; k < starts.length(); k++) {
        const i64 start = starts.data<i64>()[k], size = sizes.data<i64>()[k];
        if (start < 0 || size < 0 || start > source.length() || size > source.length() - start) Py_RETURN_FALSE;
        total += size;
        if (total > to.length()) Py_RETURN_FALSE;
    }
    if (total != to.length()) Py_RETURN_FALSE;
    i64 row = 0;
    for (i64 k = 0; k < starts.length(); k++) {
        const i64 start = starts.data<i64>()[k] * width, size = sizes.data<i64>()[k];
        if (shift) {
            const int32_t* from = source.data<int32_t>() + start;
            int32_t* into = static_cast<int32_t*>(to.view.buf) + row * width;
            const int32_t by = static_cast<int32_t>(row);
            for (i64 i = 0; i < size * width; i++) into[i] = from[i] < 0 ? -1 : from[i] + by;
        } else {
            const i64 item = source.view.itemsize;
            std::memcpy(static_cast<char*>(to.view.buf) + row * width * item, source.data<char>() + start * item,
                        static_cast<std::size_t>(size * width * item));
        }
        row += size;
    }
    Py_RETURN_TRUE;
}

}  // namespace
