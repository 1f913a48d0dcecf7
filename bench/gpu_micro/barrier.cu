// A level's barrier alone: every block of a group signals, then waits for all of them. FORM: how.
#include "ptx.cuh"

#define COUNTER_BACKOFF 0 // one counter; thread 0 polls it relaxed with pauses, then acquires once
#define COUNTER_SPIN 1    // the same without pauses
#define COUNTER_ACQUIRE 2 // every poll is an acquire
#define EPOCH 3           // the last to arrive writes an epoch to another line; the others poll that
#define FLAGS 4           // a word per block, no atomics; a thread per block of the group polls its word

constexpr Word LINE = 32;            // words of 128 bytes, so that groups and kinds of word share no line
constexpr Word MOST_BLOCKS = 1024;   // of a launch
constexpr Word TIMEOUT = 1u << 23;  // polls, some seconds

DEVICE void give_up_after(Word& polls)
{
    if (++polls > TIMEOUT) stop();
}

DEVICE void barrier(Word* words, Word group, Word width, Word level)
{
    Word *counter = words + group * LINE, *epoch = words + (MOST_BLOCKS + group) * LINE;
    Word* flags = words + 2 * MOST_BLOCKS * LINE;
    Word polls = 0;
    __syncthreads();
    if (FORM == FLAGS) {
        if (threadIdx.x == 0) store_release(flags + blockIdx.x, level + 1);
        for (Word other = threadIdx.x; other < width; other += THREADS)
            while (load_acquire(flags + group * width + other) < level + 1) give_up_after(polls);
    } else if (threadIdx.x == 0) {
        const Word all = width * (level + 1);
        if (FORM == EPOCH) {
            if (fetch_add_acq_rel(counter) == all - 1)
                store_release(epoch, level + 1);
            else
                while (load_acquire(epoch) < level + 1) give_up_after(polls);
        } else {
            add_release(counter);
            if (FORM == COUNTER_ACQUIRE) {
                while (load_acquire(counter) < all) give_up_after(polls);
            } else {
                while (load_relaxed(counter) < all) {
                    if (FORM == COUNTER_BACKOFF && polls > 2) pause(20);
                    give_up_after(polls);
                }
                load_acquire(counter); // reads what the relaxed poll saw or later: ordered after all signals
            }
        }
    }
    __syncthreads();
}

/// words: counters, epochs, flags, all zero. Blocks b of group b / width. cells [2][blocks]; errors: one word.
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
