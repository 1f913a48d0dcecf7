// Records usual maps (vpps/record/bulk.py) and joins ranges (vpps/record/ranges.py): one call each, no temporaries.
//
// If a map is unusual or wrong, these functions return None (False) and change nothing. NumPy code then records the map
// or reports the error.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>
#include "recorder.h"

namespace {

using std::int32_t;
using u64 = std::uint64_t;

// A buffer view of an array; empty if the object is not an array, or not of the expected form.
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
    // True if the elements are signed ints of this size.
    bool holds_ints(Py_ssize_t bytes) const
    {
        return is_there && view.itemsize == bytes && view.format && std::strchr("bhilq", view.format[0]) &&
               !view.format[1];
    }
    Py_ssize_t length() const { return view.shape[0]; }
    template <class T> const T* data() const { return static_cast<const T*>(view.buf); }
};

// ---- vertices

// Reads a map's encoding (vpps/record/native/interface.py), made by vpps/record/packed.py, from front to back.
struct FormReader {
    const i64* at;

    template <class T> const T* take(i64 n = 1)
    {
        return reinterpret_cast<const T*>(std::exchange(at, at + n * static_cast<i64>(sizeof(T) / sizeof(i64))));
    }
};

// Indices of some of a kind's ints.
struct IntSelection {
    const i64* at;
    i64 n;

    void read(FormReader& from)
    {
        n = *from.take<i64>();
        at = from.take<i64>(n);
    }
};

// All vertices' children: a table with a row per vertex, or lists, end to end.
struct Structure {
    const int32_t *elements, *offsets;  // child or -1; for lists, the start of each list, and the end
    i64 arity;                          // number of table columns

    i64 begin(i64 row) const { return offsets ? offsets[row] : row * arity; }
    i64 end(i64 row) const { return begin(row + 1); }
};

// Products of one child result, computed separately from the vertices of their kind.
struct ProductsOfPart {
    ProductsForm of;
    std::vector<int32_t> own, children;  // index of each vertex's product; each product's child, or -1
    i64 at, start, base;                 // start of the arrays in memory; first call and value

    i64 n() const { return static_cast<i64>(children.size()); }
    i64 first_of(i64 number) const { return base + number * of.n_results; }
};

struct PartOfMap {
    i64 kind, n, at;  // at: start of the arrays in memory
    const ArgumentForm* arguments;
    const ArgumentForm* lists;  // for children: the first child, and the result
    const IntForm* ints;
    i64 n_arguments, n_lists, n_ints;
    i64 used = 0;              // number of children that are read one by one, starting with the first
    bool reads_inputs;         // a vector argument is an input
    bool reads_zeros = false;  // a child that is read is missing
    int32_t* rows;
    i64 n_crossing;  // values computed once per distinct ints; 0 if the kind is not split
    bool whole;      // the whole cell is computed once per distinct ints
    IntSelection once, rest;
    i64 at_once, base_once;  // start of the arrays for values computed once, and the first value
    std::vector<int32_t> own, firsts;  // index of each vertex's distinct ints; first vertex of each
    std::vector<ProductsOfPart> products;  // computed separately
    std::vector<i64> list_at;              // start of each list's arrays, relative to `at`

    i64 n_args() const
    {
        i64 n = n_arguments + n_crossing;
        for (const ProductsOfPart& product : products) n += product.of.n_results;
        return n;
    }
    bool is_cut() const { return n_crossing > 0; }
    i64 n_own() const { return whole ? 0 : n; }  // 0 if vertices are computed once
    // Level of these vertices, unless they read children or inputs. Zeros have level 0; products of zeros have level 1.
    int32_t lowest() const { return reads_zeros && !products.empty() ? 2 : reads_zeros || (is_cut() && !whole); }
    // True if the level of vertices with empty lists is 0 instead, because only lists read zeros.
    bool lowest_varies() const { return reads_zeros && !used && !is_cut(); }

