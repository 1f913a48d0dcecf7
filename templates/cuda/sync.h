#pragma once
#include "instructions.h"
// ---- signal, wait, and the words of the script, CUDA
enum {
    OUT_OF_PATIENCE = 2,  // a reason to stop, like UNKNOWN_INSTRUCTION
    POLLS = 64,          // polls of a counter between two clock reads
    PATIENT_POLLS = 16,  // polls before the first nap
};

// An instruction is divided among the virtual processors of a group, or of all groups.
VP_DEVICE int everyone() { return VP_COUNT ? VP_COUNT : (int)gridDim.x; }
VP_DEVICE int group_size() { return everyone() / VP_GROUPS; }
VP_DEVICE void count_all(Vp& vp, bool all)
{
    vp.id = all ? rank() : rank() - vp.first;
    vp.count = all ? everyone() : group_size();
}

// Returns false if an earlier launch was stopped: the state is incomplete, so this launch does nothing.
VP_DEVICE bool enter(Vp& vp, const Launch& launch)
{
    vp.first = VP_GROUPS > 1 ? rank() - rank() % group_size() : 0;
    count_all(vp, false);
    vp.pool = launch.pool;
    vp.script = launch.script;
    vp.counters = launch.counters;
    vp.report = launch.report;
    vp.stopped = launch.stopped;
    vp.losses = launch.losses;
    vp.patience = launch.patience;
    vp.gradient_scale = 1.f;
    vp.why = 0;
    declare_registers(vp.store);
    vp.position = launch.script[VP_HEADER_WORDS + rank()];
    vp.fetched = vp.position + SCRIPT_WORDS;  // the buffer is empty
    if (rank() == 0) {
        VP_ROLLED for (int k = thread(); k < COUNTERS * COUNTER_WORDS; k += THREADS) launch.cleared[k] = 0;
    }
    if (thread() == 0) {
        *verdict() = load_relaxed(vp.stopped);
        last_word() = launch.script[3] - 1;
    }
    __syncthreads();
    return *verdict() == 0;
}

// True if the buffer holds the whole instruction at `offset`, and its chained tail, if any.
VP_DEVICE bool is_fetched(const Word* buffer, Word offset)
{
    if (offset + VP_HEAD_WORDS > SCRIPT_WORDS) return false;
    Word end = offset + buffer[offset + 1];
    if (VP_CHAINS && buffer[offset] >> 16 & CHAINED) {
        if (end + VP_HEAD_WORDS > SCRIPT_WORDS) return false;
        end += buffer[end + 1];
    }
    return end <= SCRIPT_WORDS;
}

// The instruction after the current one.
VP_DEVICE const Word* behind(const Vp& vp)
{
    const Word* ip = script_buffer() + (vp.position - vp.fetched);
    return ip + size_of(ip);
}

// Number of words in an instruction and its chained tail. Only the end of the interpreter's loop may call it: if an instruction
// itself skipped the tail, the compiler would assume that threads diverge there (VP_AGREED).
VP_DEVICE Word words_of(const Word* ip)
{
    return size_of(ip) + (VP_CHAINS && ip[0] >> 16 & CHAINED ? size_of(ip + size_of(ip)) : 0);
}

// Returns the instruction at the current position, in shared memory. All threads then see all previous results.
VP_DEVICE const Word* fetch(Vp& vp)
{
    __syncthreads();
    Word* buffer = script_buffer();
    const Word offset = vp.position - vp.fetched;
    if (!is_fetched(buffer, offset)) {
        __syncthreads();
        const Word last = last_word();
        // All copies are in flight together. Unrolled, because NVRTC 13.0 assumes that threads diverge in a loop (VP_AGREED).
        VP_UNROLL for (int k = 0; k < SCRIPT_WORDS; k += THREADS) {
            const Word word = vp.position + k + thread();
            copy_async4((float*)buffer + k + thread(), (const float*)vp.script + (word < last ? word : last));
        }
        vp.fetched = vp.position;
        copy_async_wait();
        __syncthreads();
    }
    at(vp.position);
    buffer += vp.position - vp.fetched;
    if (VP_GROUPS > 1) count_all(vp, buffer[0] >> 16 & ALL);
    return buffer;
}

VP_DEVICE void signal(const Vp& vp, const Signal& i)
{
    if (thread() == 0) add_release(vp.counters + i.counter * COUNTER_WORDS, 1);
}

// Stops the launch for all virtual processors, because an instruction failed: every wait ends, and finds the reason.
VP_DEVICE void stop(const Vp& vp, Word position, unsigned why)
{
    if (thread() != 0) return;
    store_relaxed(vp.report + 2 + rank(), position);
    if (compare_and_swap(vp.stopped, 0, 1) != 0) return;  // stop only once: four additions of 2^30 would overflow to zero
    store_relaxed(vp.report, position + 1);
    store_relaxed(vp.report + 1, why);
    // Opaque: otherwise the first counter's address occupies registers from the start of the kernel.
    VP_ROLLED for (int c = 0; c < COUNTERS; c++) add_release(vp.counters + VP_OPAQUE(c) * COUNTER_WORDS, STOPPED);
}

// Waits for the counter to reach the target. Returns false if the launch was stopped, or must be stopped (vp.why). One thread
// polls with relaxed loads, because every acquire empties the first-level cache. One acquire at the end, and the block's barrier,
// order later reads.
VP_DEVICE bool wait(Vp& vp, const Wait& i)
{
    if (thread() == 0) {
        const unsigned* counter = vp.counters + i.counter * COUNTER_WORDS;
        unsigned long long began = 0;
        bool late = false;
        for (int polls = 1; load_relaxed(counter) < i.target; polls++) {
            if (polls > PATIENT_POLLS) nap(20);  // the first polls expect the signal at any moment
            if (polls % POLLS == 0 && vp.patience) {
                const unsigned long long now = nanoseconds();
                if (!began) began = now;
                else if (late = now - began > vp.patience) break;
            }
        }
        const bool stopped = load_acquire(counter) >= STOPPED;
        if (stopped) store_relaxed(vp.report + 2 + rank(), vp.position);
        *verdict() = stopped ? STOPPED : late ? OUT_OF_PATIENCE : 0;
    }
    __syncthreads();
    const Word found = *verdict();
    vp.why = found & OUT_OF_PATIENCE;  // no branch: the compiler would assume that threads diverge there (VP_AGREED)
    return found == 0;
}

VP_DEVICE void mark(unsigned* word) { store_relaxed(word, 1); }
VP_DEVICE bool marked(const unsigned* word) { return load_relaxed(word); }

// Writes a result to the first floats of the pool, which the next launch does not overwrite, and to host memory.
VP_DEVICE void tell(const Vp& vp, Word slot, float what)
{
    if (thread() == 0) vp.pool[slot] = vp.losses[slot] = what;
}
