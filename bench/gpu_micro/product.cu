// Every block multiplies its weights (R x K, from pool[64] on) by n vectors, whose addresses are in the script. The bias
// begins at pool[0], results of block b at script[4] + b n R.
KERNEL
{
    const int n = p.script[1];
    Factors f;
    f.load(p.pool + 64);
    float* out = p.pool + p.script[4] + (size_t)blockIdx.x * n * R;
    __syncthreads();
    const unsigned long long began = nanoseconds();
#pragma unroll 1
    for (int k = 0; k < p.script[2]; k++) {
        product(
            f, n, [&](int v, int c) { return p.pool + p.script[HEAD + v] + c * KC; },
            [&](int r, int v, float sum) { out[v * R + r] = sum + p.pool[r]; });
        __syncthreads();
    }
    tell(p, began);
}
