// ---- products with matrices in windows
//
// The warps divide the columns: warp w multiplies by the w-th eighth of every chunk of CHUNK_COLUMNS. A lane has sums of its
// own, of RT rows times VT vectors, and lanes exchange nothing; the sums of the eight warps are added up in order. So the order
// of additions follows from the number of columns alone.
enum {
    CHUNK_COLUMNS = VP_CHUNK_COLUMNS,
    CHUNK_PITCH = CHUNK_COLUMNS + 4,  // from a vector's chunk to the next: eight begin in different banks
    PLACES = VP_PLACES,               // of segments of vectors that are looked up together
    FEWEST_PASSES = 4,                // of a page
};
VP_DEVICE Word* places(int parity) { return (Word*)(slot_memory() + VP_CHUNKS) + parity * PLACES; }

// Brings vectors to shared memory, a chunk of each at a time, while the chunk before is multiplied. Vectors of a pass come once for
// every tile of rows. Where they lie is looked up for many at once, a page, before the first of them is brought.
struct Bringing {
    enum { EACH = (VP_MOST_VECTORS + WARPS - 1) / WARPS };  // vectors of a warp
    const Vp& vp;
    const Segments& x;
    int n, columns, vectors, tiles = 1;  // vectors: of a pass; tiles: of rows
    int own;                             // warp
    int page = 0;                        // vectors of a page; 0: each is looked up when it is brought
    int row = 0, tile = 0, column = 0;   // of the chunk that is brought next
    int brought = 0;                     // chunks
    int in_page = 0, parity = 0;         // number of its first vector in the page; the page's number, modulo 2
    int next = 0;                        // first vector of the page that is looked up next
    int segment = 0, first = 0, last = 0;  // number behind that of the segment that is brought; columns where it begins and ends
    Word from[EACH];                     // where the lane finds the segment of the warp's vectors

    VP_DEVICE Bringing(const Vp& vp, const Matvec& i, const TileShape& t)
        : vp(vp), x(i.x), n(i.head.n), columns((int)i.columns), vectors(t.vectors), own(VP_OPAQUE(warp()))
    {
    }
    VP_DEVICE float* buffer(int chunk) const { return slot_memory() + (chunk & 1) * (vectors * CHUNK_PITCH); }
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
    // Begin to look up the next page. Whoever waits for a chunk has that, too.
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
    // A pass is about to begin. When it is the first one of a page, the next page is looked up.
    VP_DEVICE void enter(int pass)
    {
        if (page && pass + page == next && next < n) look_up();
    }
    // Begin to bring the next chunk, if there is one.
    VP_DEVICE void bring()
    {
        if (row >= n) return;
        float* const chunk = buffer(brought++);
        const int end = least(column + CHUNK_COLUMNS, columns);
        if (column == 0) segment = last = 0;
        VP_ROLLED for (int at = column; at < end;) {
            if (at == last) find_segment(at);
            const int floats = least(last, end) - at;
            bring_part(chunk + (at - column), at - first, floats);
            at += floats;
        }
        if (columns & 7 && end == columns && thread() < vectors)
            VP_ROLLED for (int c = columns; c & 7; c++) chunk[thread() * CHUNK_PITCH + c - column] = 0.f;
        column = end < columns ? end : 0;
        if (column == 0 && ++tile == tiles) {
            tile = 0, row += vectors, in_page += vectors;
            if (in_page == page) in_page = 0, parity ^= 1;
        }
    }
    // The address of the segment in vector v of the pass. Indices behind the last vector give the last vector's address.
    VP_DEVICE Word look(int v) const
    {
        const Word* at = x.first + 3 * (segment - 1);
        v = least(v, least(vectors, n - row) - 1);
        const Word found = page ? places(parity)[(segment - 1) * page + in_page + v] : place(at, row + v);
        return found + (at[1] & VP_INDEXED ? at[1] & VP_OFFSET_MASK : 0);
    }
    // The segment that begins at a column.
    VP_DEVICE void find_segment(int at)
    {
        first = at, last = at + (int)x.first[3 * segment + 2], segment++;
        VP_UNROLL for (int j = 0; j < EACH; j++) from[j] = look(own + j * WARPS) + 4 * lane();
    }
    // Begin to copy `floats` floats of each of the warp's vectors, from the segment's float `within` on.
    VP_DEVICE void bring_part(float* chunk, int within, int floats)
    {
        Word all = (Word)(chunk - slot_memory()) | (Word)(within | floats);
        VP_UNROLL for (int j = 0; j < EACH; j++) all |= from[j];
        if ((all & 3) == 0 && floats % (4 * WARP) == 0) {
            float* target = chunk + own * CHUNK_PITCH + 4 * lane();
            VP_UNROLL for (int j = 0; j < EACH; j++) {
                const float* source = vp.pool + (from[j] + within);
                VP_UNROLL for (int k = 0; k < CHUNK_COLUMNS; k += 4 * WARP)
                    copy_async16_if(k < floats && own + j * WARPS < vectors, target + j * WARPS * CHUNK_PITCH + k, source + k);
            }
            return;
        }
        VP_ROLLED for (int v = own; v < vectors; v += WARPS) {
            const float* source = vp.pool + (look(v) + within);
            float* to = chunk + v * CHUNK_PITCH;
            VP_ROLLED for (int k = lane(); k < floats; k += WARP) copy_async4(to + k, source + k);
        }
    }
};

