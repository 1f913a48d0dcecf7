#pragma once
#include "../tails.cuh"
#include "instructions.h"
// ---- tails, host: they are compiled into a library (templates/tails.cpp.j2) separate from the kernel, which serves every
// model. Sums of listed rows are computed strip by strip; the rest is one vector loop.

// A program's interface to one unit of a row. Views are numbered in this order: sums, loads, constants, stores.
struct Unit {
    float* const* rows;
    const float* constants;
    const float (*sums)[STRIP];
    int u, from;  // from: first unit of the strip
    VP_DEVICE float sum(int k) const { return sums[k][u - from]; }
    VP_DEVICE float load(int k) const { return rows[k][u]; }
    VP_DEVICE float one(int k) const { return rows[k][0]; }
    VP_DEVICE float load_listed(int k) const { return load(k); }
    VP_DEVICE float one_listed(int k) const { return one(k); }
    VP_DEVICE float constant(int k) const { return constants[k]; }
    VP_DEVICE void store(int k, float v) const { rows[k][u] = v; }
};

// Runs a tail with its generated program.
template <class Program> static void run_tail(const Vp& vp, const Tail& i)
{
    enum { VIEWS = Program::VIEWS, SUMS = Program::SUMS };
    Operand of[VIEWS];
    int use[VIEWS];  // USE_*, where other segments have their width
    float constants[VIEWS];
    for (int k = 0; k < VIEWS; k++) {
        of[k] = segment(vp, i.views, k, &use[k]);
        constants[k] = as_float(i.views.first[3 * k]);
    }
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* rows[VIEWS];
            float sums[SUMS ? SUMS : 1][STRIP];
            for (int k = SUMS; k < VIEWS; k++) rows[k] = of[k].row(r);
            const auto run = [&](int from, int width) VP_INLINE {
                for (int k = 0; k < SUMS; k++) {
                    const Word* words = i.views.first + 3 * k;
                    list_sum(vp, vp.script + words[0], r, words[1] + from, use[k] == USE_MEAN, width, sums[k]);
                }
                VP_SIMD for (int u = from; u < from + width; u++) Program::unit(Unit{rows, constants, sums, u, from});
            };
            int u = u0;
            if (SUMS)
                for (; u + STRIP <= u1; u += STRIP) run(u, STRIP);
            if (u < u1) run(u, u1 - u);
        }
    });
}
