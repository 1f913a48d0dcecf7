// What a machine gives: fused multiply-adds on registers, and memory of several sizes read, or read and written. Threads
// begin together and each works for a given time on data of its own; their rates add up. Time is the thread's own time on
// a core, so that what else the machine does disturbs little; it counts waiting for memory.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <vector>

typedef float Lanes __attribute__((vector_size(LANES * 4)));

namespace {

double seconds_on_core()
{
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Runs `prepare` and then, together on all threads, `work`, which does a piece and returns its amount, for so long.
// Returns the sum of the threads' amounts per second; 0 where the system gives no threads.
template <class Prepare, class Work> double rate_of(int threads, double seconds, Prepare prepare, Work work)
{
    std::atomic<int> ready{0};
    std::vector<double> rates(threads, 0.0);
    const auto run = [&](int id) {
        auto data = prepare(id);
        work(data);  // memory is there, caches are warm
        ready++;
        while (ready < threads) sched_yield();
        const double start = seconds_on_core();
        double amount = 0, passed = 0;
        while (passed < seconds) {
            amount += work(data);
            passed = seconds_on_core() - start;
        }
        rates[id] = amount / passed;
    };
    struct Other {
        const decltype(run)* of;
        int id;
        pthread_t thread;
        static void* begin(void* other)
        {
            (*((Other*)other)->of)(((Other*)other)->id);
            return nullptr;
        }
    };
    std::vector<Other> others(threads);
    int begun = 1;  // with this one
    for (; begun < threads; begun++) {
        others[begun] = {&run, begun, {}};
        if (pthread_create(&others[begun].thread, nullptr, Other::begin, &others[begun])) break;
    }
    if (begun < threads) ready += threads;  // nobody waits for those that are missing
    else run(0);
    double sum = rates[0];
    for (int id = 1; id < begun; id++) {
        pthread_join(others[id].thread, nullptr);
        sum += rates[id];
    }
    return begun < threads ? 0 : sum;
}

struct Array {
    float* p;
    size_t n;  // floats, a multiple of what a loop takes at a time
    explicit Array(size_t floats) : p(nullptr), n(floats / (8 * LANES) * (8 * LANES))
    {
        if (n < 8 * LANES) n = 8 * LANES;
        p = (float*)aligned_alloc(4096, (n * sizeof(float) + 4095) / 4096 * 4096);
        if (p)
            for (size_t i = 0; i < n; i++) p[i] = 1e-6f;
        else n = 0;
    }
    Array(Array&& other) : p(other.p), n(other.n) { other.p = nullptr, other.n = 0; }
    ~Array() { free(p); }
};

volatile float keep;  // what is computed is used: the loops stay

}  // namespace

extern "C" {

// Floating-point operations per second of independent fused multiply-adds, a multiply-add counted as two.
double vpps_peak_flops(int threads, double seconds)
{
    return rate_of(threads, seconds, [](int) { return 1e-6f; }, [](float start) {
        Lanes a, b;
        for (int l = 0; l < LANES; l++) {
            a[l] = 1.f + l * 1e-7f;
            b[l] = start;
        }
        // Twelve chains, more than latency times issue width of any core; they differ, or the compiler would make them
        // one.
        Lanes s0 = a, s1 = s0 + b, s2 = s1 + b, s3 = s2 + b, s4 = s3 + b, s5 = s4 + b, s6 = s5 + b, s7 = s6 + b;
        Lanes s8 = s7 + b, s9 = s8 + b, s10 = s9 + b, s11 = s10 + b;
        const int rounds = 20000;
        for (int i = 0; i < rounds; i++) {
            s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b, s4 = s4 * a + b, s5 = s5 * a + b;
            s6 = s6 * a + b, s7 = s7 * a + b, s8 = s8 * a + b, s9 = s9 * a + b, s10 = s10 * a + b, s11 = s11 * a + b;
        }
        const Lanes total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
        keep = total[0];
        return 2.0 * 12 * LANES * rounds;
    });
}

// Bytes per second that are read of `bytes` in all, divided among the threads.
double vpps_peak_read(int threads, double bytes, double seconds)
{
    return rate_of(threads, seconds, [=](int) { return Array((size_t)(bytes / threads / sizeof(float))); },
                   [](const Array& data) {
                       if (!data.n) return 0.0;
                       const Lanes* x = (const Lanes*)data.p;
                       const size_t n = data.n / LANES, times = 1 + (1 << 18) / data.n;
                       Lanes s0 = {}, s1 = {}, s2 = {}, s3 = {}, s4 = {}, s5 = {}, s6 = {}, s7 = {};
                       for (size_t t = 0; t < times; t++) {
                           for (size_t i = 0; i < n; i += 8) {
                               s0 += x[i], s1 += x[i + 1], s2 += x[i + 2], s3 += x[i + 3];
                               s4 += x[i + 4], s5 += x[i + 5], s6 += x[i + 6], s7 += x[i + 7];
                           }
                       }
                       const Lanes total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
                       keep = total[0];
                       return (double)(times * data.n * sizeof(float));
                   });
}

// Bytes per second of a = b + s * c over three arrays of `bytes` in all: two are read, one is written.
double vpps_peak_triad(int threads, double bytes, double seconds)
{
    struct Three { Array a, b, c; };
    const auto prepare = [=](int) {
        const size_t floats = (size_t)(bytes / threads / 3 / sizeof(float));
        return Three{Array(floats), Array(floats), Array(floats)};
    };
    return rate_of(threads, seconds, prepare, [](const Three& data) {
        if (!data.a.n || !data.b.n || !data.c.n) return 0.0;
        Lanes *a = (Lanes*)data.a.p, s;
        const Lanes *b = (const Lanes*)data.b.p, *c = (const Lanes*)data.c.p;
        for (int l = 0; l < LANES; l++) s[l] = 0.5f;
        const size_t n = data.a.n / LANES, times = 1 + (1 << 18) / data.a.n;
        for (size_t t = 0; t < times; t++) {
            for (size_t i = 0; i < n; i += 4) {
                a[i] = b[i] + s * c[i], a[i + 1] = b[i + 1] + s * c[i + 1];
                a[i + 2] = b[i + 2] + s * c[i + 2], a[i + 3] = b[i + 3] + s * c[i + 3];
            }
        }
        keep = data.a.p[0];
        return (double)(3 * times * data.a.n * sizeof(float));
    });
}

}  // extern "C"
