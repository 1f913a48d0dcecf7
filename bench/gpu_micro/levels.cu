// Levels of a recurrence, as in a binary Tree-LSTM of 256 units: groups of script[4] blocks multiply, run the tail and
// synchronize, for n levels. Vertex v of a level has the children v and v + 1 of VERTICES. A block owns UNITS units: their 5
// gates are its rows. The k-th block of a group has its weights at pool[script[5]] + k R K. c and h of the first level begin at
// pool[0]; h of each group is at script[6], twice. HOW is as in meeting.cu.
enum { WIDTH = K / 2, STATES = VERTICES * WIDTH };
DEV float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
KERNEL
{
    const int size = p.script[4], group = blockIdx.x / size, mine = blockIdx.x % size;
    Factors f;
    f.load(p.pool + p.script[5] + (size_t)mine * R * K);
    float *results = behind_partial(), *cells = results + R * VERTICES;  // cells: two copies for the block's units
    float* h = p.pool + p.script[6] + (size_t)group * 2 * STATES;
    for (int i = threadIdx.x; i < UNITS * VERTICES; i += THREADS) {
        const int unit = mine * UNITS + i / VERTICES, v = i % VERTICES;
        cells[i] = unit < WIDTH ? p.pool[v * WIDTH + unit] : 0.f;
        if (unit < WIDTH) h[v * WIDTH + unit] = p.pool[STATES + v * WIDTH + unit];
    }
    const auto all = [&](int times) { HOW ? meet_cluster() : meet(p, p.counters + group * LINE, times * size); };
    all(1);
    const unsigned long long began = nanoseconds();
#pragma unroll 1
    for (int level = 0; level < (int)p.script[1]; level++) {
        const float *from = h + level % 2 * STATES, *before = cells + level % 2 * UNITS * VERTICES;
        float *to = h + (level + 1) % 2 * STATES, *after = cells + (level + 1) % 2 * UNITS * VERTICES;
        product(
            f, VERTICES, [&](int v, int c) { return from + (v + c) % VERTICES * WIDTH; },
            [&](int r, int v, float sum) { results[r * VERTICES + v] = sum; });
        __syncthreads();
        for (int i = threadIdx.x; i < UNITS * VERTICES; i += THREADS) {
            const int unit = i / VERTICES, v = i % VERTICES;
            const auto gate = [&](int k) { return results[(k * UNITS + unit) * VERTICES + v]; };
            const float c = sigmoid(gate(0)) * tanhf(gate(1)) + sigmoid(gate(2)) * before[i] +
                            sigmoid(gate(3)) * before[unit * VERTICES + (v + 1) % VERTICES];
            after[i] = c;
            if (mine * UNITS + unit < WIDTH) to[v * WIDTH + mine * UNITS + unit] = sigmoid(gate(4)) * tanhf(c);
        }
        all(level + 2);
    }
    tell(p, began);
}
