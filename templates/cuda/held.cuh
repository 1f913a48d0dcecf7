// ---- matrices that a block holds: which rows of them, and what products need of shared memory
//
// First come vectors, then partial sums, then results that wait for the tail behind them, then windows.
VP_DEVICE float* sums_buffer() { return block_memory() + VP_STAGED; }
VP_DEVICE float* results_buffer() { return sums_buffer() + VP_SUMS; }

// The rows of a matrix that this virtual processor owns, counted from 0: those of its units, part after part; or, where
// matrices are dealt in turns, blocks of as many rows as a slot holds, each to the next one.
struct Owned {
    int rows, count, units, part, from, turn, vp, vps;  // in turns, vp is 0 for who begins

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
    // How many there are; `count` takes the last turn for whole.
    VP_DEVICE int there() const
    {
        return turn && count ? count - turn + least(turn, rows - ((count / turn - 1) * vps + vp) * turn) : count;
    }
    // Number of the k-th one in the matrix; -1: there is none.
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

// Zeros for `columns` columns of the vectors, at most a warp's.
VP_DEVICE void clear(float* from, int vectors, int apart, int columns)
{
    VP_ROLLED for (int v = warp(); v < vectors; v += WARPS)
        if (lane() < columns) from[v * apart + lane()] = 0.f;
}

// Begin to bring vectors [first, first + n), whole: the v-th one goes to v * apart, and so many zeros follow its columns.
VP_DEVICE void bring_vectors(const Vp& vp, const Segments& x, int first, int n, int columns, int apart, int zeros)
{
    VP_ROLLED for (int k = VP_OPAQUE(warp()); k < n * x.count; k += WARPS) {  // a segment of a vector
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

// The results of a pass that a thread finishes: row `k` of the owned ones, of vectors v, v + step, ...
struct Finishing {
    int k, v, step;
    // Of `count` rows, n vectors at a time: no division for a vector or two.
    VP_DEVICE Finishing(int count, int n)
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
    // Calls f(k, v) for all that the thread finishes of `count` rows, n vectors.
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
// Results of vectors from `first` on, as many as there is room for: what a thread block owns of each, side by side.
struct Results {
    int first;
    int room;  // vectors
    VP_DEVICE bool is_full(int next, int pass) const { return next + pass > first + room; }
};
VP_DEVICE void chained_tail(const Vp& vp, const Word* ip, const Owned& owned, int first, int last);
#endif
