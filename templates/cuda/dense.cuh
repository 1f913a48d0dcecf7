#pragma once
#include "windows.cuh"
// ---- products with matrices in windows
//
// The warps divide the columns: warp w multiplies the w-th eighth of every chunk of CHUNK_COLUMNS. Each lane keeps separate
// sums for RT rows times VT vectors; lanes exchange nothing. The eight warps' sums are added up in order. The order of
// additions therefore depends only on the numbers of columns in the matrix and in a chunk.
enum {
    CHUNK_COLUMNS = VP_CHUNK_COLUMNS,
    CHUNK_PITCH = CHUNK_COLUMNS + 4,  // stride between vectors' chunks: eight consecutive chunks start in different banks
    PLACES = VP_PLACES,               // segment addresses that are looked up together
    FEWEST_PASSES = 4,                // minimum number of passes per page
};
VP_DEVICE Word* places(int parity) { return (Word*)(block_memory() + VP_CHUNKS) + parity * PLACES; }

// Copies vectors to shared memory, one chunk per vector at a time, while the previous chunks are multiplied. A pass's vectors
// are copied again for each tile of rows. Addresses of many vectors (a page) are looked up at once, before any is copied.
struct VectorPipeline {
    enum { EACH = (VP_MOST_VECTORS + WARPS - 1) / WARPS };  // vectors per warp
    const Vp& vp;
    const Segments& x;
    int n, columns, zeros, vectors, tiles = 1;  // zeros: padding after the columns; vectors: per pass; tiles: tiles of rows
    int own;                             // this warp
    int page = 0;                        // vectors per page; 0: addresses are looked up one by one
    int row = 0, tile = 0, column = 0;   // position of the next chunk
    int filled = 0, half;                // offset of the latest chunk; floats per buffer
    int in_page = 0, parity = 0;         // index, in its page, of the next chunk's first vector; page number modulo 2
    int next = 0;                        // first vector of the next page
    int segment = 0, first = 0, last = 0;  // index of the next segment; first and last column of the current segment
    Word places_or_first;                // bitwise or of `from` and `first`: the last two bits are 0 if all are multiples of 4
    Word from[EACH];                     // the lane's addresses in the current segment, one per vector of the warp

    VP_DEVICE VectorPipeline(const Vp& vp, const Matvec& i, const TileShape& t, int kind)
        : vp(vp), x(i.x), n(i.head.n), columns((int)i.columns), vectors(t.vectors), own(VP_OPAQUE(warp()))
    {
        zeros = padded(columns, kind) - columns, half = vectors * CHUNK_PITCH;
    }
    VP_DEVICE void begin()
    {
        const int passes = small_quotient(PLACES, x.count * vectors);
        page = passes >= FEWEST_PASSES ? passes * vectors : 0;
        look_up();
        copy_async_wait();
        __syncthreads();
        bring();
    }
    VP_DEVICE Word place(const Word* at, int r) const
    {
        const Word address = at[0], mode = at[1];
        return mode & VP_INDEXED ? vp.script[address + r] : address + (Word)r * (mode & VP_OFFSET_MASK);
    }
    // Starts to look up the next page. The wait for the next chunk also waits for this.
    VP_DEVICE void look_up()
    {
        Word* const table = places((next / most(1, page)) & 1);
        for_places(page ? x.count : 0, least(page, n - next), [&](int s, int v) {
            const Word* at = x.first + 3 * s;
            Word* found = table + s * page + v;
            if (at[1] & VP_INDEXED) copy_async4((float*)found, (const float*)(vp.script + (at[0] + next + v)));
            else *found = place(at, next + v);
        });
        next += page;
    }
    // Call before a pass: looks up the next page if this is the first pass in the current page.
    VP_DEVICE void enter(int pass)
    {
        if (page && pass + page == next && next < n) look_up();
    }
    // Starts to copy the next chunk, if there is one.
    VP_DEVICE void bring()
    {
        if (row >= n) return;
        filled = half - filled;
        float* chunk = block_memory() + filled;
        if (column == 0) segment = last = 0;
        int left = least(CHUNK_COLUMNS, columns - column);
        VP_ROLLED do {
            if (column == last) find_segment();
            const int floats = least(last - column, left);
            bring_part(chunk, floats);
            chunk += floats, column += floats, left -= floats;
        } while (left);
        if (column < columns) return;
        if (zeros) clear(chunk, vectors, CHUNK_PITCH, zeros);
        column = 0;
        if (++tile < tiles) return;
        tile = 0, row += vectors, in_page += vectors;
        if (in_page == page) in_page = 0, parity ^= 1;
    }
    // Address of the current segment in vector v of the pass. Indices past the last vector give the last vector's address.
    VP_DEVICE Word look(int v) const
    {
        const Word* at = x.first + 3 * (segment - 1);
        v = least(v, least(vectors, n - row) - 1);
        const Word found = page ? places(parity)[(segment - 1) * page + in_page + v] : place(at, row + v);
        return found + (at[1] & VP_INDEXED ? at[1] & VP_OFFSET_MASK : 0);
    }
    // Moves on to the segment that starts at the current column.
    VP_DEVICE void find_segment()
    {
        first = column, last = column + (int)x.first[3 * segment + 2], segment++;
        places_or_first = (Word)first;
        VP_UNROLL for (int j = 0; j < EACH; j++) {
            from[j] = look(own + j * WARPS) + 4 * lane();
            places_or_first |= from[j];
        }
    }
    // Starts to copy `floats` floats from each of the warp's vectors, beginning at the current column.
    VP_DEVICE void bring_part(float* chunk, int floats)
    {
        const Word within = (Word)(column - first);
        const int there = least(vectors, n - row);
        if (((places_or_first | (Word)column) & 3) == 0 && floats % (4 * WARP) == 0) {
            float* target = chunk + own * CHUNK_PITCH + 4 * lane();
            VP_UNROLL for (int j = 0; j < EACH; j++) {
                const float* source = vp.pool + (from[j] + within);
                VP_UNROLL for (int k = 0; k < CHUNK_COLUMNS; k += 4 * WARP)
                    copy_async16_if(k < floats && own + j * WARPS < there, target + j * WARPS * CHUNK_PITCH + k, source + k);
            }
            return;
        }
        VP_ROLLED for (int v = own; v < there; v += WARPS) {
            const float* source = vp.pool + (look(v) + within);
            float* to = chunk + v * CHUNK_PITCH;
            VP_ROLLED for (int k = lane(); k < floats; k += WARP) copy_async4(to + k, source + k);
        }
    }
};

