// One step of leaky integrate-and-fire on a tile of positions, forward and backward, in units of the pure-torch twin.
//
// Every loop runs over a whole tile, whose length is a constant, so that any compiler turns it into vector code.
// Compiled without -ffast-math and with -ffp-contract=off: backward recomputes membranes and must meet the very
// spikes of the forward pass, and the twin rounds after every operation too.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sage {

using Index = std::ptrdiff_t;

constexpr int TILE = 64;  // positions handled together: four vectors of AVX-512, sixteen of NEON

enum Shape { SIGMOID = 0, ARCTAN = 1, RECTANGLE = 2, TRIANGLE = 3 };

template <class F>
struct Membrane {
    F tau, inverse_tau, threshold, reset, rest;
    bool hard, decays_input, detaches_reset, exact_inverse;
    const double* thresholds;  // one per step in place of the one, or null

    Membrane(double tau_, double threshold_, double reset_, int hard_, int decays_input_, const double* thresholds_,
             int detaches_reset_)
        : tau(F(tau_)), inverse_tau(F(1) / F(tau_)), threshold(F(threshold_)), reset(F(reset_)),
          rest(hard_ ? F(reset_) : F(0)), hard(hard_ != 0), decays_input(decays_input_ != 0),
          detaches_reset(detaches_reset_ != 0), thresholds(thresholds_) {
        int exponent;  // multiplying is the same as dividing when tau is a power of two
        exact_inverse = std::frexp(tau, &exponent) == F(0.5);
    }

    // `Plain`: there is one for all steps, which the compiler may keep in a register.
    template <bool Plain>
    F threshold_at(Index t) const {
        return Plain || !thresholds ? threshold : F(thresholds[t]);
    }
};

// What is done to a value before it charges the membrane: (x - shift) * gain + offset. (0, 1, 0) leaves every bit.
template <class F>
struct Affine {
    F shift, gain, offset;
    F operator()(int, F x) const { return (x - shift) * gain + offset; }
};

// The same with numbers of its own for every lane of a tile.
template <class F>
struct LaneAffine {
    const F *shift, *gain, *offset;
    F operator()(int j, F x) const { return (x - shift[j]) * gain[j] + offset[j]; }
};

// a * b + c; with one rounding where the processor has it. Only where forward and backward need not agree to the bit.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// exp(x) for x <= 0, within 2 units in the last place; below the smallest normal number it is 0; NaN stays NaN.
inline float exp_negative(float x) {
    const float lowest = -87.3365f;
    const float clamped = x < lowest ? lowest : x;  // false for NaN, which passes
    // Adding 1.5 * 2^23 rounds to an integer, which lands in the low bits.
    const float shifted = multiply_add(clamped, 1.44269504f, 12582912.f), n = shifted - 12582912.f;
    const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, clamped)), square = r * r;
    const float high = multiply_add(1.9875691500e-4f, r, 1.3981999507e-3f);
    const float middle = multiply_add(8.3334519073e-3f, r, 4.1665795894e-2f);
    const float low = multiply_add(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = multiply_add(multiply_add(multiply_add(high, square, middle), square, low), square, r) + 1.f;
    std::uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;  // 2^n by its bits: what stood above the integer is shifted out
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return x < lowest ? 0.f : p * scale;
}
inline double exp_negative(double x) { return std::exp(x); }

// Stand-in for d spike / d distance.
template <int S, class F>
inline F derivative(F distance, F slope) {
    if (S == SIGMOID) {  // slope * s * (1 - s), written so that nothing cancels far from the threshold
        const F e = exp_negative(-std::fabs(slope * distance));
        const F one = F(1) + e;
        return slope * e / (one * one);
    }
    if (S == RECTANGLE) return std::fabs(distance) < F(0.5) / slope ? slope : F(0);
    if (S == TRIANGLE) {
        const F height = slope - slope * slope * std::fabs(distance);
        return height < F(0) ? F(0) : height;  // false for NaN, which passes
    }
    const F z = F(1.5707963267948966) * slope * distance;
    return slope / F(2) / (F(1) + z * z);
}

// Sum of a tile's lanes, always in the same order.
template <class F>
inline double sum(const F* lanes) {
    F half[TILE / 2];
    for (int j = 0; j < TILE / 2; ++j) half[j] = lanes[j] + lanes[j + TILE / 2];
    for (int width = TILE / 4; width >= 4; width /= 2)
        for (int j = 0; j < width; ++j) half[j] += half[j + width];
    return (double(half[0]) + double(half[1])) + (double(half[2]) + double(half[3]));
}

// Sums over the first axis of (pieces, steps), always in the same order.
inline void add_up(const std::vector<double>& pieces, Index steps, double* totals) {
    for (Index t = 0; t < steps; ++t) totals[t] = 0;
    for (size_t i = 0; i < pieces.size(); ++i) totals[i % size_t(steps)] += pieces[i];
}

}  // namespace sage
