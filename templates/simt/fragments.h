// ---- tensor cores, with the layouts in the PTX ISA ("Matrix fragments for mma.m16n8k16", "... m16n8k8", movmatrix).
// Products are exact and are added in order in float32; hardware may add in another order.
#pragma once
#include <cstring>

#include "clocks.h"

namespace simt {

struct Operands {  // operand registers of a lane
    float* c;
    uint32_t *a, *b;
};
struct Fragments {
    Operands* of[LANES];
};

// Element `half` of a register with P elements: bf16 (P = 2) or tf32 (P = 1).
template <int P> float element(uint32_t word, int half)
{
    const uint32_t bits = P == 2 ? (half ? word & 0xffff0000u : word << 16) : word & ~0x1fffu;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// C += A B, with A of 16 x K and B of K x 8. Four lanes share a row of A, or a column of B.
template <int P, int K> void mma(const Fragments& lanes)
{
    constexpr int SPAN = 4 * P;  // elements of a row that one register in each of four lanes holds
    float a[16][K], b[K][8];
    for (int k = 0; k < K; k++) {
        const int lane = k % SPAN / P, half = k % P, word = k / SPAN;
        for (int m = 0; m < 16; m++) a[m][k] = element<P>(lanes.of[m % 8 * 4 + lane]->a[m / 8 + 2 * word], half);
        for (int n = 0; n < 8; n++) b[k][n] = element<P>(lanes.of[n * 4 + lane]->b[word], half);
    }
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            float& c = lanes.of[m % 8 * 4 + n / 2]->c[m / 8 * 2 + n % 2];
            for (int k = 0; k < K; k++) c = (float)((double)c + (double)a[m][k] * b[k][n]);
        }
}

// Transposes an 8 x 8 matrix of half words.
inline void movmatrix(const Fragments& lanes)
{
    uint32_t half[8][8];
    for (int k = 0; k < 64; k++) half[k / 8][k % 8] = lanes.of[k / 2]->a[0] >> k % 2 * 16 & 0xffff;
    for (int l = 0; l < (int)LANES; l++)
        lanes.of[l]->a[0] = half[l % 4 * 2][l / 4] | half[l % 4 * 2 + 1][l / 4] << 16;
}

}  // namespace simt