// Begin to bring few vectors, whole: `apart` floats lie between them, zeros at their ends.
VP_DEVICE void bring_few(const Vp& vp, const Segments& x, int n, int columns, int apart)
{
    VP_ROLLED for (int k = VP_OPAQUE(warp()); k < n * x.count; k += WARPS) {  // a segment of a vector
        const int v = x.count == 1 ? k : small_quotient(k, x.count), s = k - v * x.count;
        const Word *at = x.first + 3 * s, mode = at[1];
        const Word address = at[0] + (Word)v * (mode & VP_INDEXED ? 1 : mode & VP_OFFSET_MASK);
        const Word from = mode & VP_INDEXED ? vp.script[address] + (mode & VP_OFFSET_MASK) : address;
        int first = 0;
        VP_ROLLED for (int other = 0; other < s; other++) first += (int)x.first[3 * other + 2];
        const int floats = (int)at[2];
        float* to = slot_memory() + v * apart + first;
        if (((from | (Word)first | (Word)floats) & 3) == 0) {
            VP_ROLLED for (int c = 4 * lane(); c < floats; c += 4 * WARP) copy_async16(to + c, vp.pool + (from + c));
        } else {
            VP_ROLLED for (int c = lane(); c < floats; c += WARP) copy_async4(to + c, vp.pool + (from + c));
        }
    }
    if (columns & 7 && thread() < n)
        VP_ROLLED for (int c = columns; c & 7; c++) slot_memory()[thread() * apart + c] = 0.f;
}

// The sums of a lane for a tile T: RT rows times VT vectors. A lane whose row does not exist reads the last row, and a lane whose
// vector does not exist reads the last of few vectors, or old floats of a chunk. Nobody reads the sums of such lanes.
template <class T> struct Lane {
    int own, v, first;  // its warp, vector and row; the next ones are LV vectors or LR rows behind
    float sum[T::RT][T::VT] = {};
    VP_DEVICE Lane()
    {
        const int me = VP_OPAQUE(thread());
        own = me / WARP, v = me % T::LV, first = me % WARP / T::LV;
    }
    // Products of the warp's part of a chunk, of `rows` from `window` on; `apart` floats lie between the n vectors.
    template <bool FEW>
    VP_DEVICE void multiply(const float* window, int rows, int pitch, const float* vectors, int n, int apart, int columns)
    {
        const int pairs = (columns + 7) / 8, share = (pairs + WARPS - 1) / WARPS, begin = 8 * own * share;
        const float *x[T::VT], *w[T::RT];
        VP_UNROLL for (int j = 0; j < T::VT; j++) x[j] = vectors + (FEW ? least(v + j * T::LV, n - 1) : v) * apart + begin;
        VP_UNROLL for (int r = 0; r < T::RT; r++) w[r] = window + least(first + r * T::LR, rows - 1) * pitch + begin;
        VP_ROLLED for (int k = least(share, pairs - own * share); k > 0; k--) {
            VP_UNROLL for (int four = 0; four < 8; four += 4) {
                float4 of[T::VT];
                VP_UNROLL for (int j = 0; j < T::VT; j++) of[j] = *(const float4*)(FEW ? x[j] + four : x[0] + j * T::LV * apart + four);
                VP_UNROLL for (int r = 0; r < T::RT; r++) {
                    const float4 a = *(const float4*)(w[r] + four);
                    VP_UNROLL for (int j = 0; j < T::VT; j++) {
                        const float s = fma_(a.y, of[j].y, fma_(a.x, of[j].x, sum[r][j]));
                        sum[r][j] = fma_(a.w, of[j].w, fma_(a.z, of[j].z, s));
                    }
                }
            }
            VP_UNROLL for (int j = 0; j < (FEW ? T::VT : 1); j++) x[j] += 8;
            VP_UNROLL for (int r = 0; r < T::RT; r++) w[r] += 8;
        }
    }
    // Multiply whole vectors, which are in shared memory.
    VP_DEVICE void multiply_few(const float* window, int rows, int pitch, int n, int columns)
    {
        VP_ROLLED for (int c = 0; c < columns; c += CHUNK_COLUMNS)
            multiply<true>(window + c, rows, pitch, slot_memory() + c, n, pitch, least(CHUNK_COLUMNS, columns - c));
    }
    // Multiply the vectors of a pass, which come chunk by chunk.
    VP_DEVICE void multiply_many(const float* window, int rows, int pitch, int columns, Bringing& x)
    {
        VP_ROLLED for (int c = 0; c < columns; c += CHUNK_COLUMNS) {
            copy_async_wait();
            __syncthreads();
            const float* chunk = x.buffer(x.brought - 1);
            x.bring();
            multiply<false>(window + c, rows, pitch, chunk, T::VECTORS, CHUNK_PITCH, least(CHUNK_COLUMNS, columns - c));
        }
    }
    // Sums of warp w, row r, vector v: at (w * VECTORS + v) * PITCH + r.
    VP_DEVICE void store(float* sums) const
    {
        float* to = sums + (own * T::VECTORS + v) * T::PITCH + first;
        VP_UNROLL for (int r = 0; r < T::RT; r++)
            VP_UNROLL for (int j = 0; j < T::VT; j++) to[j * T::LV * T::PITCH + r * T::LR] = sum[r][j];
    }
};

