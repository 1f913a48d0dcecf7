#pragma once
#include "../math.cuh"
#include "pairs.h"
#include "sync.h"
#include "timeline.h"
// ---- the machine, host: OS threads as virtual processors. They live from open to close and sleep between launches.
//
// Waking a thread takes longer than many launches of a single example. If the caller waits for a launch at once, the
// calling thread is the first virtual processor (`helped`), whose own thread keeps sleeping. The other threads are woken
// when the caller starts planning, and spin for a while.
struct Machine {
    pthread_mutex_t lock;
    pthread_cond_t start, first, done;  // `first`: like `start`, for the first virtual processor
    unsigned launches;  // number of launches; a change wakes the threads
    int running;        // threads that have not finished the current launch
    bool closing;
    bool helped, begun;  // the waiting caller is the first virtual processor; it has begun
    unsigned stopped;
    Vp launch;          // template of every virtual processor, without the id
    int count, spins;
    int host;  // core that virtual processors avoid; -1: none yet
    bool apart;  // true if all virtual processors but the first avoid it
    pthread_t* threads;
    struct Place { Machine* machine; int id; }* places;
    unsigned* counters[2];  // launch k uses array k & 1 and clears the other, so that no counter wraps
    const TailEntry* tails; // owned by the caller
    Timeline* timelines;    // one per virtual processor, owned by the caller; null: no recording
#if VP_ROUNDS
    Scratch* scratch;       // one per virtual processor
#endif
};
VP_GLOBAL void vpps_kernel(Vp vp);
enum {
    SPINS = 100,        // about two microseconds, the length of a wait when all virtual processors run at once
    AWAKE_US = 500,     // spin time for an announced launch; planning for few examples takes less time
};

// Executes one virtual processor's part of the launch, with default rounding and denormals, whatever the process's modes.
static void execute(Machine& m, Vp vp, int id)
{
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    vp.id = id;
    if (m.timelines) vp.timeline = m.timelines + id;
#if VP_ROUNDS
    vp.scratch = m.scratch + id;
#endif
    vpps_kernel(vp);
    fesetenv(&before);
    pthread_mutex_lock(&m.lock);
    if (--m.running == 0) pthread_cond_broadcast(&m.done);
    pthread_mutex_unlock(&m.lock);
}

// Spins for an announced launch, at most AWAKE_US.
static void stay_awake(const Machine& m, unsigned seen)
{
    const auto now_us = [] {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000L + now.tv_nsec / 1000;
    };
    for (const long end = now_us() + AWAKE_US; now_us() < end;)
        for (int i = 0; i < SPINS; i++) {
            if (__atomic_load_n(&m.launches, __ATOMIC_ACQUIRE) != seen || __atomic_load_n(&m.closing, __ATOMIC_ACQUIRE)) return;
            relax();
        }
}

static void* vpps_thread(void* argument)
{
    const Machine::Place place = *(Machine::Place*)argument;
    Machine& m = *place.machine;
    unsigned seen = 0;
    for (;;) {
        pthread_mutex_lock(&m.lock);
        const auto idle = [&] { return (m.launches == seen || (m.helped && !place.id)) && !m.closing; };
        while (idle()) {
            pthread_cond_wait(place.id ? &m.start : &m.first, &m.lock);
            if (!idle() || !place.id) continue;
            pthread_mutex_unlock(&m.lock);  // woken by an announcement
            stay_awake(m, seen);
            pthread_mutex_lock(&m.lock);
        }
        if (m.closing) {
            pthread_mutex_unlock(&m.lock);
            return nullptr;
        }
        seen = m.launches;
        const Vp vp = m.launch;
        pthread_mutex_unlock(&m.lock);
        execute(m, vp, place.id);
    }
}

// Moves virtual processors off the core of the launching thread, if there are enough other cores. That thread keeps
// running, or is the first virtual processor. Returns true if all other virtual processors avoid its core. If Linux
// considers the cores well used, it wakes a thread on the core where the thread last ran, even if that core is busy. The
// launching thread would then wait until the virtual processor has ended, which takes longer than most launches.
static bool keep_off(Machine& m)
{
#if defined(__linux__)
    const int core = sched_getcpu();
    cpu_set_t rest;
    if (core == m.host) return m.apart;
    if (sched_getaffinity(0, sizeof rest, &rest)) return false;
    m.host = core;
    CPU_CLR(core, &rest);
    const int others = CPU_COUNT(&rest);
    m.apart = m.count - 1 <= others;
    for (int i = m.count > others; m.apart && i < m.count; i++) pthread_setaffinity_np(m.threads[i], sizeof rest, &rest);
#endif
    return m.apart;
}

// Runs the first virtual processor on the calling thread, if `helped`. The caller holds the lock.
static void help(Machine& m)
{
    if (!m.helped || m.begun) return;
    m.begun = true;
    const Vp vp = m.launch;
    pthread_mutex_unlock(&m.lock);
    execute(m, vp, 0);
    pthread_mutex_lock(&m.lock);
}

