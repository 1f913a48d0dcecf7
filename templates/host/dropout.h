#pragma once
#include "../random.cuh"
#include "instructions.h"
// ---- dropout, host: random words for a block of units at once
enum { RANDOM_LANES = 16, RANDOM_BLOCK = 4 * RANDOM_LANES };  // counters in parallel; units per block

// Random words of a row's units [64 block, 64 block + 64). Lane l's counter is for units l, 16 + l, 32 + l, 48 + l.
VP_DEVICE void random_words(Word* words, const Word* key, Word block, Word position, Word call, Word number)
{
    const Word k0 = key[0], k1 = key[1];
    VP_SIMD for (int l = 0; l < RANDOM_LANES; l++) {
        Philox p = {block * RANDOM_LANES + (Word)l, position, call, number};
        p.run<10>(k0, k1);
        words[l] = p.c0;
        words[RANDOM_LANES + l] = p.c1;
        words[2 * RANDOM_LANES + l] = p.c2;
        words[3 * RANDOM_LANES + l] = p.c3;
    }
}

// dst = a * scale if the unit's random word reaches the threshold, else 0; with the key off, dst = a. The words depend only
// on lists, not on a row's address or virtual processor, so that backward computes the same words.
VP_ROUTINE void dropout(const Vp& vp, const Dropout& i)
{
    const Word* key = vp.script + i.key;
    const bool off = !key[2], accumulate = i.head.flags & ACCUMULATE;
    const Word threshold = off ? 0 : i.threshold;
    const float scale = off ? 1.f : i.scale;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const float* x = i.a.row(r);
            const Word position = i.positions == vp.script ? 0 : i.positions[r];
            for (int b = u0 / RANDOM_BLOCK; b * RANDOM_BLOCK < u1; b++) {
                const int from = most(u0, b * RANDOM_BLOCK), to = least(u1, (b + 1) * RANDOM_BLOCK);
                Word words[RANDOM_BLOCK] = {0};
                if (!off) random_words(words, key, b, position, i.calls[r], i.number);
                const Word* word = words + (from - b * RANDOM_BLOCK);
                if (accumulate) {
                    VP_SIMD for (int u = from; u < to; u++) y[u] += kept(x[u], word[u - from], threshold, scale);
                } else {
                    VP_SIMD for (int u = from; u < to; u++) y[u] = kept(x[u], word[u - from], threshold, scale);
                }
            }
        }
    });
}