// A lane's sums in a tile T: one for each of RT times VT pairs of a row and a vector or, on tensor cores, four for each of RT
// times VT products. A lane without a row reads the last row. A lane without a vector reads the last vector if there are few,
// else stale floats from a chunk. The sums of such lanes are not used.
template <class T> struct Lane {
    enum { EACH = T::KIND ? 4 : 1 };
    int own, v, first;  // warp, first vector and first row; the lane's others follow at strides of LV and LR
    float sum[T::RT][T::VT][EACH] = {};
    VP_DEVICE Lane()
    {
        const int me = VP_OPAQUE(thread());
        own = me / WARP;
        if (T::KIND) v = first = me % WARP / 4;
        else v = me % T::LV, first = me % WARP / T::LV;
    }
    // Multiplies the warp's part of a chunk: `rows` rows, from `window` on, by n vectors at a stride of `apart` floats.
    template <bool FEW>
    VP_DEVICE void multiply(const float* window, int rows, int pitch, const float* vectors, int n, int apart, int columns)
    {
        enum { STEP = T::KIND ? 32 : 8 };
        const unsigned steps = ((unsigned)columns + STEP - 1) / STEP;
        const int share = (int)((steps + WARPS - 1) / WARPS), begin = own * share;
        const int count = least(share, (int)steps - begin);
        const float *x[T::VT], *w[T::RT];
        VP_UNROLL for (int j = 0; j < T::VT; j++)
            x[j] = vectors + (FEW ? least(v + j * T::LV, n - 1) : v + j * T::LV) * apart + begin * STEP;
        const auto row = [&](int r) { return window + least(first + r, rows - 1) * pitch; };
        const auto of = [&](int j) { return FEW ? x[j] : x[0] + j * T::LV * apart; };
#if VP_FRAGMENTS
        if constexpr (T::KIND) {
            // A lane multiplies eight of 32 columns, in any order that vectors and rows share.
            enum { WORDS = T::KIND == BF16_FRAGMENTS ? 16 : 32 };  // words per row
            const int t = VP_OPAQUE(lane()) & 3;
            VP_ROLLED for (int k = 0; k < count; k++) {
                FragmentPart<T::KIND> e[T::VT][2];
                VP_UNROLL for (int j = 0; j < T::VT; j++)
                    VP_UNROLL for (int half = 0; half < 2; half++) e[j][half].round(*(const float4*)(of(j) + 8 * t + 4 * half));
                VP_UNROLL for (int r = 0; r < T::RT; r++) {
                    FragmentPart<T::KIND> a[2][2];  // both halves of two rows 8 apart
                    VP_UNROLL for (int beside = 0; beside < 2; beside++) {
                        const float* from = row(r * T::LR + 8 * beside) + (begin + k) * WORDS + t * (WORDS / 4);
                        if constexpr (T::KIND == BF16_FRAGMENTS) {
                            const float4 words = *(const float4*)from;
                            a[0][beside].of[0] = as_word(words.x), a[0][beside].of[1] = as_word(words.y);
                            a[1][beside].of[0] = as_word(words.z), a[1][beside].of[1] = as_word(words.w);
                        } else {
                            VP_UNROLL for (int half = 0; half < 2; half++) a[half][beside].round(*(const float4*)(from + 4 * half));
                        }
                    }
                    VP_UNROLL for (int j = 0; j < T::VT; j++)
                        VP_UNROLL for (int half = 0; half < 2; half++) multiply_fragments(sum[r][j], a[half], e[j][half]);
                }
                VP_UNROLL for (int j = 0; j < (FEW ? T::VT : 1); j++) x[j] += STEP;
            }
            return;
        }
#endif
        VP_UNROLL for (int r = 0; r < T::RT; r++) w[r] = row(r * T::LR) + begin * STEP;
        VP_ROLLED for (int k = count; k > 0; k--) {
            VP_UNROLL for (int four = 0; four < STEP; four += 4) {
                float4 e[T::VT];
                VP_UNROLL for (int j = 0; j < T::VT; j++) e[j] = *(const float4*)(of(j) + four);
                VP_UNROLL for (int r = 0; r < T::RT; r++) {
                    const float4 a = *(const float4*)(w[r] + four);
                    VP_UNROLL for (int j = 0; j < T::VT; j++) {
                        const float s = fma_(a.y, e[j].y, fma_(a.x, e[j].x, sum[r][j][0]));
                        sum[r][j][0] = fma_(a.w, e[j].w, fma_(a.z, e[j].z, s));
                    }
                }
            }
            VP_UNROLL for (int j = 0; j < (FEW ? T::VT : 1); j++) x[j] += STEP;
            VP_UNROLL for (int r = 0; r < T::RT; r++) w[r] += STEP;
        }
    }
    // Multiplies whole vectors in shared memory. window(c, waits) returns the rows' columns from c on; `waits` is false at first,
    // when no warp reads the window yet.
    template <class F> VP_DEVICE void multiply_few(F window, int rows, int pitch, int n, int apart, int columns)
    {
        VP_ROLLED for (int c = 0; c < columns; c += CHUNK_COLUMNS)
            multiply<true>(window(c, c > 0), rows, pitch, block_memory() + c, n, apart, least(CHUNK_COLUMNS, columns - c));
    }
    // Multiplies a pass's vectors, which arrive chunk by chunk.
    template <class F> VP_DEVICE void multiply_many(F window, int rows, int pitch, int columns, VectorPipeline& x)
    {
        VP_ROLLED for (int c = 0; c < columns; c += CHUNK_COLUMNS) {
            copy_async_wait();
            __syncthreads();
            const float* chunk = block_memory() + x.filled;
            x.bring();
            multiply<false>(window(c, false), rows, pitch, chunk, T::VECTORS, CHUNK_PITCH, least(CHUNK_COLUMNS, columns - c));
        }
    }
    // Stores the sum of warp w, row r, vector v at (w * VECTORS + v) * PITCH + r.
    VP_DEVICE void store(float* sums) const
    {
        const int vector = T::KIND ? 2 * (VP_OPAQUE(lane()) & 3) : v;
        float* to = sums + (own * T::VECTORS + vector) * T::PITCH + first;
        VP_UNROLL for (int r = 0; r < T::RT; r++)
            VP_UNROLL for (int j = 0; j < T::VT; j++)
                VP_UNROLL for (int k = 0; k < EACH; k++)  // two of four sums belong to the first row, one per vector
                    to[(j * T::LV + k % 2) * T::PITCH + r * T::LR + k / 2 * 8] = sum[r][j][k];
    }
};

