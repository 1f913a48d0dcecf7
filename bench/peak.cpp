// The most that one core multiplies and adds: independent fused multiply-adds on registers, nothing else.
#include <ctime>

typedef float Lanes __attribute__((vector_size(LANES * 4)));

extern "C" double peak_gflops()
{
    double best = 0;
    Lanes a, b;
    for (int l = 0; l < LANES; l++) {
        a[l] = 1.f + l * 1e-7f;
        b[l] = 1e-6f;
    }
    for (int attempt = 0; attempt < 20; attempt++) {
        // Twelve chains, more than latency times issue width of any core; they differ, or the compiler would make them one.
        Lanes s0 = a, s1 = s0 + b, s2 = s1 + b, s3 = s2 + b, s4 = s3 + b, s5 = s4 + b, s6 = s5 + b, s7 = s6 + b;
        Lanes s8 = s7 + b, s9 = s8 + b, s10 = s9 + b, s11 = s10 + b;
        const int rounds = 200000;
        timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int i = 0; i < rounds; i++) {
            s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b, s4 = s4 * a + b, s5 = s5 * a + b;
            s6 = s6 * a + b, s7 = s7 * a + b, s8 = s8 * a + b, s9 = s9 * a + b, s10 = s10 * a + b, s11 = s11 * a + b;
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        const Lanes total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
        volatile float keep = total[0];  // the sums are used: the loop stays
        (void)keep;
        const double seconds = (to.tv_sec - from.tv_sec) + 1e-9 * (to.tv_nsec - from.tv_nsec);
        const double rate = 2.0 * 12 * LANES * rounds / seconds / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}
