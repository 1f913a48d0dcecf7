#pragma once
#include "held.cuh"
#include "timeline.h"
// ---- the published scheme (VPPS, section III-A): registers hold whole rows of weights; a warp's lanes divide the columns
//
// A warp holds R rows of a slot, a lane every 32nd column of them, C in all. A product ends with a sum over the lanes.
enum {
    TILE = VP_TILE,    // vectors that a thread multiplies at a time
    STAGE = VP_STAGE,  // stride between vectors in shared memory, in floats: the columns of the widest slot
};

// Calls f(Slot, number) for the slots of a matrix. Slots are compile-time constants, because registers have no addresses.
template <class F> VP_DEVICE void for_slots(SlotRange range, F f)
{
    for_numbers<VP_SLOTS>([&](auto s) {
        if (s.VALUE >= range.first && s.VALUE < range.last) f(Slot<s.VALUE>(), s.VALUE - range.first);
    });
}
// The warp's first row in a slot, as an index among the block's rows.
template <class S> VP_DEVICE int first_row(int number) { return (number * WARPS + VP_OPAQUE(warp())) * S::R; }

VP_ROUTINE void load(Vp& vp, const Load& i)
{
    const Owned owned(vp, i.head);
    const int columns = (int)i.columns;
    VP_TIMELINE(count_floats(vp, (size_t)owned.there() * i.columns);)
    for_slots(slots_of(i.matrix), [&](auto slot, int number) {
        using S = decltype(slot);
        for_numbers<S::R>([&](auto r) {
            const int row = owned.row(first_row<S>(number) + decltype(r)::VALUE);
            const float* from = vp.pool + (i.weights + (Word)most(row, 0) * i.columns);
            for_numbers<S::C>([&](auto c) {
                const int column = c.VALUE * WARP + lane();
                write_register<S::AT + decltype(r)::VALUE * S::C + decltype(c)::VALUE>(vp.store, row >= 0 && column < columns ? from[column] : 0.f);
            });
        });
    });
}

// Sums N values at once over the lanes of a warp. In each step two lanes exchange halves of their values, so that each keeps
// half as many. It recurses, because a loop with a varying number of values would keep them in memory.
template <int N, int O, class T> VP_DEVICE void sum_over_lanes(T& v, int l)
{
    if constexpr (O > 0) {
        constexpr int HALF = (N + 1) / 2;
        const bool upper = l & O;
        VP_UNROLL for (int k = 0; k < HALF; k++) {
            if (k + HALF < N) {
                const float give = upper ? v[k] : v[k + HALF], keep = upper ? v[k + HALF] : v[k];
                v[k] = keep + __shfl_xor_sync(~0u, give, O);
            } else {
                v[k] += __shfl_xor_sync(~0u, v[k], O);
            }
        }
        sum_over_lanes<HALF, O / 2>(v, l);
    }
}

// Index, among the N values, of lane l's k-th sum; -1 if another lane also holds that sum.
template <int N, int O> VP_DEVICE int value_of_lane(int k, int l)
{
    if constexpr (O == 0) {
        return k;
    } else {
        constexpr int HALF = (N + 1) / 2;
        const int inner = value_of_lane<HALF, O / 2>(k, l);
        if (inner < 0 || !(l & O)) return inner;
        return inner + HALF < N ? inner + HALF : -1;
    }
}

// Multiplies a slot by NV vectors; `x` is the first, in shared memory. For each result, one lane calls f(row, vector, result).
template <class S, int NV, class F> VP_DEVICE void slot_product(const Store& store, const float* x, int number, F f)
{
    enum { N = NV * S::R };
    const int l = VP_OPAQUE(lane());
    float sum[N] = {};
    for_numbers<S::C>([&](auto c) {
        float e[NV];
        VP_UNROLL for (int v = 0; v < NV; v++) e[v] = x[v * STAGE + c.VALUE * WARP + l];
        for_numbers<S::R>([&](auto r) {
            const float w = read_register<S::AT + decltype(r)::VALUE * S::C + decltype(c)::VALUE>(store);
            VP_UNROLL for (int v = 0; v < NV; v++) sum[v * S::R + r.VALUE] = fma_(w, e[v], sum[v * S::R + r.VALUE]);
        });
    });
    sum_over_lanes<N, WARP / 2>(sum, l);
    VP_UNROLL for (int k = 0; k < (N + WARP - 1) / WARP; k++) {
        const int value = value_of_lane<N, WARP / 2>(k, l);
        if (value >= 0 && value < N) f(first_row<S>(number) + value % S::R, value / S::R, sum[k]);
    }
}

// dst = W x + bias.
VP_DEVICE void slot_matvec(Vp& vp, const Matvec& i)
{
    const SlotRange slots = slots_of(i.matrix);
    const Owned owned(vp, i.head);
    const bool accumulate = i.head.flags & ACCUMULATE;
    const int columns = (int)i.columns;
    VP_ROLLED for (int row = 0; row < i.head.n; row += TILE) {
        const int n = least(TILE, i.head.n - row);
        bring_vectors(vp, i.x, row, n, columns, STAGE, slots.columns - columns);
        copy_async_wait();
        __syncthreads();
        for_slots(slots, [&](auto slot, int number) {
            using S = decltype(slot);
            const auto finish = [&](int k, int v, float sum) {
                const int unit = owned.row(k);
                if (unit < 0 || v >= n) return;
                sum += i.bias.row(row + v)[VP_OPAQUE(i.bias.scalar) ? 0 : unit];
                float* y = i.dst.row(row + v) + unit;
                *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
            };
            if (TILE == 1 || n == 1) slot_product<S, 1>(vp.store, block_memory(), number, finish);
            else slot_product<S, TILE>(vp.store, block_memory(), number, finish);
        });
        __syncthreads();
    }
}

VP_ROUTINE void held_matvec(Vp& vp, const Matvec& i) { slot_matvec(vp, i); }

// dst += W^T x from the rows of W: every virtual processor adds its rows' contribution (VPPS, section III-C1). The order of
// additions varies, so the last bits of results differ between runs.
VP_ROUTINE void matvec_transposed(Vp& vp, const MatvecTransposed& i)
{
    const Owned owned(vp, i.head);
    const int columns = (int)i.columns;
    VP_ROLLED for (int row = 0; row < i.head.n; row += TILE) {
        const int n = least(TILE, i.head.n - row);
        float* const dy = block_memory();
        for_places(n, owned.count, [&](int v, int k) {
            const int unit = owned.row(k);
            dy[v * owned.count + k] = unit < 0 ? 0.f : i.x.row(row + v)[unit];
        });
        __syncthreads();
        for_slots(slots_of(i.matrix), [&](auto slot, int number) {
            using S = decltype(slot);
            const int first = first_row<S>(number);
            if (first >= owned.count) return;
            VP_ROLLED for (int v = 0; v < n; v++) {
                float d[S::R];
                VP_UNROLL for (int r = 0; r < S::R; r++) d[r] = first + r < owned.count ? dy[v * owned.count + first + r] : 0.f;
                float* y = i.dst.row(row + v);
                for_numbers<S::C>([&](auto c) {
                    const int column = c.VALUE * WARP + lane();
                    float sum = 0.f;
                    for_numbers<S::R>([&](auto r) {
                        sum = fma_(read_register<S::AT + decltype(r)::VALUE * S::C + decltype(c)::VALUE>(vp.store), d[r.VALUE], sum);
                    });
                    if (column < columns) add_float(y + column, sum);
                });
            }
        });
        __syncthreads();
    }
}
