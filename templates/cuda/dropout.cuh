#pragma once
#include "../random.cuh"
#include "instructions.h"
// ---- dropout, CUDA: each thread computes the random word of its unit. The words are ordered as in host/dropout.h.
VP_ROUTINE void dropout(const Vp& vp, const Dropout& i)
{
    const Word* key = vp.script + i.key;
    const bool off = !key[2], accumulate = i.head.flags & ACCUMULATE;
    struct DropoutRow { float* y; const float* x; Word position, call; };
    const auto rows = [&](int r) {
        return DropoutRow{i.dst.row(r), i.a.row(r), i.positions == vp.script ? 0 : i.positions[r], i.calls[r]};
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, rows, [&](const DropoutRow& row, int u) {
            float v = row.x[u];
            if (!off) {
                Philox p = {(Word)u / 64 * 16 + (Word)u % 16, row.position, row.call, i.number};
                p.run<10>(key[0], key[1]);
                const Word which = (Word)u % 64 / 16;
                v = kept(v, which == 0 ? p.c0 : which == 1 ? p.c1 : which == 2 ? p.c2 : p.c3, i.threshold, i.scale);
            }
            row.y[u] = accumulate ? row.y[u] + v : v;
        });
    });
}