#pragma GCC visibility push(default)
extern "C" {

// Wait for the running launch, stop the threads and free the machine.
void vpps_close(Machine* m)
{
    pthread_mutex_lock(&m->lock);
    help(*m);
    while (m->running) pthread_cond_wait(&m->done, &m->lock);
    m->closing = true;
    pthread_cond_broadcast(&m->start);
    pthread_cond_broadcast(&m->first);
    pthread_mutex_unlock(&m->lock);
    for (int i = 0; i < m->count; i++) pthread_join(m->threads[i], nullptr);
    for (unsigned* c : m->counters) free(c);
#if VP_ROUNDS
    for (int i = 0; i < m->count; i++) free(m->scratch[i].words);
    free(m->scratch);
#endif
    free(m->places);
    free(m->threads);
    free(m);
}

// Start `count` virtual processors; null if the system cannot create the threads. If they outnumber the cores, a spinning
// thread would block the thread that it waits for, so waits yield at once (a barrier for 16 on one core takes 25 us, not 60).
Machine* vpps_open(int count, int cores)
{
    Machine* m = (Machine*)calloc(1, sizeof(Machine));
    m->spins = count > cores ? 0 : SPINS;
    m->host = -1;
    static const TailEntry none = {0, nullptr};
    m->tails = &none;
    pthread_mutex_init(&m->lock, nullptr);
    pthread_cond_init(&m->start, nullptr);
    pthread_cond_init(&m->first, nullptr);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
#if !defined(__APPLE__)
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&m->done, &monotonic);
    m->threads = (pthread_t*)calloc(count, sizeof(pthread_t));
    m->places = (Machine::Place*)calloc(count, sizeof(Machine::Place));
#if VP_ROUNDS
    m->scratch = (Scratch*)calloc(count, sizeof(Scratch));
#endif
    for (unsigned*& c : m->counters) {
        c = (unsigned*)aligned_alloc(128, COUNTERS * COUNTER_WORDS * sizeof(unsigned));
        memset(c, 0, COUNTERS * COUNTER_WORDS * sizeof(unsigned));
    }
    sigset_t all, before;  // block all signals, because Ctrl-C must reach Python's main thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; m->count < count; m->count++) {
        m->places[m->count] = {m, m->count};
        if (pthread_create(&m->threads[m->count], nullptr, vpps_thread, &m->places[m->count])) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (m->count < count) {
        vpps_close(m);
        return nullptr;
    }
    return m;
}

void vpps_set_tails(Machine* m, const TailEntry* tails) { m->tails = tails; }  // programs of the next launch's tails
unsigned vpps_launches(Machine* m) { return m->launches; }                    // number of launches so far
void vpps_timeline(Machine* m, Timeline* timelines) { m->timelines = timelines; }  // memory for the next launch

// Announce a launch: sleeping threads wake up, if no other thread needs their cores.
void vpps_expect(Machine* m)
{
    if (m->count == 1) return;
    pthread_mutex_lock(&m->lock);
    if (!m->running && keep_off(*m)) pthread_cond_broadcast(&m->start);
    pthread_mutex_unlock(&m->lock);
}

// Begin a launch and return at once: 1, or 0 if the previous launch is still running. `helped`: vpps_wait follows at once.
int vpps_launch(Machine* m, float* pool, const Word* script, int helped)
{
    pthread_mutex_lock(&m->lock);
    if (m->running) {
        pthread_mutex_unlock(&m->lock);
        return 0;
    }
    m->launches++;
    unsigned* mine = m->counters[m->launches & 1];
    memset(m->counters[~m->launches & 1], 0, COUNTERS * COUNTER_WORDS * sizeof(unsigned));
    m->stopped = 0;
    m->running = m->count;
    m->launch = {0, m->count, pool, script, mine, m->tails, &m->stopped, m->spins, 1.f, 0, {}};
    keep_off(*m);
    m->helped = helped;
    m->begun = false;
    if (m->count > 1) pthread_cond_broadcast(&m->start);
    if (!helped) pthread_cond_signal(&m->first);
    pthread_mutex_unlock(&m->lock);
    return 1;
}

// Wait up to `milliseconds`. Returns -1: still running; 0: done; else the position + 1 of the instruction that stopped it.
long vpps_wait(Machine* m, int milliseconds)
{
    pthread_mutex_lock(&m->lock);
    help(*m);
    struct timespec until;
#if defined(__APPLE__)
    clock_gettime(CLOCK_REALTIME, &until);
#else
    clock_gettime(CLOCK_MONOTONIC, &until);
#endif
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    int late = 0;
    while (m->running && late != ETIMEDOUT) late = pthread_cond_timedwait(&m->done, &m->lock, &until);
    const long result = m->running ? -1 : (long)m->stopped;
    pthread_mutex_unlock(&m->lock);
    return result;
}

// Apply an elementary function to an array, for tests and benchmarks.
void vpps_apply(int function, const float* x, float* y, long n)
{
    switch (function) {
    case 0: VP_SIMD for (long i = 0; i < n; i++) y[i] = exp_(x[i]); break;
    case 1: VP_SIMD for (long i = 0; i < n; i++) y[i] = log_(x[i]); break;
    case 2: VP_SIMD for (long i = 0; i < n; i++) y[i] = tanh_(x[i]); break;
    case 3: VP_SIMD for (long i = 0; i < n; i++) y[i] = sigmoid_(x[i]); break;
    case 4: VP_SIMD for (long i = 0; i < n; i++) y[i] = sin_(x[i]); break;
    case 5: VP_SIMD for (long i = 0; i < n; i++) y[i] = cos_(x[i]); break;
    }
}

}  // extern "C"
#pragma GCC visibility pop
