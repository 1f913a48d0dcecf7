// Shared by the programs of this folder: included after templates/cuda/ptx.cuh and before a program. A program's script
// begins with HEAD words: 1 is n (vectors, levels), 2 repetitions, 3 its length; each program defines the others.
struct Launch {
    float* pool;
    const unsigned* script;
    unsigned *counters, *cleared, *report;
    unsigned long long patience;
    unsigned* stopped;
    float* losses;
};
#define DEV __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256, 1) vpps_kernel(const Launch p)
enum { THREADS = 256, WARPS = 8, HEAD = 8, LINE = 32, NOT_YET = -1 };
DEV int warp() { return threadIdx.x / 32; }
DEV int lane() { return threadIdx.x % 32; }
DEV int least(int a, int b) { return a < b ? a : b; }
DEV float4 ld4(const float* at) { return *(const float4*)at; }

// Report this block's time to the host.
DEV void tell(const Launch& p, unsigned long long began)
{
    if (threadIdx.x == 0) p.report[2 + blockIdx.x] = (unsigned)(nanoseconds() - began);
}

// True if a waiting loop has timed out, in this block or another: then no block waits any longer.
DEV bool hopeless(const Launch& p, unsigned long long began)
{
    if (nanoseconds() - began > p.patience) store_relaxed(p.stopped, 1);
    return load_relaxed(p.stopped);
}

// Barrier of blocks as in vpps's kernel (cuda/sync.h): all have arrived when the counter is at `target`.
DEV void meet(const Launch& p, unsigned* counter, unsigned target)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter, 1);
        unsigned long long began = 0;
        for (int polls = 1; load_relaxed(counter) < target; polls++) {
            if (polls > 16) nap(20);
            if (polls % 64) continue;
            if (!began) began = nanoseconds();
            else if (hopeless(p, began)) break;
        }
        load_acquire(counter);
    }
    __syncthreads();
}

#ifdef VP_SIMT  // the emulator has no clusters
DEV void meet_cluster() {}
#else
DEV void meet_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif
