// G = sum over n vertices of dy x^T (DY x DX, at pool[script[4]]) in tiles of 64 x 64, each for a segment of the vertices. The
// sums of the script[5] segments begin at script[6] and are added in order. The script has the addresses of dy, then of x.
enum { T = 64, AT_ONCE = 32, STAGE = AT_ONCE * 2 * T, BUFFERS = 3, TILES = DY / T * (DX / T), APART = T + 4 };

// Start copying 32 vertices of a segment: 64 floats of dy, then 64 of x, by half a warp each.
DEV void stage(const Launch& p, int tile, int first, int end, float* to)
{
    const int x = lane() / 16, column = 4 * (lane() % 16), n = p.script[1];
#pragma unroll
    for (int v = warp(); v < AT_ONCE; v += WARPS) {
        const unsigned from = p.script[HEAD + x * n + least(first + v, end - 1)] + T * (x ? tile % (DX / T) : tile / (DX / T));
        copy_async16(to + v * 2 * T + x * T + column, p.pool + from + column);
    }
    copy_async_commit();
}

// Half of the warps process the first 16 of 32 vertices, half the rest; their sums are added at the end.
DEV void tile_of_segment(const Launch& p, int tile, int begin, int end, float* to)
{
    const int half = warp() / 4, row = warp() / 2 % 2 * 32 + lane() / 8 * 4, column = warp() % 2 * 32 + lane() % 8 * 4;
    float* memory = shared_memory();
    float sum[8][4];
#pragma unroll
    for (int k = 0; k < 32; k++) sum[k / 4][k % 4] = 0.f;
    stage(p, tile, begin, end, memory);
    stage(p, tile, begin + AT_ONCE, end, memory + STAGE);
#pragma unroll 1
    for (int first = begin, k = 0; first < end; first += AT_ONCE, k = k + 1 == BUFFERS ? 0 : k + 1) {
        copy_async_wait<1>();
        __syncthreads();
        if (first + 2 * AT_ONCE < end) stage(p, tile, first + 2 * AT_ONCE, end, memory + (k + 2) % BUFFERS * STAGE);
        else copy_async_commit();
        const float* at = memory + k * STAGE + half * (AT_ONCE / 2) * 2 * T;
        const auto vertex = [&](int v) {
            const float4 a = ld4(at + v * 2 * T + row), b = ld4(at + v * 2 * T + row + 16), x = ld4(at + v * 2 * T + T + column);
            const float d[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, e[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 32; i++) sum[i / 4][i % 4] = __fmaf_rn(d[i / 4], e[i % 4], sum[i / 4][i % 4]);
        };
        const int there = end - first - half * (AT_ONCE / 2);
        if (there >= AT_ONCE / 2) {
#pragma unroll 8
            for (int v = 0; v < AT_ONCE / 2; v++) vertex(v);
        } else {
#pragma unroll 1
            for (int v = 0; v < there; v++) vertex(v);
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    for (int turn = 1; turn >= 0; turn--) {
        if (half == turn)
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const int at = row + r % 4 + r / 4 * 16;
                const float4 own = make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
                float4* other = (float4*)(memory + at * APART + column);
                if (turn) *other = own;
                else *(float4*)(to + (size_t)(tile / (DX / T) * T + at) * DX + tile % (DX / T) * T + column) =
                    make_float4(own.x + other->x, own.y + other->y, own.z + other->z, own.w + other->w);
            }
        __syncthreads();
    }
}

KERNEL
{
    const int n = p.script[1], segments = p.script[5], blocks = gridDim.x;
    float* whole = p.pool + p.script[4];
    const unsigned long long began = nanoseconds();
#pragma unroll 1
    for (int k = 0; k < p.script[2]; k++) {
        float* parts = segments == 1 ? whole : p.pool + p.script[6] + (size_t)(k % 2 * segments) * DY * DX;
#pragma unroll 1
        for (int u = blockIdx.x; u < TILES * segments; u += blocks) {
            const int s = u / TILES;
            tile_of_segment(p, u % TILES, n * s / segments, n * (s + 1) / segments, parts + (size_t)s * DY * DX);
        }
        meet(p, p.counters, (k + 1) * blocks);
        if (segments == 1) continue;
        for (int i = 4 * (blockIdx.x * THREADS + threadIdx.x); i < DY * DX; i += 4 * blocks * THREADS) {
            float4 sum = ld4(parts + i);
            for (int s = 1; s < segments; s++) {
                const float4 next = ld4(parts + (size_t)s * DY * DX + i);
                sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
            }
            *(float4*)(whole + i) = sum;
        }
    }
    tell(p, began);
}
