#pragma once
#include "../guard.cuh"
#include "matrix.cuh"
// ---- weight gradients: G = sum over n vertices of dy x^T, in tiles of 128 rows by 64 columns
//
// The number n alone determines the segments of vertices. Pairs of a tile and a segment are dealt to virtual processors
// round-robin; each yields a partial tile in memory. After a barrier, the owners of G's elements add up the partial tiles in
// order, so that bits depend only on n. If there are enough tiles for all, one virtual processor sums a tile's segments directly.
enum {
    TALL = VP_GRADIENT_ROWS, WIDE = VP_TILE_COLUMNS, TILE_FLOATS = TALL * WIDE,
    VERTICES = VP_GRADIENT_VERTICES,  // vertices copied and multiplied between block barriers
    PITCH = TALL + WIDE,   // stride between vertices in floats: dy, then x
};

VP_DEVICE float* tile_memory() { return block_memory(); }

struct GradientTiles {
    int across, tiles, segments, stored;  // stored: partial tiles per tile
    VP_DEVICE GradientTiles(int n, int rows, int columns)
    {
        across = (columns + WIDE - 1) / WIDE;
        tiles = (rows + TALL - 1) / TALL * across;
        segments = most(1, least(VP_MOST_SEGMENTS, (n + VP_SEGMENT - 1) / VP_SEGMENT));
        stored = tiles * segments > VP_SHARED_TILES ? 1 : segments;
    }
};

// A thread's part of the copies: four adjacent columns of dy or x. It uses no shuffles, because the compiler would emit the
// loop twice (VP_AGREED).
struct FourColumns {
    Operand rows;
    int column, end, left;  // first column, end of all columns, and number of columns contiguous in memory

    // For an operand that holds columns [first, behind) out of `all` columns.
    VP_DEVICE FourColumns(const Operand& of, int first, int at, int behind, int all) : rows(of), column(at), end(all), left(behind - at)
    {
        (rows.indexed ? rows.step : rows.address) += least(at, all - 1) - first;
    }
    VP_DEVICE static FourColumns of_dy(const OuterTiles& i, int at) { return {i.dy, 0, at, i.head.width, i.head.width}; }
    VP_DEVICE static FourColumns of_x(const Vp& vp, const OuterTiles& i, int at)
    {
        const int columns = (int)i.columns, found = least(at, columns - 1);
        int s = 0, first = 0, width;
        Operand x = segment(vp, i.x, 0, &width);
        VP_ROLLED while (found >= first + width) {
            first += width;
            x = segment(vp, i.x, ++s, &width);
        }
        return {x, first, at, first + width, columns};
    }
    // Starts to load the address of vertex r, without waiting. The caller adds `beside` later.
    VP_DEVICE Word look_up(int r) const
    {
        const Word listed = rows.script[rows.indexed ? rows.address + r : 0];
        return rows.indexed ? listed : rows.address + (Word)r * rows.step;
    }
    VP_DEVICE Word beside() const { return rows.indexed ? rows.step : 0; }
    VP_DEVICE bool is_there() const { return column < end; }
    VP_DEVICE bool are_neighbours(Word from) const { return left >= 4 && !(from & 3); }
    // Copies the four columns of vertex r one by one, unless they are contiguous. It writes zeros past the last column.
    VP_DEVICE void copy(const Vp& vp, const OuterTiles& i, int r, float* to) const
    {
        const Word from = look_up(r) + beside();
        if (are_neighbours(from)) return;
        VP_ROLLED for (int k = 0; k < 4; k++) {
            float found = 0.f;
            if (k < left) {
                found = vp.pool[from + k];
            } else if (column + k < end) {  // in the next segment
                const FourColumns other = of_x(vp, i, column + k);
                found = vp.pool[other.look_up(r) + other.beside()];
            }
            to[k] = found;
        }
    }
};