// Calls f(Lane) for a tile, of those for few vectors or for many.
template <bool FEW, int FIRST = 0, int END = VP_PRODUCT_TILES, class F> VP_DEVICE void for_tile(int number, F f)
{
    if constexpr (END - FIRST > 1) {
        if (number < (FIRST + END) / 2) for_tile<FEW, FIRST, (FIRST + END) / 2>(number, f);
        else for_tile<FEW, (FIRST + END) / 2, END>(number, f);
    } else if constexpr (FEW ? ProductTile<FIRST>::FEW : ProductTile<FIRST>::MANY) {
        f(Lane<ProductTile<FIRST>>());
    }
}

// dst = W x + bias. Or, where a tail takes the result, no dst: when the vectors are done, or there is room for no more, the tail
// is executed for those that are.
VP_DEVICE void dense_matvec(Vp& vp, const Matvec& i)
{
    const Dense m = dense(i.matrix);
    const Owned owned(vp, i.head);
    const int n = i.head.n, columns = (int)i.columns, count = owned.count;
    const bool accumulate = i.head.flags & ACCUMULATE;
#if VP_CHAINS
    const bool chained = i.head.flags & CHAINED;
    Results results = {0, small_quotient(RESULTS, most(1, count))};
#endif
    if (n == 0 || count == 0) return;
    show(vp, m, owned, (int)i.matrix, i.weights, columns);
    // Vectors that are few enough are brought at once.
    const bool is_few = n <= m.some_vectors && count <= PRODUCT_TILES[m.some].rows && n * pitch_of(columns) <= VP_CHUNKS;
    const int number = !is_few ? m.many : n <= m.few_vectors ? m.few : m.some;
    const TileShape tile = PRODUCT_TILES[number];
    Bringing x(vp, i, tile);
    if (is_few) {
        bring_few(vp, i.x, n, columns, pitch_of(columns));
    } else {
        x.tiles = small_quotient(count + tile.rows - 1, tile.rows);
        x.begin();
    }
    VP_ROLLED for (int row = 0; row < n; row += tile.vectors) {
        const int there = least(tile.vectors, n - row);
        VP_ROLLED for (int first = 0; first < count; first += tile.rows) {
            const int rows = least(tile.rows, count - first);
            if (!is_few && first == 0) x.enter(row);
            const Finishing mine(rows, there);
            const auto bias_of = [&](int k, int v) {
                const int r = row + least(v, there - 1);
                return i.bias.row(r)[VP_OPAQUE(i.bias.scalar) ? 0 : owned.row(first + least(k, rows - 1))];
            };
            const float bias = bias_of(mine.k, mine.v);  // of the first result; it comes while others are multiplied
            const float* window = windows() + m.at + first * pitch_of(columns);
            if (is_few) {
                copy_async_wait();
                __syncthreads();
                for_tile<true>(number, [&](auto lane) {
                    lane.multiply_few(window, rows, pitch_of(columns), n, columns);
                    lane.store(sums_buffer());
                });
            } else {
                for_tile<false>(number, [&](auto lane) {
                    lane.multiply_many(window, rows, pitch_of(columns), columns, x);
                    lane.store(sums_buffer());
                });
            }
            __syncthreads();
            mine.each(rows, there, [&](int k, int v) {
                const float* from = sums_buffer() + v * tile.pitch + k;
                const int apart = tile.vectors * tile.pitch;
                float part[WARPS];
                VP_UNROLL for (int w = 0; w < WARPS; w++) part[w] = from[w * apart];  // all on their way at once
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
