#pragma once
#include "prelude.h"
// ---- fragments: operands of tensor cores (PTX ISA, "Matrix fragments for mma.m16n8k16", "... m16n8k8")
//
// A lane holds two of 16 rows, 8 apart, and one of 8 vectors. A sum's terms may be in any order that rows and vectors share,
// so a lane holds adjacent columns.

// Four rounded columns of a row or vector: a lane's share of a 16-term product.
template <int KIND> struct FragmentPart {
    enum { WORDS = KIND == BF16_FRAGMENTS ? 2 : KIND == TF32_PAIRS ? 8 : 4 };
    Word of[WORDS];

    VP_DEVICE void round(const float4& e)
    {
        const float x[4] = {e.x, e.y, e.z, e.w};
        if constexpr (KIND == BF16_FRAGMENTS) {
            VP_UNROLL for (int k = 0; k < 4; k += 2) of[k / 2] = bf16_pair(x[k], x[k + 1]);
        } else {
            VP_UNROLL for (int k = 0; k < 4; k++) {
                of[k] = tf32_of(x[k]);
                // The remainder plus half a tf32 step: tensor cores drop its last 13 bits, which rounds it. It is NaN only if
                // of[k] is NaN or infinite.
                if constexpr (KIND == TF32_PAIRS) of[4 + k] = as_word(x[k] - as_float(of[k] & ~0x1fffu)) + 0x1000;
            }
        }
    }
};

// sum += products of two groups of 8 rows with 8 vectors. A lane sums one row per group, for two adjacent vectors.
template <int KIND>
VP_DEVICE void multiply_fragments(float (&sum)[4], const FragmentPart<KIND> (&w)[2], const FragmentPart<KIND>& x)
{
    const auto &a = w[0].of, &b = w[1].of;
    if constexpr (KIND == BF16_FRAGMENTS) {
        mma_bf16(sum, a[0], b[0], a[1], b[1], x.of[0], x.of[1]);
    } else {
        VP_UNROLL for (int k = 0; k < 4; k += 2) {
            if constexpr (KIND == TF32_PAIRS) {  // the product of two small parts is below the sum's rounding error
                mma_tf32(sum, a[4 + k], b[4 + k], a[5 + k], b[5 + k], x.of[k], x.of[k + 1]);
                mma_tf32(sum, a[k], b[k], a[k + 1], b[k + 1], x.of[4 + k], x.of[5 + k]);
            }
            mma_tf32(sum, a[k], b[k], a[k + 1], b[k + 1], x.of[k], x.of[k + 1]);
        }
    }
}