    void read(FormReader& from)
    {
        const auto* of_kind = from.take<KindForm>();
        n_arguments = of_kind->n_arguments;
        n_lists = of_kind->n_lists;
        n_ints = of_kind->n_ints;
        arguments = from.take<ArgumentForm>(n_arguments);
        reads_inputs = std::any_of(arguments, arguments + n_arguments, [](auto& a) { return a.child == OF_INPUT; });
        for (i64 k = 0; k < n_arguments; k++) used = std::max(used, arguments[k].child + 1);  // OF_INPUT is -1
        lists = from.take<ArgumentForm>(n_lists);
        ints = from.take<IntForm>(n_ints);
        const auto* cut = from.take<CutForm>();
        n_crossing = cut->n_crossing;
        whole = cut->whole;
        products.resize(static_cast<std::size_t>(cut->n_products));
        for (ProductsOfPart& product : products) product.of = *from.take<ProductsForm>();
        once.read(from);
        rest.read(from);
    }
};

// The functions below read one array and write another. They copy numbers out of structures first, because the compiler
// otherwise assumes overlap. Each loop is in a separate function, so it can use all registers.

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

// Values normally follow from vertex numbers. If some vertices are computed once per distinct ints, `first` holds each
// vertex's first value instead.

// Maps a child to one of its results' values.
template <bool looks_up> struct ResultOf {
    i64 result, width, zero;  // zero: value for a missing child
    const i64* __restrict first;

    i64 operator()(i64 child) const { return child < 0 ? zero : result + (looks_up ? first[child] : width * child); }
};

template <bool looks_up>
[[gnu::noinline]] void fill_argument(const Structure of, const int32_t* __restrict rows, i64 n, i64* __restrict to,
                                     i64 step, i64 number, const ResultOf<looks_up> result)
{
    for (i64 i = 0; i < n; i++) {
        const i64 row = rows[i], place = of.begin(row) + number;
        to[i * step] = place < of.end(row) ? result(of.elements[place]) : result.zero;
    }
}

// Write the start of each vertex's list, and the end; then the lists' elements.
template <bool looks_up>
[[gnu::noinline]] void fill_list(const Structure of, const int32_t* __restrict rows, i64 n, i64* __restrict to,
                                 i64 start, const ResultOf<looks_up> result)
{
    i64 size = 0;
    to[0] = 0;
    for (i64 i = 0; i < n; i++) {
        const i64 row = rows[i], end = of.end(row);
        for (i64 k = of.begin(row) + start; k < end; k++) to[n + 1 + size++] = result(of.elements[k]);
        to[i + 1] = size;
    }
}

template <bool looks_up>
[[gnu::noinline]] void fill_vertices(const int32_t* __restrict heights, const int32_t* __restrict rows, i64 n,
                                     i64* __restrict to, i64 start, i64 base, i64 width, i64 rise,
                                     const i64* __restrict first)
{
    for (i64 i = 0; i < n; i++) {
        const i64 row = rows[i], value = looks_up ? first[row] : base + width * row;
        to[CALL * n + i] = start + (looks_up ? (value - base) / width : row);
        to[FIRST * n + i] = value;
        to[LEVEL * n + i] = heights[row] + rise;
    }
}

// Data that all of a map's kinds share.
struct WholeMap {
    i64 n, width, start, base, rise;  // start, base: the first vertex's recording index and value
    i64 step;                         // minimum distance of a vertex above its children
    const int32_t* heights;
    Structure children;
    i64* first;  // each vertex's first value; null if it follows from the vertex number
    const std::vector<std::unique_ptr<View>>& columns;
    std::vector<i64> zeros;  // by child result; -1 if not read

    i64 first_of(i64 row) const { return first ? first[row] : base + width * row; }
    // A missing child is read as zeros, at level 0. Vertices computed once are also at level 0.
    i64 level_of(i64 row) const { return row < 0 || first_of(row) < base ? 0 : heights[row] + rise; }
    template <bool looks_up> ResultOf<looks_up> result(i64 number) const
    {
        return {looks_up ? number : base + number, width, zeros[static_cast<std::size_t>(number)], first};
    }

    // Write one int argument of some vertices; return true if all ints are in range.
    bool take(const PartOfMap& part, i64 k, const int32_t* rows, i64 n_rows, i64* to, i64 step) const
    {
        const auto [number, low, high] = part.ints[k];
        const View& column = *columns[static_cast<std::size_t>(number)];
        return column.view.itemsize == 4 ? fill_ints(column.data<int32_t>(), rows, n_rows, to, step, low, high)
                                         : fill_ints(column.data<i64>(), rows, n_rows, to, step, low, high);
    }
};