// Adds the products of n vertices; zeros follow the last vertex.
VP_DEVICE void add_products(const float* at, int n, int row, int column, float (&sum)[8][4])
{
    enum { AT_ONCE = 8 };  // vertices with loads in flight
    VP_ROLLED for (int first = 0; first < n; first += AT_ONCE) {
        VP_UNROLL for (int v = 0; v < AT_ONCE; v++, at += PITCH) {
            const float4 a = *(const float4*)(at + row), b = *(const float4*)(at + row + 16);
            const float4 x = *(const float4*)(at + TALL + column);
            const float dy[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, e[4] = {x.x, x.y, x.z, x.w};
            VP_UNROLL for (int r = 0; r < 8; r++)
                VP_UNROLL for (int c = 0; c < 4; c++) sum[r][c] = fma_(dy[r], e[c], sum[r][c]);
        }
    }
}

// True if partial sums of this magnitude can be added up and squared without overflow.
VP_DEVICE bool is_small(float x) { return fabsf(x) < 0x1p56f; }

// Computes the product of vertices [from, to) for the tile at (row0, column0); adds to `result` if `adds`. Sums of dy go to
// `sums`, unless it is null. A warp sums 32 by 32 elements of the tile, a lane 8 rows by 4 columns.
VP_DEVICE void partial_tile(
    const Vp& vp, const OuterTiles& i, int row0, int column0, int from, int to, bool adds, float* result, float* sums)
{
    // Opaque: otherwise the compiler computes addresses once for the whole kernel, and keeps them in registers.
    const int me = VP_OPAQUE(thread()), lane = me % WARP, warp = me / WARP;
    const int row = warp / 2 * 32 + lane / 8 * 4, column = warp % 2 * 32 + lane % 8 * 4;
    const int n = to - from, stages = (n + VERTICES - 1) / VERTICES;
    const bool is_inside = row0 + warp / 2 * 32 < i.head.width && column0 + warp % 2 * 32 < (int)i.columns;
    // A thread copies four columns of dy for every eighth vertex, and four columns of x for every sixteenth.
    enum { OF_DY = VERTICES / WARPS, TIMES = OF_DY + (VERTICES + 2 * WARPS - 1) / (2 * WARPS) };
    const FourColumns dy = FourColumns::of_dy(i, row0 + lane * 4);
    const FourColumns x = FourColumns::of_x(vp, i, column0 + lane % (WARP / 2) * 4);
    const auto bringing = [&](int q) -> const FourColumns& { return q < OF_DY ? dy : x; };
    const auto vertex = [=](int q) { return warp + (q < OF_DY ? q : 2 * (q - OF_DY) + lane / (WARP / 2)) * WARPS; };
    const auto place = [&](int q) { return vertex(q) * PITCH + (q < OF_DY ? lane * 4 : TALL + lane % (WARP / 2) * 4); };
    const auto takes_part = [&](int q) { return VERTICES >= 2 * WARPS || vertex(q) < VERTICES; };
    const Rounding rounded(i.head);
    Word found[TIMES] = {};
    float sum[8][4] = {}, of_dy[4] = {};
    // Iteration k multiplies stage k, starts to copy stage k + 1, and looks up the addresses of stage k + 2.
    VP_ROLLED for (int k = -2; k < stages; k++) {
        float* const here = tile_memory() + (k & 1) * (VERTICES * PITCH);
        if (k >= 0) {
            copy_async_wait();
            if (sums || rounded.any()) {  // on the thread's own copies
                VP_ROLLED for (int q = 0; q < (rounded.any() ? TIMES : OF_DY) && takes_part(q); q++) {
                    float4& four = *(float4*)(here + place(q));
                    float e[4] = {four.x, four.y, four.z, four.w};
                    VP_UNROLL for (int c = 0; c < 4; c++) of_dy[c] += VP_OPAQUE(q) < OF_DY ? e[c] : 0.f;
                    rounded.all(e);
                    four = {e[0], e[1], e[2], e[3]};
                }
            }
            __syncthreads();
        }
        if (k >= -1 && k + 1 < stages) {
            float* const next = tile_memory() + (~k & 1) * (VERTICES * PITCH);
            const int first = (k + 1) * VERTICES;
            bool all = true;
            VP_UNROLL for (int q = 0; q < TIMES; q++) {
                found[q] += bringing(q).beside();
                const bool is_there = first + vertex(q) < n && bringing(q).is_there();
                const bool at_once = is_there && bringing(q).are_neighbours(found[q]);
                copy_async16_if(at_once && takes_part(q), next + place(q), vp.pool + found[q]);
                if (!is_there && takes_part(q)) *(float4*)(next + place(q)) = {0.f, 0.f, 0.f, 0.f};
                all &= at_once || !is_there;
            }
            if (!all) {
                const auto copy = [&](const FourColumns& of, int q) {
                    if (first + vertex(q) < n && of.is_there() && takes_part(q)) of.copy(vp, i, from + first + vertex(q), next + place(q));
                };
                VP_ROLLED for (int q = 0; q < OF_DY; q++) copy(dy, q);
                VP_ROLLED for (int q = OF_DY; q < TIMES; q++) copy(x, q);
            }
        }
        if (k + 2 < stages) {
            VP_UNROLL for (int q = 0; q < TIMES; q++)
                found[q] = bringing(q).look_up(from + least((k + 2) * VERTICES + vertex(q), n - 1));
        }
        if (k >= 0 && is_inside) add_products(here, least(n - k * VERTICES, VERTICES), row, column, sum);
    }
    if (sums) {
        __syncthreads();
        *(float4*)(tile_memory() + warp * TALL + lane * 4) = {of_dy[0], of_dy[1], of_dy[2], of_dy[3]};
        __syncthreads();
    }
    bool fine = true;
    VP_UNROLL for (int r = 0; r < 8; r++) {
        float4& to = *(float4*)(result + (row + r % 4 + r / 4 * 16) * WIDE + column);
        float4 total = {sum[r][0], sum[r][1], sum[r][2], sum[r][3]};
        if (VP_OPAQUE(adds)) total = {to.x + total.x, to.y + total.y, to.z + total.z, to.w + total.w};
        to = total;
        fine &= is_small(total.x) && is_small(total.y) && is_small(total.z) && is_small(total.w);
    }
    if (sums && me < least(TALL, i.head.width - row0)) {
        float total = 0.f;
        VP_UNROLL for (int w = 0; w < WARPS; w++) total += tile_memory()[w * TALL + me];
        if (adds) total = sums[me] + total;
        sums[me] = total;
        fine &= is_small(total);
    }
    if (!fine) mark(vp.counters + NOT_FINITE);
    __syncthreads();
}

// Writes to the weights' registers after the last product, so that the compiler may reuse them for gradients.
VP_DEVICE void forget_weights(Vp& vp)
{
    for_numbers<VP_CACHED>([&](auto k) { write_register<k.VALUE>(vp.store, 0.f); });
}

VP_ROUTINE void outer_tiles(Vp& vp, const OuterTiles& i)
{
    const int n = i.head.n;
    const GradientTiles g(n, i.head.width, (int)i.columns);
    const int each = g.segments / g.stored, items = g.tiles * g.stored;
    const int turn = vp.id - (int)i.turn, first = turn < 0 ? turn + vp.count : turn;
    VP_TIMELINE(count_floats(vp, (size_t)((items - first + vp.count - 1) / vp.count) * TILE_FLOATS);)
    VP_ROLLED for (int item = first; item < items; item += vp.count) {
        const int tile = item / g.stored, part = item - tile * g.stored;
        const int down = tile / g.across, across = tile - down * g.across;
        float* const result = vp.pool + i.partials + (size_t)item * TILE_FLOATS;
        float* const sums = i.sums && !across ? vp.pool + i.sums + part * i.head.width + down * TALL : nullptr;
        VP_ROLLED for (int s = part * each; s < (part + 1) * each; s++) {
            const int from = share(n, s, g.segments), to = share(n, s + 1, g.segments);
            partial_tile(vp, i, down * TALL, across * WIDE, from, to, s > part * each, result, sums);
        }
    }
    forget_weights(vp);
}

// Four adjacent elements in a row of G.
struct GradientQuad {
    int row, column, inside;  // inside: how many of the four are in the matrix
    float g[4];
};

// Calls f for each quad of G that this virtual processor owns, with all partial tiles added up.
template <class Args, class F> VP_DEVICE void for_sums_of_tiles(const Vp& vp, const Args& i, F f)
{
    enum { FOURS = WIDE / 4 };
    const GradientTiles tiles(i.head.n, i.head.width, (int)i.columns);
    const OwnTiles own(vp, i.head.width, (int)i.columns);
    VP_ROLLED for (int k = own.first * FOURS + VP_OPAQUE(thread()); k < own.last * FOURS; k += THREADS) {
        const int t = k / FOURS, row = t / own.across, across = t - row * own.across, within = k % FOURS * 4;
        GradientQuad four = {row, across * WIDE + within, least(4, (int)i.columns - across * WIDE - within)};
        if (four.inside <= 0) continue;
        const size_t tile = (size_t)(row / TALL * tiles.across + across) * tiles.stored;
        const float* from = vp.pool + i.partials + tile * TILE_FLOATS + row % TALL * WIDE + within;
        float4 part[VP_MOST_SEGMENTS];
        VP_UNROLL for (int s = 0; s < VP_MOST_SEGMENTS; s++)
            part[s] = s < tiles.stored ? *(const float4*)(from + s * TILE_FLOATS) : float4{0.f, 0.f, 0.f, 0.f};
        float4 sum = part[0];
        VP_UNROLL for (int s = 1; s < VP_MOST_SEGMENTS; s++) {
            if (s < tiles.stored) sum = {sum.x + part[s].x, sum.y + part[s].y, sum.z + part[s].z, sum.w + part[s].w};
        }
        four.g[0] = sum.x, four.g[1] = sum.y, four.g[2] = sum.z, four.g[3] = sum.w;
        if (VP_OPAQUE(i.head.flags) & ACCUMULATE) {
            const float* held = vp.pool + i.gradient + (size_t)row * i.columns + four.column;
            VP_UNROLL for (int c = 0; c < 4; c++) four.g[c] = c < four.inside ? held[c] + four.g[c] : 0.f;
        }
        f(four);
    }
}

VP_ROUTINE void sum_tiles(const Vp& vp, const SumTiles& i)
{
    VP_TIMELINE(count_tiles(vp, i, i.head.flags & ACCUMULATE ? 2 : 1);)
    for_sums_of_tiles(vp, i, [&](const GradientQuad& four) {
        float* to = vp.pool + i.gradient + (size_t)four.row * i.columns + four.column;
        VP_UNROLL for (int c = 0; c < 4; c++)
            if (c < four.inside) to[c] = four.g[c];
    });
}

// Sums the partial tiles and updates the weights.
template <class Rule> VP_ROUTINE void step_tiles(Vp& vp, const StepTiles& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const Weights at = weights_of(vp, i);
    VP_TIMELINE(count_tiles(vp, i, updated_floats<Rule>(i.head.flags & ACCUMULATE) + 1);)  // the transpose
    for_sums_of_tiles(vp, i, [&](const GradientQuad& four) {
        const size_t first = (size_t)four.row * i.columns + four.column;
        float w[4], m[4] = {}, v[4] = {};
        VP_UNROLL for (int c = 0; c < 4; c++) {  // all reads precede the first write
            const size_t k = first + least(c, four.inside - 1);
            w[c] = at.w[k];
            if constexpr (Rule::MOMENTS > 0) m[c] = at.m[k];
            if constexpr (Rule::MOMENTS > 1) v[c] = at.v[k];
        }
        VP_UNROLL for (int c = 0; c < 4; c++) {
            if (c >= four.inside) continue;
            Rule::step(w[c], four.g[c] * vp.gradient_scale, m[c], v[c], h);
            at.w[first + c] = w[c];
            if constexpr (Rule::MOMENTS > 0) at.m[first + c] = m[c];
            if constexpr (Rule::MOMENTS > 1) at.v[first + c] = v[c];
            vp.pool[i.transposed + (size_t)(four.column + c) * i.head.width + four.row] = w[c];
        }
        if (at.average) {
            VP_ROLLED for (int c = 0; c < four.inside; c++) average(at, (int)first + c, i.complement);
        }
    });
    forget_weights(vp);
}
