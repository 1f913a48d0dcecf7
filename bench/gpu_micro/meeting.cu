// Groups of script[4] blocks: in each of n levels a group writes 2 KB, a share per block, synchronizes, and reads all.
// pool[0]: count of wrong numbers. HOW 0: a counter; 1: cluster barriers; 2: polling the data itself, in memory that initially
// holds NOT_YET; 3: no barrier; one block follows a chain of addresses, each a round trip to L2.
enum { SIZE = 512, FIRST = 64 };
KERNEL
{
    const int levels = p.script[1], size = p.script[4], group = blockIdx.x / size, mine = blockIdx.x % size;
    unsigned* data = (unsigned*)p.pool + FIRST + (size_t)group * (HOW == 2 ? levels : 2) * SIZE;
    int wrong = 0;
    const unsigned long long began = nanoseconds();
#pragma unroll 1
    for (int level = 0; level < levels; level++) {
        if (HOW == 3) {
            wrong = load_relaxed((unsigned*)p.pool + FIRST + wrong);
            continue;
        }
        unsigned* to = data + (HOW == 2 ? level : level % 2) * SIZE;
        for (int k = SIZE * mine / size + threadIdx.x; k < SIZE * (mine + 1) / size; k += THREADS)
            store_relaxed(to + k, level * SIZE + k);
        if (HOW == 0) meet(p, p.counters + group * LINE, (level + 1) * size);
        if (HOW == 1) meet_cluster();
        for (int k = threadIdx.x; k < SIZE; k += THREADS) {
            unsigned found = load_relaxed(to + k);
            unsigned long long since = 0;
            for (int polls = 1; HOW == 2 && found == (unsigned)NOT_YET; polls++, found = load_relaxed(to + k)) {
                if (polls > 16) nap(20);
                if (polls % 64) continue;
                if (!since) since = nanoseconds();
                else if (hopeless(p, since)) break;
            }
            wrong += found != (unsigned)(level * SIZE + k);
        }
        if (HOW == 2) __syncthreads();
    }
    tell(p, began);
    if (wrong && HOW != 3) add_float(p.pool, wrong);
}