// Return true if all children are -1 or vertices at lower levels, and no vertex has more children than its cell takes.
// Sets `reads_zeros` if a child that is read is missing.
bool check_children(PartOfMap& part, const WholeMap& map)
{
    const Structure of = map.children;
    bool wrong = false, missing = false;
    for (i64 i = 0; i < part.n; i++) {
        const i64 row = part.rows[i], begin = of.begin(row), end = of.end(row), level = map.heights[row];
        missing |= end - begin < part.used;
        for (i64 k = begin; k < end; k++) {
            const i64 child = of.elements[k];
            const bool is_taken = part.n_lists || k - begin < part.used;
            if (child < 0) {
                wrong |= child < -1;
                missing |= is_taken || of.offsets;  // for lists, vpps/record/bulk.py checks all children
            } else {
                wrong |= !is_taken || child >= map.n || map.heights[child] >= level;
            }
        }
    }
    part.reads_zeros = missing && (part.used || part.n_lists);
    return !wrong;
}

// Fill the arrays of one kind: calls, first values, levels, arguments, ints, lists. Return true if inputs are in range.
template <bool looks_up> bool fill(const PartOfMap& part, i64* to, const WholeMap& map)
{
    const i64 n = part.n_own(), n_args = part.n_args();
    if (!n) return true;
    fill_vertices<looks_up>(map.heights, part.rows, n, to, map.start, map.base, map.width, map.rise, map.first);
    i64* args = to + ARGS * n;
    i64* ints = args + n * n_args;
    for (i64 k = 0; k < part.n_arguments; k++) {
        const auto [child, number] = part.arguments[k];
        if (child != OF_INPUT)
            fill_argument(map.children, part.rows, n, args + k, n_args, child, map.result<looks_up>(number));
        else if (!fill_ints(map.columns[static_cast<std::size_t>(number)]->data<i64>(), part.rows, n, args + k, n_args,
                            i64{0}, map.base))
            return false;
    }
    for (i64 k = 0; k < part.n_lists; k++)
        fill_list(map.children, part.rows, n, to + part.list_at[static_cast<std::size_t>(k)], part.lists[k].child,
                  map.result<looks_up>(part.lists[k].number));
    for (i64 k = 0; k < part.n_crossing; k++)
        for (i64 i = 0; i < n; i++)
            args[i * n_args + part.n_arguments + k] =
                part.base_once + part.own[static_cast<std::size_t>(i)] * part.n_crossing + k;
    i64* of_products = args + part.n_arguments + part.n_crossing;
    for (const ProductsOfPart& product : part.products)
        for (i64 k = 0; k < product.of.n_results; k++, of_products++)
            for (i64 i = 0; i < n; i++)
                of_products[i * n_args] = product.first_of(product.own[static_cast<std::size_t>(i)]) + k;
    for (i64 k = 0; k < part.rest.n; k++)
        if (!map.take(part, part.rest.at[k], part.rows, n, ints + k, part.rest.n)) return false;
    return true;
}

// Fill the arrays for values computed once per distinct ints.
void fill_once(const PartOfMap& part, i64* to, i64 start, const WholeMap& map)
{
    const i64 n = static_cast<i64>(part.firsts.size());
    for (i64 i = 0; i < n; i++) to[CALL * n + i] = start + i;
    for (i64 i = 0; i < n; i++) to[FIRST * n + i] = part.base_once + part.n_crossing * i;
    std::fill_n(to + LEVEL * n, n, 0);
    for (i64 k = 0; k < part.once.n; k++)
        map.take(part, part.once.at[k], part.firsts.data(), n, to + ARGS * n + k, part.once.n);
}

