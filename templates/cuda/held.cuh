#pragma once
#include "instructions.h"
// ---- matrices on the chip: the rows that a block owns, and product buffers in shared memory
//
// The buffers are in this order: vectors, partial sums, results for a chained tail, windows.
VP_DEVICE float* sums_buffer() { return block_memory() + VP_STAGED; }
VP_DEVICE float* results_buffer() { return sums_buffer() + VP_SUMS; }

// The rows of a matrix that this virtual processor owns, counted from 0. They are the rows of its units, part after part. A
// matrix that is dealt in turns is dealt round-robin, in blocks of as many rows as a slot holds.
struct Owned {
    int rows, count, units, part, from, turn, vp, vps;  // in turns, vp is relative to the processor with the first block

    VP_DEVICE Owned(const Vp& v, const Head& h) : rows(h.width), vps(v.count)
    {
        turn = VP_TURNS && h.flags & TURNS ? h.parts & 0xffff : 0;
        if (turn) {
            vp = v.id - (h.parts >> 16);
            vp += vp < 0 ? vps : 0;
            count = ((rows + turn - 1) / turn - vp + vps - 1) / vps * turn;
            units = part = from = 0;
        } else {
            vp = v.id;
            part = small_quotient(rows, h.parts);
            from = share(part, vp, vps);
            units = share(part, vp + 1, vps) - from;
            count = units * h.parts;
        }
    }
    // Number of rows that exist; `count` includes rows that are missing from the last block.
    VP_DEVICE int there() const
    {
        return turn && count ? count - turn + least(turn, rows - ((count / turn - 1) * vps + vp) * turn) : count;
    }
    // Index in the matrix of the k-th owned row, or -1 if there is none.
    VP_DEVICE int row(int k) const
    {
        if (k >= count) return -1;
        if (!VP_TURNS || !VP_OPAQUE(turn)) {
            const int p = small_quotient(k, units);
            return p * part + from + k - p * units;
        }
        const int t = small_quotient(k, turn), r = (t * vps + vp) * turn + k - t * turn;
        return r < rows ? r : -1;
    }
};

// Zeroes `columns` columns (at most 32) of each vector.
VP_DEVICE void clear(float* from, int vectors, int apart, int columns)
{
    VP_ROLLED for (int v = warp(); v < vectors; v += WARPS)
        if (lane() < columns) from[v * apart + lane()] = 0.f;
}

// Starts to copy whole vectors [first, first + n). The v-th goes to v * apart; `zeros` zeros follow its columns.
VP_DEVICE void bring_vectors(const Vp& vp, const Segments& x, int first, int n, int columns, int apart, int zeros)
{
    VP_ROLLED for (int k = VP_OPAQUE(warp()); k < n * x.count; k += WARPS) {  // one segment of one vector
        const int v = x.count == 1 ? k : small_quotient(k, x.count), s = k - v * x.count;
        const Word *at = x.first + 3 * s, mode = at[1];
        const Word address = at[0] + (Word)(first + v) * (mode & VP_INDEXED ? 1 : mode & VP_OFFSET_MASK);
        const Word from = mode & VP_INDEXED ? vp.script[address] + (mode & VP_OFFSET_MASK) : address;
        int before = 0;
        VP_ROLLED for (int other = 0; other < s; other++) before += (int)x.first[3 * other + 2];
        const int floats = (int)at[2];
        float* to = block_memory() + v * apart + before;
        if (((from | (Word)before | (Word)floats) & 3) == 0) {
            VP_ROLLED for (int c = 4 * lane(); c < floats; c += 4 * WARP) copy_async16(to + c, vp.pool + (from + c));
        } else {
            VP_ROLLED for (int c = lane(); c < floats; c += WARP) copy_async4(to + c, vp.pool + (from + c));
        }
    }
    if (zeros) clear(block_memory() + columns, n, apart, zeros);
}

// The results that a thread completes in a pass: owned row `k` for vectors v, v + step, ...
struct ThreadResults {
    int k, v, step;
    // Divides `count` rows and n vectors among the threads; one or two vectors need no division instruction.
    VP_DEVICE ThreadResults(int count, int n)
    {
        step = 1, v = 0;
        if (count < THREADS && n > 2) {
            step = small_quotient(THREADS, most(1, count)), v = small_quotient(thread(), most(1, count));
        } else if (2 * count <= THREADS) {
            step = 2, v = thread() < count ? 0 : 1;
        }
        k = v < step ? thread() - v * count : count;
        if (k >= count && count < THREADS) k = count;
    }
    // Calls f(k, v) for each of the thread's results among `count` rows and n vectors.
    template <class F> VP_DEVICE void each(int count, int n, F f) const
    {
        int row = k, vector = v;
        VP_ROLLED while (row < count && vector < n) {
            f(row, vector);
            vector += step;
            if (vector >= n) vector = v, row += THREADS;
        }
    }
};

#if VP_CHAINS
// Buffer of results for a chained tail: the thread block's units for vectors [first, first + room), vector by vector.
struct ResultBuffer {
    int first;
    int room;  // capacity in vectors
    VP_DEVICE bool is_full(int next, int pass) const { return next + pass > first + room; }
};
VP_DEVICE void chained_tail(const Vp& vp, const Word* ip, const Owned& owned, int first, int last);
#endif
