#pragma once
#include "instructions.h"
// ---- signal and wait, host. A counter's line holds the number of signals, and the number of sleeping virtual processors.
enum { YIELDS = 20 };  // yields in a wait, after it spins and before it sleeps

#if defined(__linux__)
// The signal that reaches a sleeper's target wakes it by bit target % 32. Signals 32 apart also wake it; it then polls again.
static void sleep_until(unsigned* counter, unsigned seen, unsigned target)
{
    __atomic_fetch_add(counter + 1, 1u, __ATOMIC_SEQ_CST);  // must precede the system's comparison of counter and `seen`
    syscall(SYS_futex, counter, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen, nullptr, nullptr, 1u << (target % 32));
    __atomic_fetch_sub(counter + 1, 1u, __ATOMIC_RELAXED);
}
static void wake(unsigned* counter, unsigned bits)
{
    syscall(SYS_futex, counter, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, INT32_MAX, nullptr, nullptr, bits);
}
#else
static void sleep_until(unsigned*, unsigned, unsigned) { sched_yield(); }
static void wake(unsigned*, unsigned) {}
#endif

VP_DEVICE const Word* fetch(const Vp& vp) { return vp.script + vp.position; }
VP_DEVICE int words_of(const Word* ip) { return size_of(ip); }

// Yields the core to its other hardware thread for a moment.
VP_DEVICE void relax()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

VP_DEVICE void signal(const Vp& vp, const Signal& i)
{
    unsigned* counter = vp.counters + i.counter * COUNTER_WORDS;
    const unsigned now = __atomic_add_fetch(counter, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(counter + 1, __ATOMIC_SEQ_CST)) wake(counter, 1u << (now % 32));
}

// Waits for the counter to reach the target. Returns false if another virtual processor stopped the launch.
VP_DEVICE bool wait(const Vp& vp, const Wait& i)
{
    unsigned* counter = vp.counters + i.counter * COUNTER_WORDS;
    unsigned seen;
    for (int turn = 0; (seen = __atomic_load_n(counter, __ATOMIC_ACQUIRE)) < i.target; turn++) {
        if (turn < vp.spins) {
            relax();
        } else if (turn < vp.spins + YIELDS) {
            sched_yield();
        } else {
            sleep_until(counter, seen, i.target);
        }
    }
    return !__atomic_load_n(vp.stopped, __ATOMIC_RELAXED);
}

VP_DEVICE void stop(const Vp& vp, Word position, int)
{
    unsigned none = 0;
    if (!__atomic_compare_exchange_n(vp.stopped, &none, position + 1u, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;  // stop only once: four additions of 2^30 would overflow to zero
    for (int c = 0; c < COUNTERS; c++) {
        __atomic_fetch_add(vp.counters + c * COUNTER_WORDS, (unsigned)STOPPED, __ATOMIC_SEQ_CST);
        wake(vp.counters + c * COUNTER_WORDS, ~0u);
    }
}

VP_DEVICE void mark(unsigned* word) { __atomic_store_n(word, 1u, __ATOMIC_RELAXED); }
VP_DEVICE bool marked(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

// Runs a tail. Its program is in a separate library (host/tails.h), because this kernel serves every model.
VP_ROUTINE void tail(const Vp& vp, const Tail& i)
{
    for (const TailEntry* entry = vp.tails; entry->run; entry++)
        if (entry->number == i.number) return entry->run(vp, i);
    stop(vp, vp.position, UNKNOWN_INSTRUCTION);
}

// Writes a result for the host, which reads the first floats of the pool after the launch.
VP_DEVICE void tell(const Vp& vp, Word slot, float what) { vp.pool[slot] = what; }