// Fill the arrays for products of children.
void fill_products(const ProductsOfPart& product, i64* to, const WholeMap& map)
{
    const i64 n = product.n();
    for (i64 i = 0; i < n; i++) {
        const i64 child = product.children[static_cast<std::size_t>(i)];
        to[CALL * n + i] = product.start + i;
        to[FIRST * n + i] = product.first_of(i);
        to[LEVEL * n + i] = map.level_of(child) + 1;
        to[ARGS * n + i] = child < 0 ? map.zeros[static_cast<std::size_t>(product.of.number)]
                                     : map.first_of(child) + product.of.number;
    }
}

// Find a kind's vertices with equal ints, by hashing. False if any int is out of range or there are more than two.
bool find_distinct(PartOfMap& part, const WholeMap& map)
{
    const i64 n = part.n;
    if (part.once.n < 1 || part.once.n > 2) return false;
    std::vector<i64> keys(static_cast<std::size_t>(n)), second;
    if (!map.take(part, part.once.at[0], part.rows, n, keys.data(), 1)) return false;
    if (part.once.n == 2) {
        second.resize(static_cast<std::size_t>(n));
        if (!map.take(part, part.once.at[1], part.rows, n, second.data(), 1)) return false;
        for (std::size_t i = 0; i < second.size(); i++)  // both have 32 bits
            keys[i] = static_cast<i64>(static_cast<u64>(keys[i]) << 32 | (static_cast<u64>(second[i]) & 0xffffffffu));
    }
    int bits = 4;
    while ((i64{1} << bits) < 2 * n) bits++;
    std::vector<int32_t> table(std::size_t{1} << bits, -1);  // hash table of indices into `known`
    const std::size_t mask = table.size() - 1;
    part.own.resize(static_cast<std::size_t>(n));
    part.firsts.clear();
    std::vector<i64> known;
    for (std::size_t i = 0; i < part.own.size(); i++) {
        // Multiplying by 2^64 over the golden ratio spreads consecutive keys (Knuth, vol. 3, 6.4).
        std::size_t place = static_cast<std::size_t>(static_cast<u64>(keys[i]) * 0x9e3779b97f4a7c15u >> (64 - bits));
        while (table[place] >= 0 && known[static_cast<std::size_t>(table[place])] != keys[i]) place = (place + 1) & mask;
        if (table[place] < 0) {
            table[place] = static_cast<int32_t>(known.size());
            known.push_back(keys[i]);
            part.firsts.push_back(part.rows[i]);
        }
        part.own[i] = table[place];
    }
    return true;
}

using Parts = std::vector<PartOfMap*>;

// Find the products of children to compute separately; true if this saves enough of them.
bool find_products(const Parts& parts, const WholeMap& map)
{
    if (std::all_of(parts.begin(), parts.end(), [](auto* part) { return part->products.empty(); })) return false;
    // The first vertex among equal ones; missing children are also equal.
    std::vector<int32_t> same(static_cast<std::size_t>(map.n) + 1), number(same.size());
    std::iota(same.begin(), same.end(), 0);
    for (const PartOfMap* part : parts)
        for (std::size_t i = 0; part->whole && i < part->own.size(); i++)
            same[static_cast<std::size_t>(part->rows[i])] = part->firsts[static_cast<std::size_t>(part->own[i])];
    i64 used = 0, made = 0;
    for (PartOfMap* part : parts)
        for (ProductsOfPart& product : part->products) {
            std::fill(number.begin(), number.end(), -1);
            product.own.resize(static_cast<std::size_t>(part->n));
            for (std::size_t i = 0; i < product.own.size(); i++) {
                const i64 child = map.children.elements[map.children.begin(part->rows[i]) + product.of.child];
                const i64 row = child < 0 ? map.n : child;
                int32_t& found = number[static_cast<std::size_t>(same[static_cast<std::size_t>(row)])];
                if (found < 0) {
                    found = static_cast<int32_t>(product.n());
                    product.children.push_back(static_cast<int32_t>(child));
                }
                product.own[i] = found;
            }
            used += part->n * product.of.n_results;
            made += product.n() * product.of.n_results;
        }
    return used && (used - made) * ONE_IN >= used;
}

