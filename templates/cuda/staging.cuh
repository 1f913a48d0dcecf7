// ---- vectors in shared memory, as many at a time as a pass has

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
    // Begin to look up where a piece of the pass at `row` lies; nobody waits for it here.
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
            VP_ROLLED for (int k = 0; k < least(WARP, count - first); k += (VP_AMPLE ? 2 : 1) * WARPS) {
                if constexpr (VP_AMPLE) copy_two(k + warp(), from, to, floats, buffer);
                else copy_piece(k + warp(), from, to, floats, buffer);
            }
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
    // The pieces of lanes `k` and k + WARPS side by side: one alone is over before what it asks other lanes for has come. All
    // lanes take all turns, without a branch: where some have no floats left they copy nothing.
    VP_DEVICE void copy_two(int k, Word from, int to, int floats, float* buffer) const
    {
        const float* source[2];
        float* target[2];
        int n[2];
        Word all = 0;
        VP_UNROLL for (int j = 0; j < 2; j++) {
            const Word first = __shfl_sync(~0u, from, k + j * WARPS);
            const int place = __shfl_sync(~0u, to, k + j * WARPS);
            n[j] = __shfl_sync(~0u, floats, k + j * WARPS);
            source[j] = vp.pool + first, target[j] = buffer + place;
            all |= first | (Word)(place | n[j]);
        }
        if (all & 3) {
            VP_UNROLL for (int j = 0; j < 2; j++)
                VP_ROLLED for (int c = lane(); c < n[j]; c += WARP) copy_async4(target[j] + c, source[j] + c);
            return;
        }
        const int end = most(n[0], n[1]);
        VP_UNROLL for (int j = 0; j < 2; j++) n[j] -= 4 * lane(), source[j] += 4 * lane(), target[j] += 4 * lane();
        VP_ROLLED for (int c = 0; c < end; c += 8 * WARP) {
            VP_UNROLL for (int j = 0; j < 2; j++) {
                copy_async16_if(c < n[j], target[j], source[j]);
                copy_async16_if(c + 4 * WARP < n[j], target[j] + 4 * WARP, source[j] + 4 * WARP);
                target[j] += 8 * WARP, source[j] += 8 * WARP;
            }
        }
    }
};

#if VP_IN_PLACE
// Vectors that warps multiply where they lie, as each needs other columns than the others: where those of a warp lie in one
// segment. Then a lane looks up where two vectors of a pass lie, from the warp's columns on.
struct VectorsInMemory {
    enum { MOST = 2 * WARP };  // of a pass
    Pieces pieces;
    Pieces::Place mine;  // the lane's first one
    int pass;            // vectors; 0: they have to be staged
    Word found[2];
    bool aligned;        // all of them
    const float* first;  // what the lane brings of the first eight
    int apart;           // from the partial sums of a vector to those of the next one
    float* sums;         // the lane's first one of the first slot

    // For the slots of a matrix; results of a pass are `room` vectors' at most.
    VP_DEVICE VectorsInMemory(const Pieces& p, Range slots, int room) : pieces(p), mine{}
    {
        const Geometry g = shape_of(slots.first);
        const int width = g.columns * WARP, column = (lane() & (g.warps - 1)) * width;  // what a warp needs: a lane looks for each
        bool is_there = false;
        int first = 0;
        VP_ROLLED for (int s = 0; s < p.x.count; s++) {
            const Word* segment = p.x.first + 3 * s;
            const int end = first + (int)segment[2];
            if (column >= first && column + width <= end) {
                is_there = true;
                mine.address = segment[0], mine.mode = segment[1], mine.offset = column - first;
            }
            first = end;
        }
        const int own = warp() & (g.warps - 1);
        mine.address = __shfl_sync(~0u, mine.address, own);
        mine.mode = __shfl_sync(~0u, mine.mode, own);
        mine.offset = __shfl_sync(~0u, mine.offset, own);
        mine.vector = lane();
        // Four more than there are: of 8 rows and two vectors no lane's are in another one's bank.
        apart = (slots.last - slots.first) * small_quotient(WARPS * g.rows, g.warps) + 4;
        pass = VP_AGREED(!is_there) ? 0 : MOST;
        VP_ROLLED while (pass && (pass > room || pass * g.warps * apart > VP_STAGED)) pass = pass / 2 & ~7;
        const int t = lane() & 3;
        sums = slot_memory() + (own * pass + 2 * t) * apart + small_quotient(warp(), g.warps) * g.rows + row_of_lane();
    }
    VP_DEVICE void look_up(int row)
    {
        Pieces::Place other = mine;
        other.vector += WARP;
        const Word offset = (mine.indexed() ? mine.mode & VP_OFFSET_MASK : 0) + mine.offset;
        found[0] = pieces.look_up(mine, row) + offset;
        found[1] = pieces.rows - row > WARP ? pieces.look_up(other, row) + offset : 0;
        aligned = !VP_AGREED((found[0] | found[1]) & 3);
        first = of_lane(0);
    }
    // Of eight from the `at`-th one on, all columns of which the lane brings some.
    VP_DEVICE const float* of_lane(int at) const
    {
        const Word from = __shfl_sync(~0u, at & WARP ? found[1] : found[0], (at + row_of_lane()) & (WARP - 1));
        return pieces.vp.pool + (from + (Word)column_of_lane(lane() & 3));
    }
};
#endif

// Calls f(buffer, row, n) for passes over the vectors of rows [0, total); those of the next pass come while f works, and
// where the ones after them lie. f must come to a barrier of the block after its last use of the buffer.
// Where nothing is to be staged, passes of other lengths, without a buffer.
template <class F>
VP_DEVICE void for_staged(
    const Vp& vp, const Segments& x, int columns, int width, int total, F f, int pass = PASS, bool stages = true)
{
    const Pieces pieces = {vp, x, total, columns, width};
    int row = 0, n = 0;  // of the pass that is there
    Pieces::Place mine = {};  // without ample registers worked out anew for every pass
    Word found = 0;
    if (stages) mine = pieces.place(lane()), found = pieces.look_up(mine, 0);
    VP_ROLLED for (int k = 0; true; k++) {
        const int next = row + n, size = least(pass, total - next);
        if (!VP_AMPLE) mine = pieces.place(VP_OPAQUE(lane()));
        if (BUFFERS > 1 && size && stages) {
            pieces.copy(next, size, mine, found, stage_buffer(k));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        if (n) f(stage_buffer(k + BUFFERS - 1), row, n);
        if (!size) return;
        if (BUFFERS == 1 && stages) {
            if (!VP_AMPLE) mine = pieces.place(VP_OPAQUE(lane()));
            pieces.copy(next, size, mine, found, stage_buffer(0));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        if (stages) copy_async_wait();
        if (stages || n) __syncthreads();
        row = next;
        n = size;
    }
}
