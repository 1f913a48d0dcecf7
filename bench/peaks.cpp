// Loops that reach the peaks of a core: fused multiply-adds on registers, reads of an array. The caller measures the time.
typedef float Lanes __attribute__((vector_size(LANES * 4)));

namespace {
volatile float keep;  // stores the results; otherwise the compiler would remove the loops
}

extern "C" {

// Twelve independent chains: more than latency times issue width of any core. Returns the number of floating-point
// operations; a multiply-add counts as two.
double multiply_add(long rounds)
{
    Lanes a, b;
    for (int l = 0; l < LANES; l++) {
        a[l] = 1.f + l * 1e-7f;
        b[l] = 1e-6f + keep;
    }
    // The chains start at different values; otherwise the compiler would merge them.
    Lanes s0 = a, s1 = s0 + b, s2 = s1 + b, s3 = s2 + b, s4 = s3 + b, s5 = s4 + b, s6 = s5 + b, s7 = s6 + b;
    Lanes s8 = s7 + b, s9 = s8 + b, s10 = s9 + b, s11 = s10 + b;
    for (long i = 0; i < rounds; i++) {
        s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b, s4 = s4 * a + b, s5 = s5 * a + b;
        s6 = s6 * a + b, s7 = s7 * a + b, s8 = s8 * a + b, s9 = s9 * a + b, s10 = s10 * a + b, s11 = s11 * a + b;
    }
    const Lanes total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
    keep = total[0] * 0;
    return 2.0 * 12 * LANES * rounds;
}

// Reads `vectors` of LANES floats, a multiple of eight, several times. Returns bytes.
double read(const Lanes* x, long vectors, long times)
{
    Lanes s0 = {}, s1 = {}, s2 = {}, s3 = {}, s4 = {}, s5 = {}, s6 = {}, s7 = {};
    for (long t = 0; t < times; t++) {
        for (long i = 0; i < vectors; i += 8) {
            s0 += x[i], s1 += x[i + 1], s2 += x[i + 2], s3 += x[i + 3];
            s4 += x[i + 4], s5 += x[i + 5], s6 += x[i + 6], s7 += x[i + 7];
        }
    }
    const Lanes total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    keep = total[0] * 0;
    return 4.0 * LANES * vectors * times;
}

}  // extern "C"