// Find each vertex's lowest level that operands other than children allow. False if an input value does not exist.
bool find_floor(const Parts& parts, const WholeMap& map, const Ints* levels, int32_t* floor)
{
    for (const PartOfMap* part : parts) {
        for (i64 i = 0; i < part->n; i++) {
            const i64 row = part->rows[i];
            const bool reads_none = part->lowest_varies() && map.children.begin(row) == map.children.end(row);
            floor[row] = reads_none ? 0 : part->lowest();
        }
        for (i64 k = 0; k < part->n_arguments; k++) {
            const auto [child, number] = part->arguments[k];
            if (child != OF_INPUT) continue;
            const View& column = *map.columns[static_cast<std::size_t>(number)];
            if (!column.holds_ints(sizeof(i64))) return false;
            for (i64 i = 0; i < part->n; i++) {
                const i64 row = part->rows[i], value = column.data<i64>()[row];
                if (static_cast<u64>(value) >= static_cast<u64>(levels->size)) return false;
                floor[row] = static_cast<int32_t>(std::max(i64{floor[row]}, levels->data[value] + 1));
            }
        }
    }
    return true;
}

// Return how far each vertex's level is above its height, given the floors; -1 if vertices differ.
i64 rise_of(const int32_t* heights, const int32_t* floor, i64 n)
{
    i64 rise = 0, n_lowest = 0, n_others = 0;
    for (i64 i = 0; i < n; i++) rise = std::max(rise, i64{floor[i]} - heights[i]);
    for (i64 i = 0; i < n; i++) {
        n_lowest += heights[i] == 0;
        n_others += heights[i] == 0 && floor[i] != rise;
    }
    return n_others || !n_lowest ? -1 : rise;
}

// Raise vertices' floors to levels above those of their children.
void raise_levels(const WholeMap& map, int32_t* floor)
{
    std::vector<int32_t> order(static_cast<std::size_t>(map.n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return map.heights[a] < map.heights[b]; });
    for (const i64 vertex : order)
        for (i64 k = map.children.begin(vertex); k < map.children.end(vertex); k++) {
            const i64 child = map.children.elements[k];
            if (child >= 0) floor[vertex] = static_cast<int32_t>(std::max(i64{floor[vertex]}, floor[child] + map.step));
        }
}

// Find the levels, as heights and rise. False if an input value does not exist.
bool find_levels(const Parts& parts, WholeMap& map, const Ints* levels, std::vector<int32_t>& floor)
{
    map.rise = parts[0]->lowest();
    bool alike = true;
    for (const PartOfMap* part : parts)
        alike &= !part->reads_inputs && !part->lowest_varies() && part->lowest() == map.rise;
    if (alike) return true;
    floor.resize(static_cast<std::size_t>(map.n));
    if (!find_floor(parts, map, levels, floor.data())) return false;
    map.rise = rise_of(map.heights, floor.data(), map.n);
    if (map.rise < 0) {
        raise_levels(map, floor.data());
        map.heights = floor.data();
        map.rise = 0;
    }
    return true;
}

// Find a kind's vertices, without a branch, which would be unpredictable.
[[gnu::noinline]] i64 find_rows(const signed char* __restrict kind, i64 n, i64 wanted, int32_t* __restrict rows)
{
    i64 found = 0;
    for (i64 i = 0; i < n; i++) {
        rows[found] = static_cast<int32_t>(i);
        found += kind[i] == wanted;
    }
    return found;
}

[[gnu::noinline]] void fill_levels(const int32_t* __restrict heights, i64 n, i64 width, i64 rise, i64* __restrict to)
{
    for (i64 k = 0; k < width; k++)
        for (i64 i = 0; i < n; i++) to[i * width + k] = heights[i] + rise;
}

// Find each vertex's first value if some kinds are computed once per distinct ints.
void find_first(const Parts& order, i64 n, i64 base, i64 width, i64* first)
{
    std::fill_n(first, n, i64{-1});
    for (const PartOfMap* part : order)
        for (i64 i = 0; part->whole && i < part->n; i++)
            first[part->rows[i]] = part->base_once + part->n_crossing * part->own[static_cast<std::size_t>(i)];
    for (i64 i = 0; i < n; i++)
        if (first[i] < 0) {
            first[i] = base;
            base += width;
        }
}

// Zeros that the map reads and the graph lacks: shape index and value.
using NewZeros = std::vector<std::pair<Py_ssize_t, i64>>;

