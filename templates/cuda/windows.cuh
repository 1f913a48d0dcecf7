#pragma once
#include "fragments.cuh"
#include "held.cuh"
#include "timeline.h"
// ---- windows: parts of shared memory that hold the rows of a matrix, one after the other, for products
//
// Matrices may share a window. A product that needs a matrix copies it there from registers or memory. If the window is too
// small for the whole matrix, it holds a chunk of columns at a time.
VP_DEVICE float* windows() { return block_memory() + VP_WINDOWS_AT; }
VP_DEVICE int& shown(const Dense& m) { return ((int*)(windows() + VP_WINDOW_FLOATS))[m.window]; }  // current matrix and chunk
// Columns padded with zeros to a multiple of those multiplied at a time; then the stride between vectors in floats.
VP_DEVICE int padded(int columns, int kind) { return kind ? (columns + 31) & ~31 : (columns + 7) & ~7; }
VP_DEVICE int pitch_of(int columns, int kind) { return padded(columns, kind) + 4; }  // eight vectors start in different banks

// Four words of a row in window format: four floats, or eight columns in bf16.
VP_DEVICE float4 quad_of(const Dense& m, const float* row, int quad, int columns, bool by_fours)
{
    const auto four = [&](int at) -> float4 {
        if (by_fours && at < columns) return *(const float4*)(row + at);
        const auto element = [&](int c) { return c < columns ? row[c] : 0.f; };
        return {element(at), element(at + 1), element(at + 2), element(at + 3)};
    };
#if VP_FRAGMENTS
    if (m.kind == BF16_FRAGMENTS) {
        const float4 a = four(8 * quad), b = four(8 * quad + 4);
        return {as_float(bf16_pair(a.x, a.y)), as_float(bf16_pair(a.z, a.w)), as_float(bf16_pair(b.x, b.y)),
                as_float(bf16_pair(b.z, b.w))};
    }
#endif
    return four(4 * quad);
}

// Calls f(first register, row, quad) for each quad of words of matrix `number` that the thread's registers hold.
template <class F> VP_DEVICE void for_quads_in_registers(int number, int rows, int quads, F f)
{
    for_numbers<VP_HOMES>([&](auto home) {
        using H = Home<home.VALUE>;
        if (number != H::NUMBER) return;
        const int me = VP_OPAQUE(thread());
        for_numbers<H::QUADS>([&](auto k) {
            const int place = k.VALUE * THREADS + me, row = small_quotient(place, quads);
            if (row < rows) f(Number<H::AT + 4 * k.VALUE>(), row, place - row * quads);
        });
    });
}

// Starts to copy a chunk of the owned rows, or all their columns, to the window.
VP_DEVICE void bring_rows(const Vp& vp, const Dense& m, const Owned& owned, Word weights, int columns, int chunk)
{
    const bool by_fours = ((weights | (Word)columns) & 3) == 0;
    const int first = chunk * m.window_quads;
    for_places(owned.count, least(m.window_quads, m.quads - first), [&](int k, int quad) {
        const float* row = vp.pool + (weights + (Word)owned.row(k) * (Word)columns);
        float* to = windows() + m.at + k * m.pitch + 4 * quad;
        quad += first;
        if (by_fours && m.kind != BF16_FRAGMENTS && 4 * quad < columns) copy_async16(to, row + 4 * quad);
        else *(float4*)to = quad_of(m, row, quad, columns, by_fours);
    });
}

// Runs at the start of a launch. The kernel waits for the copies after the last load.
VP_ROUTINE void load(Vp& vp, const Load& i)
{
    const Dense m = dense(i.matrix);
    const Owned owned(vp, i.head);
    const int columns = (int)i.columns;
    VP_TIMELINE(if (m.home != IN_MEMORY) count_floats(vp, (size_t)owned.count * i.columns);)
    if (m.home == IN_WINDOW) {
        if (thread() == 0) shown(m) = (int)i.matrix;
        return bring_rows(vp, m, owned, i.weights, columns, 0);
    }
    if (thread() == 0 && (shown(m) & 0xffff) == (int)i.matrix) shown(m) = 0;  // left by an earlier launch
    if (m.home == IN_MEMORY) return;
    const bool by_fours = ((i.weights | i.columns) & 3) == 0;
    for_quads_in_registers((int)i.matrix, owned.count, m.quads, [&](auto at, int row, int quad) {
        const float4 e = quad_of(m, vp.pool + (i.weights + (Word)owned.row(row) * i.columns), quad, columns, by_fours);
        enum { AT = decltype(at)::VALUE };
        write_register<AT>(vp.store, e.x), write_register<AT + 1>(vp.store, e.y);
        write_register<AT + 2>(vp.store, e.z), write_register<AT + 3>(vp.store, e.w);
    });
}

// Fills the window with the matrix, or a chunk of it, unless it is there. No thread may read the window meanwhile.
VP_DEVICE void show(const Vp& vp, const Dense& m, const Owned& owned, const Matvec& i, int chunk)
{
#if VP_CHANGING_WINDOWS
    const int wanted = (int)i.matrix + (chunk << 16);
    if (shown(m) == wanted) return;
    if (m.home >= 0) {
        const int first = chunk * m.window_quads;
        for_quads_in_registers((int)i.matrix, owned.count, m.quads, [&](auto at, int row, int quad) {
            enum { AT = decltype(at)::VALUE };
            quad -= first;
            if (VP_WINDOWS_OF_CHUNKS && (unsigned)quad >= (unsigned)m.window_quads) return;
            *(float4*)(windows() + m.at + row * m.pitch + 4 * quad) = {
                read_register<AT>(vp.store), read_register<AT + 1>(vp.store), read_register<AT + 2>(vp.store),
                read_register<AT + 3>(vp.store)};
        });
    } else {
        VP_TIMELINE(count_floats(vp, (size_t)owned.count * least(m.window_quads * (m.kind == BF16_FRAGMENTS ? 8 : 4), (int)i.columns));)
        bring_rows(vp, m, owned, i.weights, (int)i.columns, chunk);
        copy_async_wait();
    }
    __syncthreads();
    if (thread() == 0) shown(m) = wanted;
#endif
}
