#pragma once
#include "../elementwise.cuh"
#include "../tails.cuh"
#include "held.cuh"
#include "sync.h"
// ---- tails, CUDA: a thread computes a unit. It reads the addresses of views from the instruction in shared memory when it
// needs them, because so many addresses do not fit in registers beside the weights.
struct Unit {
    const Vp& vp;
    const Word* views;
    int r, u;
    float sums[VP_MOST_SUMS ? VP_MOST_SUMS : 1];
    const float* results;  // the product's result for the unit; consecutive parts are `part` floats apart
    int part;
    float* pool;
    // A row of a view with a float per unit and no index list; its mode is its stride (Load in script/tails.py).
    VP_DEVICE float* row(int k) const { return pool + (views[3 * k] + (Word)r * views[3 * k + 1]); }
    VP_DEVICE float* listed_row(int k) const
    {
        const Word address = views[3 * k], mode = views[3 * k + 1], step = mode & VP_OFFSET_MASK;
        Word at = address + (Word)r * step;
        if (VP_OPAQUE(mode & VP_INDEXED)) at = vp.script[address + r] + step;
        return pool + at;
    }
    VP_DEVICE float sum(int k) const { return sums[k]; }
    VP_DEVICE float load(int k) const { return row(k)[u]; }
    VP_DEVICE float one(int k) const { return pool[views[3 * k] + (Word)r * (views[3 * k + 1] & VP_OFFSET_MASK)]; }
    VP_DEVICE float load_listed(int k) const { return listed_row(k)[u]; }
    VP_DEVICE float one_listed(int k) const { return listed_row(k)[0]; }
    VP_DEVICE float result(int k) const { return results[(int)views[3 * k] * part]; }
    VP_DEVICE float constant(int k) const { return as_float(views[3 * k]); }
    VP_DEVICE void store(int k, float v) const { row(k)[u] = v; }
};

// Computes the sums of listed rows, with which a tail begins.
VP_DEVICE void make_sums(Unit& at)
{
#if VP_MOST_SUMS
    const Word* script = at.vp.script;
    Word begin[VP_MOST_SUMS], end[VP_MOST_SUMS], row[VP_MOST_SUMS];
    bool is_sum = true;
    // Nearly all lists have one row. Loads for all sums are issued before the first use.
    VP_UNROLL for (int k = 0; k < VP_MOST_SUMS; k++) {
        const Word use = at.views[3 * k + 2];
        is_sum = is_sum && (use == USE_SUM || use == USE_MEAN);  // sums come first; other words follow the views
        const Word* offsets = script + at.views[3 * k];
        begin[k] = is_sum ? offsets[at.r] : 0, end[k] = is_sum ? offsets[at.r + 1] : 0;
    }
    VP_UNROLL for (int k = 0; k < VP_MOST_SUMS; k++) row[k] = begin[k] < end[k] ? script[begin[k]] : 0;
    VP_UNROLL for (int k = 0; k < VP_MOST_SUMS; k++)
        at.sums[k] = begin[k] < end[k] ? 0.f + at.vp.pool[row[k] + at.views[3 * k + 1] + at.u] : 0.f;
    VP_ROLLED for (int k = 0; k < VP_MOST_SUMS; k++) {
        Word terms = 0;
        VP_UNROLL for (int s = 0; s < VP_MOST_SUMS; s++) terms = s == k ? end[s] - begin[s] : terms;
        if (terms < 2) continue;
        const Word* view = at.views + 3 * k;
        float total;
        list_sum(at.vp, script + view[0], at.r, view[1] + at.u, view[2] == USE_MEAN, 1, &total);
        VP_UNROLL for (int s = 0; s < VP_MOST_SUMS; s++) at.sums[s] = s == k ? total : at.sums[s];
    }
#endif
}

// Calls f(unit) for the units that this virtual processor owns, after computing their sums. All tails share this code.
template <class F> VP_DEVICE void for_tail(const Vp& vp, const Tail& i, F f)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, [](int r) { return r; }, [&](int r, int u) {
            Unit at = {vp, i.views.first, r, u, {}, nullptr, 0, VP_OPAQUE(vp.pool)};
            make_sums(at);
            f(at);
        });
    });
}

// Calls f(unit) like for_tail, for vectors [first, last) of a product whose results are in shared memory.
template <class F> VP_DEVICE void for_chained(const Vp& vp, const Tail& i, const Owned& owned, int first, int last, F f)
{
    const float* results = results_buffer() - owned.from;
    for_units(vp, first, last, owned.from, owned.from + owned.units, [](int r) { return r; }, [&](int r, int u) {
        Unit at = {vp, i.views.first, r, u, {}, results + (r - first) * owned.count + u, owned.units,
                   VP_OPAQUE(vp.pool)};
        make_sums(at);
        f(at);
    });
}
