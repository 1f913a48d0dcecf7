// A level's barrier alone: every block of a group signals, then waits for all of them: one counter, which thread 0 polls
// relaxed, then acquires once. On an H100 pauses between polls and polls that acquire took as long; an epoch in a line of its own
// 1.4 times, a word per block and no atomics 1.4 to 1.7 times (bench/results/h100).
#include "ptx.cuh"

constexpr Word LINE = 32;           // words of 128 bytes, so that groups share no line
constexpr Word TIMEOUT = 1u << 23;  // polls, some seconds

DEVICE void give_up_after(Word& polls)
{
    if (++polls > TIMEOUT) stop();
}

DEVICE void barrier(Word* words, Word group, Word width, Word level)
{
    Word* counter = words + group * LINE;
    Word polls = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter);
        while (load_relaxed(counter) < width * (level + 1)) give_up_after(polls);
        load_acquire(counter); // reads what the relaxed poll saw or later: ordered after all signals
    }
    __syncthreads();
}

/// words: counters, all zero. Blocks b of group b / width. cells [2][blocks]; errors: one word.
/// check: after every barrier look whether all blocks of the group wrote before it.
extern "C" __global__ void __launch_bounds__(THREADS)
barriers(Word* words, Word* cells, Word* errors, Word width, Word levels, Word check)
{
    const Word group = blockIdx.x / width;
#pragma unroll 1
    for (Word level = 0; level < levels; ++level) {
        Word* now = cells + level % 2 * gridDim.x; // two: who is a level ahead overwrites nothing that others still read
        if (check && threadIdx.x == 0) now[blockIdx.x] = level + 1;
        barrier(words, group, width, level);
        // Not `load`: after the acquire an ordinary read must do, and that is what is checked.
        for (Word other = threadIdx.x; check && other < width; other += THREADS)
            if (now[group * width + other] != level + 1) count(errors);
    }
}