// Find the zeros that are read, and number those that are missing. `known` are the graph's zeros by shape; `shape_of`
// is each child result's shape index. False if a Python call failed.
bool find_zeros(const Parts& parts, const i64* shape_of, PyObject* shapes, PyObject* known, i64 next, WholeMap& map,
                NewZeros& made)
{
    std::vector<bool> is_read(map.zeros.size());
    for (const PartOfMap* part : parts) {
        if (!part->reads_zeros) continue;
        for (i64 k = 0; k < part->n_arguments; k++)
            if (part->arguments[k].child != OF_INPUT) is_read[static_cast<std::size_t>(part->arguments[k].number)] = true;
        for (i64 k = 0; k < part->n_lists; k++) is_read[static_cast<std::size_t>(part->lists[k].number)] = true;
    }
    for (std::size_t k = 0; k < is_read.size(); k++) {
        if (!is_read[k]) continue;
        const Py_ssize_t shape = shape_of[k];
        PyObject* value = PyDict_GetItemWithError(known, PyTuple_GET_ITEM(shapes, shape));
        auto same = std::find_if(made.begin(), made.end(), [&](auto& zeros) { return zeros.first == shape; });
        if (!value && same == made.end()) same = made.insert(same, {shape, next++});
        map.zeros[k] = value ? PyLong_AsLongLong(value) : same->second;
    }
    return !PyErr_Occurred();
}

// Make zeros with the graph's `zeros_of(shape)`; true if they got the expected values.
bool make_zeros(const NewZeros& zeros, PyObject* shapes, PyObject* zeros_of)
{
    for (const auto& [shape, value] : zeros) {
        PyObject* made = PyObject_CallOneArg(zeros_of, PyTuple_GET_ITEM(shapes, shape));
        const bool is_same = made && PyLong_AsLongLong(slot(made, ref_at)) == value;
        Py_XDECREF(made);
        if (!is_same) return false;
    }
    return true;
}

// Place a kind's lists after its other arrays; return how many ints they take.
i64 place_lists(PartOfMap& part, i64 at, const Structure& children)
{
    const i64 begin = at;
    for (i64 k = 0; k < part.n_lists; k++) {
        part.list_at.push_back(at);
        at += part.n + 1;
        for (i64 i = 0; i < part.n; i++) {
            const i64 row = part.rows[i];
            at += std::max(children.end(row) - children.begin(row) - part.lists[k].child, i64{0});
        }
    }
    return at - begin;
}

bool add(PyObject* parts, const PartOfMap* part, i64 n, i64 at, i64 what, const std::vector<i64>& list_at = {})
{
    PyObject* lists = PyTuple_New(static_cast<Py_ssize_t>(list_at.size()));
    for (std::size_t k = 0; lists && k < list_at.size(); k++)
        PyTuple_SET_ITEM(lists, static_cast<Py_ssize_t>(k), PyLong_FromLongLong(list_at[k]));
    PyObject* described = lists ? Py_BuildValue("LLLLN", part->kind, n, at, what, lists) : nullptr;
    const bool added = described && !PyList_Append(parts, described);
    Py_XDECREF(described);
    return added;
}

// Describe each chunk: kind, number of vertices, start in memory, contents of the chunk, starts of lists.
PyObject* describe(const Parts& order)
{
    PyObject* parts = PyList_New(0);
    bool ok = parts;
    for (const PartOfMap* part : order)
        ok = ok && (!part->is_cut() || add(parts, part, static_cast<i64>(part->firsts.size()), part->at_once, ONCE));
    for (const PartOfMap* part : order) {
        i64 number = PRODUCTS;
        for (const ProductsOfPart& product : part->products)
            ok = ok && add(parts, part, product.n(), product.at, number++);
    }
    for (const PartOfMap* part : order)
        ok = ok && (!part->n_own() ||
                    add(parts, part, part->n, part->at, part->products.empty() ? REST : APART, part->list_at));
    if (!ok) Py_CLEAR(parts);
    return parts;
}

