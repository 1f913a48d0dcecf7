// ---- vectors in shared memory, a tile of them at a time

// The pieces that vectors consist of: the k-th one is segment k % count of vector k / count. Lane l of every warp looks up
// pieces l, l + 32 ... where they lie, and whichever warp copies a piece asks that lane.
struct Pieces {
    const Vp& vp;
    const Segments& x;
    int rows;     // vectors of the instruction
    int columns;  // of a vector
    int width;    // of a vector in the slots of the matrix: with zeros behind it, as zero times NaN is not zero

    struct Place {
        Word address, mode;
        int vector, offset, width;
        VP_DEVICE bool indexed() const { return mode & VP_INDEXED; }
    };
    VP_DEVICE Place place(int k) const
    {
        const int vector = x.count <= 2 ? k >> (x.count - 1) : small_quotient(k, x.count), mine = k - vector * x.count;
        int offset = 0;
        VP_ROLLED for (int s = 0; s < x.count - 1; s++) offset += s < mine ? (int)x.first[3 * s + 2] : 0;
        const Word* segment = x.first + 3 * mine;
        return {segment[0], segment[1], vector, offset, (int)segment[2]};
    }
    // Begin to look up where a piece of the tile at `row` lies; nobody waits for it here.
    VP_DEVICE Word look_up(const Place& p, int row) const
    {
        const int r = least(row + p.vector, rows - 1);
        return p.indexed() ? vp.script[p.address + r] : p.address + (Word)r * (p.mode & VP_OFFSET_MASK);
    }
    // Begin to copy vectors [row, row + n) to a buffer. `found` is what look_up(mine, row) found, of the lane's first piece.
    VP_DEVICE void copy(int row, int n, const Place& mine, Word found, float* buffer) const
    {
        const int count = n * x.count;
        VP_ROLLED for (int first = 0; first < count; first += WARP) {
            Place p = mine;
            if (first) p = place(first + lane());
            Word from = first ? look_up(p, row) : found;
            if (p.indexed()) from += p.mode & VP_OFFSET_MASK;
            const int to = p.vector * STAGE + p.offset, floats = p.vector < n ? p.width : 0;
            VP_ROLLED for (int k = 0; k < least(WARP, count - first); k += WARPS) copy_piece(k + warp(), from, to, floats, buffer);
        }
        if (columns == width) return;
        VP_ROLLED for (int v = 0; v < n; v++)
            VP_ROLLED for (int c = columns + thread(); c < width; c += THREADS) buffer[v * STAGE + c] = 0.f;
    }
    // By the whole warp, the piece that lane `k` has looked up.
    VP_DEVICE void copy_piece(int k, Word from, int to, int floats, float* buffer) const
    {
        const float* source = vp.pool + __shfl_sync(~0u, from, k);
        float* target = buffer + __shfl_sync(~0u, to, k);
        const int n = __shfl_sync(~0u, floats, k);
        if ((((size_t)source / 4 | (size_t)(target - buffer) | (size_t)n) & 3) == 0) {
            VP_ROLLED for (int c = 4 * lane(); c < n; c += 8 * WARP) {
                copy_async16(target + c, source + c);
                if (c + 4 * WARP < n) copy_async16(target + c + 4 * WARP, source + c + 4 * WARP);
            }
        } else {
            VP_ROLLED for (int c = lane(); c < n; c += WARP) copy_async4(target + c, source + c);
        }
    }
};

// Calls f(buffer, row, n) for tiles of the staged vectors of rows [0, total); the next tile comes while f works, and where
// the one after that lies. f must come to a barrier of the block after its last use of the buffer.
template <class F> VP_DEVICE void for_staged(const Vp& vp, const Segments& x, int columns, int width, int total, F f)
{
    const Pieces pieces = {vp, x, total, columns, width};
    int row = 0, n = 0;  // of the tile that is there
    // Where registers are scarce it is worked out anew for every tile.
    const bool held = VP_CACHED <= 128;
    Pieces::Place mine = pieces.place(lane());
    Word found = pieces.look_up(mine, 0);
    VP_ROLLED for (int k = 0; true; k++) {
        const int next = row + n, size = least(TILE, total - next);
        if (!held) mine = pieces.place(VP_OPAQUE(lane()));
        if (BUFFERS > 1 && size) {
            pieces.copy(next, size, mine, found, stage_buffer(k));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        if (n) f(stage_buffer(k + BUFFERS - 1), row, n);
        if (!size) return;
        if (BUFFERS == 1) {
            if (!held) mine = pieces.place(VP_OPAQUE(lane()));
            pieces.copy(next, size, mine, found, stage_buffer(0));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        copy_async_wait();
        __syncthreads();
        row = next;
        n = size;
    }
}