// Calls f(Lane) for the tile with this number; FEW selects tiles for few vectors or for many.
template <bool FEW, int FIRST = 0, int END = VP_PRODUCT_TILES, class F> VP_DEVICE void for_tile(int number, F f)
{
    if constexpr (END - FIRST > 1) {
        if (number < (FIRST + END) / 2) for_tile<FEW, FIRST, (FIRST + END) / 2>(number, f);
        else for_tile<FEW, (FIRST + END) / 2, END>(number, f);
    } else if constexpr (FEW ? ProductTile<FIRST>::FEW : ProductTile<FIRST>::MANY) {
        f(Lane<ProductTile<FIRST>>());
    }
}

// dst = W x + bias. With a chained tail, there is no dst: the tail runs on the results when all vectors are done or the
// result buffer is full.
VP_ROUTINE void held_matvec(Vp& vp, const Matvec& i)
{
    const Dense m = dense(i.matrix);
    const Owned owned(vp, i.head);
    const int n = i.head.n, columns = (int)i.columns, count = owned.count;
    const bool accumulate = i.head.flags & ACCUMULATE;
#if VP_CHAINS
    const bool chained = i.head.flags & CHAINED;
    ResultBuffer results = {0, small_quotient(VP_RESULTS, most(1, count))};
#endif
    if (n == 0 || count == 0) return;
    const bool in_chunks = VP_WINDOWS_OF_CHUNKS && m.window_quads < m.quads;
    if (!in_chunks) show(vp, m, owned, i, 0);
    // Few vectors are copied whole, all at once.
    const int apart = pitch_of(columns, m.kind);
    const bool is_few = n <= m.some_vectors && count <= PRODUCT_TILES[m.some].rows && n * apart <= VP_CHUNKS;
    const int number = !is_few ? m.many : n <= m.few_vectors ? m.few : m.some;
    const TileShape tile = PRODUCT_TILES[number];
    VectorPipeline x(vp, i, tile, m.kind);
    if (is_few) {
        bring_vectors(vp, i.x, 0, n, columns, apart, x.zeros);
    } else {
        x.tiles = small_quotient(count + tile.rows - 1, tile.rows);
        x.begin();
    }
    VP_ROLLED for (int row = 0; row < n; row += tile.vectors) {
        const int there = least(tile.vectors, n - row);
        VP_ROLLED for (int first = 0; first < count; first += tile.rows) {
            const int rows = least(tile.rows, count - first);
            if (!is_few && first == 0) x.enter(row);
            const ThreadResults mine(rows, there);
            const auto bias_of = [&](int k, int v) {
                const int r = row + least(v, there - 1);
                return i.bias.row(r)[VP_OPAQUE(i.bias.scalar) ? 0 : owned.row(first + least(k, rows - 1))];
            };
            const float bias = bias_of(mine.k, mine.v);  // bias of the first result; the load overlaps the products
            const auto window = [&](int c, bool waits) -> const float* {
                const float* rows = windows() + m.at + first * m.pitch;
                if (!in_chunks) return rows + (m.kind == BF16_FRAGMENTS ? c / 2 : c);
                if (waits) __syncthreads();
                show(vp, m, owned, i, c / CHUNK_COLUMNS);
                return rows;
            };
            if (is_few) {
                copy_async_wait();
                __syncthreads();
                for_tile<true>(number, [&](auto lane) {
                    lane.multiply_few(window, rows, m.pitch, n, apart, columns);
                    lane.store(sums_buffer());
                });
            } else {
                for_tile<false>(number, [&](auto lane) {
                    lane.multiply_many(window, rows, m.pitch, columns, x);
                    lane.store(sums_buffer());
                });
            }
            __syncthreads();
            mine.each(rows, there, [&](int k, int v) {
                const float* from = sums_buffer() + v * tile.pitch + k;
                const int next = tile.vectors * tile.pitch;  // stride between warps
                float part[WARPS];
                VP_UNROLL for (int w = 0; w < WARPS; w++) part[w] = from[w * next];  // all loads in flight at once
                float sum = part[0];
                VP_UNROLL for (int w = 1; w < WARPS; w++) sum += part[w];
                sum += k == mine.k && v == mine.v ? bias : bias_of(k, v);
#if VP_CHAINS
                if (VP_OPAQUE(chained)) {
                    results_buffer()[(row + v - results.first) * count + first + k] = sum;
                    return;
                }
#endif
                float* y = i.dst.row(row + v) + owned.row(first + k);
                *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
            });
        }
#if VP_CHAINS
        const int next = row + there;
        if (VP_OPAQUE(chained) && (next == n || results.is_full(next, tile.vectors))) {
            __syncthreads();
            chained_tail(vp, behind(vp), owned, results.first, next);
            results.first = next;
        }
#endif
    }
}
