#pragma once
#include "prelude.h"
// ---- random numbers: counter-based Philox 4x32-10 (Salmon et al. 2011). Mirrors vpps/ops/philox.py, bit for bit.
struct Philox {
    Word c0, c1, c2, c3;
    template <int ROUNDS> VP_DEVICE void run(Word k0, Word k1)
    {
        const unsigned long long p0 = (unsigned long long)0xd2511f53u * c0, p1 = (unsigned long long)0xcd9e8d57u * c2;
        c0 = (Word)(p1 >> 32) ^ c1 ^ k0;
        c1 = (Word)p1;
        c2 = (Word)(p0 >> 32) ^ c3 ^ k1;
        c3 = (Word)p0;
        if constexpr (ROUNDS > 1) run<ROUNDS - 1>(k0 + 0x9e3779b9u, k1 + 0xbb67ae85u);
    }
};

VP_DEVICE float kept(float x, Word word, Word threshold, float scale)
{
    const float scaled = x * scale;
    return word < threshold ? 0.f : scaled;
}
