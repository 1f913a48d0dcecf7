// ---- signal and wait, host

enum { SPINS = 100, COUNTER_WORDS = 32 };  // a short spin, then yield: long spins are ruinous when cores are shared

VP_DEVICE void signal(const Vp& vp, const Signal& i)
{
    __atomic_fetch_add(vp.counters + i.counter * COUNTER_WORDS, 1u, __ATOMIC_RELEASE);
}

// False: another virtual processor stopped the launch.
VP_DEVICE bool wait(const Vp& vp, const Wait& i)
{
    const unsigned* counter = vp.counters + i.counter * COUNTER_WORDS;
    for (int spins = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < i.target; spins++) {
        if (__atomic_load_n(vp.stopped, __ATOMIC_RELAXED)) return false;
        if (spins < SPINS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else {
            sched_yield();
        }
    }
    return true;
}

VP_DEVICE void stop(const Vp& vp, const Word* ip)
{
    __atomic_store_n(vp.stopped, (unsigned)(ip - vp.script) + 1u, __ATOMIC_RELAXED);
}
