// ---- signal, wait, and the words of the script, CUDA
enum {
    OUT_OF_PATIENCE = 2,  // beside UNKNOWN_INSTRUCTION
    POLLS = 64,          // of a counter between two looks at the clock
    PATIENT_POLLS = 16,  // without a nap in between
};

// Who divides an instruction: the virtual processors of a group, or those of all.
VP_DEVICE int everyone() { return VP_COUNT ? VP_COUNT : (int)gridDim.x; }
VP_DEVICE int group_size() { return everyone() / VP_GROUPS; }
VP_DEVICE void count_all(Vp& vp, bool all)
{
    vp.id = all ? rank() : rank() - vp.first;
    vp.count = all ? everyone() : group_size();
}

// False: the launch before this one, or one before that, was stopped; there is nothing to go on with.
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
    vp.fetched = vp.position + SCRIPT_WORDS;  // nothing yet
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

// Whether the buffer has all of the instruction at `offset`, and of the tail that is executed with it, if there is one.
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

// The instruction behind the present one.
VP_DEVICE const Word* behind(const Vp& vp)
{
    const Word* ip = script_buffer() + (vp.position - vp.fetched);
    return ip + size_of(ip);
}

// Words of an instruction and the tail that was executed with it. At the end of the interpreter's loop and nowhere else: where
// an instruction itself steps over the tail, the compiler takes it that threads part there (VP_AGREED).
VP_DEVICE Word words_of(const Word* ip)
{
    return size_of(ip) + (VP_CHAINS && ip[0] >> 16 & CHAINED ? size_of(ip + size_of(ip)) : 0);
}

// The instruction at the present position, in shared memory. What the one before it wrote is there for all threads.
VP_DEVICE const Word* fetch(Vp& vp)
{
    __syncthreads();
    Word* buffer = script_buffer();
    const Word offset = vp.position - vp.fetched;
    if (!is_fetched(buffer, offset)) {
        __syncthreads();
        const Word last = last_word();
        // All in flight at once. Unrolled not for that: NVRTC 13.0 takes it that threads part in a loop here (VP_AGREED).
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

// End the launch for all, for what an instruction could not do: every wait is over, and finds out why.
VP_DEVICE void stop(const Vp& vp, Word position, unsigned why)
{
    if (thread() != 0) return;
    store_relaxed(vp.report + 2 + rank(), position);
    if (compare_and_swap(vp.stopped, 0, 1) != 0) return;  // four marks would add up to none
    store_relaxed(vp.report, position + 1);
    store_relaxed(vp.report + 1, why);
    // Opaque: else the first counter's address is in registers from the beginning of the kernel on.
    VP_ROLLED for (int c = 0; c < COUNTERS; c++) add_release(vp.counters + VP_OPAQUE(c) * COUNTER_WORDS, STOPPED);
}

// False: the launch was stopped, or is to be stopped (vp.why). One thread polls, without order: every acquire throws away
// what the first-level cache holds. The one acquire when the counter is there, and the block's barrier, order what comes after.
VP_DEVICE bool wait(Vp& vp, const Wait& i)
{
    if (thread() == 0) {
        const unsigned* counter = vp.counters + i.counter * COUNTER_WORDS;
        unsigned long long began = 0;
        bool late = false;
        for (int polls = 1; load_relaxed(counter) < i.target; polls++) {
            if (polls > PATIENT_POLLS) nap(20);  // before, whoever comes is expected at any moment
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
    vp.why = found & OUT_OF_PATIENCE;  // no branch: the compiler would take it that threads part there (VP_AGREED)
    return found == 0;
}

VP_DEVICE void mark(unsigned* word) { store_relaxed(word, 1); }
VP_DEVICE bool marked(const unsigned* word) { return load_relaxed(word); }

// For the first floats of the pool, where the next launch does not overwrite it, and for the host.
VP_DEVICE void tell(const Vp& vp, Word slot, float what)
{
    if (thread() == 0) vp.pool[slot] = vp.losses[slot] = what;
}