// True if these are valid offsets of n lists with `n_elements` elements in all.
bool are_offsets(const View& offsets, i64 n, i64 n_elements)
{
    if (!offsets.holds_ints(4) || offsets.length() != n + 1) return false;
    const int32_t* ends = offsets.data<int32_t>();
    return ends[0] == 0 && ends[n] == n_elements && std::is_sorted(ends, ends + n + 1);
}

// map(form, kind, children, levels, columns, shapes, zeros, zeros_of): makes the values of n vertices, and all chunks'
// arrays in one buffer. Returns (memory, its address, first value, start of the vertices' first values in memory or -1
// if they follow from the first value, highest level, [(kind, vertices, start in memory, contents, relative starts of
// lists), ...]). Chunks computed once come first, then products of children, then the rest, each in the order of first
// vertices. The products' values come last. Before all this, `zeros_of(shape)` makes zeros for missing children.
PyObject* tape_map(PyObject* self, PyObject* const* args, Py_ssize_t n_given)
{
    if (n_given != 8 || !PyTuple_CheckExact(args[4]) || !PyDict_CheckExact(args[6])) Py_RETURN_NONE;
    Tape* tape = as<Tape>(self);
    const View form(args[0], 1), levels(args[3], 1);
    const i64 n = levels.holds_ints(4) ? levels.length() : 0;
    if (!n || n > INT32_MAX / 2 || !form.holds_ints(sizeof(i64))) Py_RETURN_NONE;
    FormReader from{form.data<i64>()};
    const auto [arity, width, n_kinds, n_results] = *from.take<MapForm>();
    const auto* shape_of = from.take<i64>(n_results);
    const bool has_lists = arity < 0;
    if (has_lists && !(PyTuple_CheckExact(args[2]) && PyTuple_GET_SIZE(args[2]) == 2)) Py_RETURN_NONE;
    const View children(has_lists ? PyTuple_GET_ITEM(args[2], 1) : args[2], has_lists ? 1 : 2);
    const View offsets(has_lists ? PyTuple_GET_ITEM(args[2], 0) : Py_None, 1);
    if (arity && !children.holds_ints(4)) Py_RETURN_NONE;
    if (has_lists ? !are_offsets(offsets, n, children.length())
                  : arity && !(children.length() == n && children.view.shape[1] == arity))
        Py_RETURN_NONE;
    std::vector<std::unique_ptr<View>> columns;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args[4]); k++) {
        columns.push_back(std::make_unique<View>(PyTuple_GET_ITEM(args[4], k), 1));
        const View& column = *columns.back();
        if (!(column.holds_ints(4) || column.holds_ints(8)) || column.length() != n) Py_RETURN_NONE;
    }
    std::vector<PartOfMap> parts(static_cast<std::size_t>(n_kinds));
    for (PartOfMap& part : parts) {
        part.kind = &part - parts.data();
        part.read(from);
    }
    const std::unique_ptr<int32_t[]> rows(new int32_t[static_cast<std::size_t>(n + 1)]);  // find_rows writes one more
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
        if (all != n) Py_RETURN_NONE;  // a vertex has no valid kind
    }
    Parts order;
    for (PartOfMap& part : parts)
        if (part.n) order.push_back(&part);
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->rows[0] < b->rows[0]; });

    const Structure structure{arity ? children.data<int32_t>() : nullptr,
                              has_lists ? offsets.data<int32_t>() : nullptr, arity};
    WholeMap map{n, width, 0, 0, 0, 1, levels.data<int32_t>(), structure, nullptr, columns,
                 std::vector<i64>(static_cast<std::size_t>(n_results), -1)};
    std::vector<int32_t> floor, doubled;  // the map refers to these
    for (i64 i = 0; i < n; i++)
        if (static_cast<u64>(map.heights[i]) >= static_cast<u64>(n)) Py_RETURN_NONE;
    for (PartOfMap* part : order)
        if (!check_children(*part, map)) Py_RETURN_NONE;
    NewZeros zeros;
    if (!find_zeros(order, shape_of, args[5], args[6], tape->levels->size, map, zeros)) return nullptr;
    const i64 n_zeros = static_cast<i64>(zeros.size()), first_value = tape->levels->size + n_zeros;
    map.start = tape->n_calls + n_zeros;
    map.base = first_value;
    for (PartOfMap* part : order)
        if (part->is_cut() && !find_distinct(*part, map)) Py_RETURN_NONE;
    if (find_products(order, map)) {  // each level becomes two levels
        map.step = 2;
        doubled.assign(map.heights, map.heights + n);
        for (int32_t& height : doubled) height *= 2;
        map.heights = doubled.data();
    } else {
        for (PartOfMap* part : order) part->products.clear();
    }
    if (!find_levels(order, map, tape->levels, floor)) Py_RETURN_NONE;
    i64 start = map.start, size = 0, n_own = 0;
    bool looks_up = false;
    for (PartOfMap* part : order) {
        if (part->is_cut()) {
            const i64 n_once = static_cast<i64>(part->firsts.size());
            part->at_once = size;
            part->base_once = map.base;
            size += n_once * (ARGS + part->once.n);
            map.base += n_once * part->n_crossing;
            map.start += n_once;
        }
        part->at = size;
        size += part->n_own() * (ARGS + part->n_args() + part->rest.n);
        if (part->n_own()) size += place_lists(*part, size - part->at, map.children);
        n_own += part->n_own();
        looks_up |= part->whole;
    }
    i64 n_values = map.base - first_value + n_own * width;
    for (PartOfMap* part : order)
        for (ProductsOfPart& product : part->products) {
            product.at = size;
            product.start = map.start;
            product.base = first_value + n_values;
            size += product.n() * (ARGS + 1);
            map.start += product.n();
            n_values += product.n() * product.of.n_results;
        }
    const i64 at_first = looks_up ? size : -1;
    if (looks_up) size += n;
    PyObject* made = PyObject_CallNoArgs(object(&ints_type));
    if (!made || !as<Ints>(made)->reserve(size) || !tape->levels->reserve(n_zeros + n_values)) {
        Py_XDECREF(made);
        return nullptr;
    }
    Ints* memory = as<Ints>(made);
    memory->size = size;
    if (looks_up) {
        map.first = memory->data + at_first;
        find_first(order, n, map.base, width, map.first);
    }
    for (const PartOfMap* part : order) {
        if (part->is_cut()) fill_once(*part, memory->data + part->at_once, start, map);
        start += static_cast<i64>(part->firsts.size());
        i64* to = memory->data + part->at;
        if (!(looks_up ? fill<true>(*part, to, map) : fill<false>(*part, to, map))) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
        for (const ProductsOfPart& product : part->products) fill_products(product, memory->data + product.at, map);
    }
    PyObject* found = describe(order);
    const i64 highest = *std::max_element(map.heights, map.heights + n) + map.rise;
    const i64 address = static_cast<i64>(reinterpret_cast<std::intptr_t>(memory->data));
    PyObject* result = found ? Py_BuildValue("NLLLLN", made, address, map.base, at_first, highest, found) : nullptr;
    if (!result) {
        if (!found) Py_DECREF(made);
        return nullptr;
    }
    // Allocation may trigger a garbage collection that runs code which records in this graph; NumPy then takes over.
    if (!make_zeros(zeros, args[5], args[7]) || first_value != tape->levels->size ||
        !tape->levels->reserve(n_values)) {
        Py_DECREF(result);
        if (PyErr_Occurred()) return nullptr;
        Py_RETURN_NONE;
    }
    i64* to = tape->levels->data + first_value;
    std::fill_n(to, map.base - first_value, i64{0});
    to += map.base - first_value;
    if (!looks_up) {
        fill_levels(map.heights, n, width, map.rise, to);
        to += n * width;
    } else {
        for (i64 i = 0; i < n; i++)
            if (map.first[i] >= map.base) to = std::fill_n(to, width, map.heights[i] + map.rise);
    }
    for (const PartOfMap* part : order)
        for (const ProductsOfPart& product : part->products)
            for (const int32_t child : product.children) to = std::fill_n(to, product.of.n_results, map.level_of(child) + 1);
    tape->levels->size += n_values;
    return result;
}

// ---- ranges of rows

// join(source, starts, sizes, to, shift): copies the rows of each range, one range after another; returns False if it
// cannot. With `shift`, elements are int32: the result row where the range begins is added to each non-negative
// element; negative elements become -1.
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
