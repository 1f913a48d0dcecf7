#pragma once
#include "prelude.h"
// ---- vector registers, host
typedef float Lanes __attribute__((vector_size(VP_LANES * 4)));
enum { REGISTERS = VP_PANEL / VP_LANES };  // vector registers that a panel's rows fill
enum { LINE = 16 };                         // floats per cache line

// a * b + c, fused like fma_, for a vector register. The compiler also vectorises loops over lanes, but it may keep their
// sums in memory. Values of this type stay in registers.
VP_DEVICE Lanes fma_lanes(Lanes a, Lanes b, Lanes c)
{
#if defined(__AVX512F__) && VP_LANES == 16 && !defined(__clang__)
    return (Lanes)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif defined(__FMA__) && VP_LANES == 8 && !defined(__clang__)
    return (Lanes)__builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__clang__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
    return __builtin_elementwise_fma(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    for (int l = 0; l < VP_LANES; l++) c[l] = fma_(a[l], b[l], c[l]);
    return c;
#else
    return a * b + c;
#endif
}

VP_DEVICE Lanes all_lanes(float x) { return x - Lanes{}; }  // broadcast; subtracting 0 keeps the bits of every value

VP_DEVICE Lanes lanes_at(const float* p)
{
    Lanes x;
    memcpy(&x, p, sizeof x);
    return x;
}
VP_DEVICE void put_lanes(float* p, Lanes x) { memcpy(p, &x, sizeof x); }

// Loads lanes that several products share. Otherwise the compiler may reload them, and loads would limit the speed.
VP_DEVICE Lanes kept_lanes_at(const float* p)
{
    Lanes x = lanes_at(p);
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}

// ---- transposition of squares of VP_LANES x VP_LANES floats
#if defined(__clang__)
#define VP_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int LaneNumbers __attribute__((vector_size(VP_LANES * 4)));
#define VP_PICK(a, b, ...) __builtin_shuffle(a, b, LaneNumbers{__VA_ARGS__})
#endif

// From every SPAN lanes of a followed by b, picks the units of UNIT lanes with an even (or odd) index.
template <int UNIT, int SPAN, int ODD, size_t... LANE> VP_DEVICE Lanes every_other(Lanes a, Lanes b, std::index_sequence<LANE...>)
{
    constexpr auto from = [](int lane) {
        const int at = (lane % SPAN / UNIT * 2 + ODD) * UNIT;
        return lane / SPAN * SPAN + at % SPAN + at / SPAN * VP_LANES + lane % UNIT;
    };
    return VP_PICK(a, b, from(LANE)...);
}

// Deinterleaves rows that are UNIT apart: even units of lanes go to the first half. Two rounds transpose squares of 4 units.
template <int UNIT, int SPAN> VP_DEVICE void part_units(Lanes (&a)[VP_LANES])
{
    const std::make_index_sequence<VP_LANES> lanes;
    Lanes b[VP_LANES];
    VP_UNROLL for (int r = 0; r < VP_LANES; r++) {
        const int t = r % SPAN / UNIT, to = r - t * UNIT + t / 2 * UNIT;
        if (t % 2) continue;
        b[to] = every_other<UNIT, SPAN, 0>(a[r], a[r + UNIT], lanes);
        b[to + SPAN / 2] = every_other<UNIT, SPAN, 1>(a[r], a[r + UNIT], lanes);
    }
    VP_UNROLL for (int r = 0; r < VP_LANES; r++) a[r] = b[r];
}

// to[c][r] = from[r][c]; to_row and from_row are row strides in floats. All shuffles stay within 4 lanes or move 4 lanes,
// because other shuffles are slower.
VP_DEVICE void transpose_square(float* to, size_t to_row, const float* from, size_t from_row)
{
    Lanes a[VP_LANES];
    VP_UNROLL for (int r = 0; r < VP_LANES; r++) a[r] = lanes_at(from + r * from_row);
    part_units<1, 4>(a);
    part_units<1, 4>(a);
    if constexpr (VP_LANES >= 8) part_units<4, VP_LANES>(a);
    if constexpr (VP_LANES == 16) part_units<4, VP_LANES>(a);
    VP_UNROLL for (int r = 0; r < VP_LANES; r++) put_lanes(to + r * to_row, a[r]);
}
