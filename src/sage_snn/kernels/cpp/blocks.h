// Weights in blocks of output channels that fit into registers, and the sums of rows of them.
#pragma once

#include <memory>

#include "events.h"

namespace sage {

#if defined(__AVX512F__)
constexpr int BYTES = 64, MOST = 4;  // of a vector; vectors of a block: more of either would not stay in registers
#elif defined(__AVX2__)
constexpr int BYTES = 32, MOST = 8;
#else
constexpr int BYTES = 16, MOST = 8;
#endif

template <class F>
struct Vectors;
template <>
struct Vectors<float> {
    typedef float V __attribute__((vector_size(BYTES)));
};
template <>
struct Vectors<double> {
    typedef double V __attribute__((vector_size(BYTES)));
};
template <>
struct Vectors<std::int16_t> {
    typedef std::int16_t V __attribute__((vector_size(BYTES)));
};
template <class F>
using Vector = typename Vectors<F>::V;
template <class F>
constexpr int LANES = BYTES / int(sizeof(F));

template <class F>
inline Vector<F> load(const F* from) {
    Vector<F> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class F>
inline void store(F* to, Vector<F> v) {
    std::memcpy(to, &v, sizeof v);
}

// a * b + c, rounded once, as matrix products do it.
inline float fused_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fused_one(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class F>
inline Vector<F> fused(F a, Vector<F> b, Vector<F> c) {
    for (int i = 0; i < LANES<F>; ++i) c[i] = fused_one(a, F(b[i]), F(c[i]));
    return c;
}
#if defined(__AVX512F__)
template <>
inline Vector<float> fused(float a, Vector<float> b, Vector<float> c) {
    return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
}
template <>
inline Vector<double> fused(double a, Vector<double> b, Vector<double> c) {
    return _mm512_fmadd_pd(_mm512_set1_pd(a), b, c);
}
#elif defined(__AVX2__) && defined(__FMA__)
template <>
inline Vector<float> fused(float a, Vector<float> b, Vector<float> c) {
    return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
}
template <>
inline Vector<double> fused(double a, Vector<double> b, Vector<double> c) {
    return _mm256_fmadd_pd(_mm256_set1_pd(a), b, c);
}
#endif

// How the output channels are divided: `count` blocks of `vectors` vectors.
template <class F>
struct Blocks {
    Index outputs, count, vectors;
    // As few as possible, but for `tasks` of them there are to be at least so many, if there are lanes enough.
    Blocks(Index outputs_, Index tasks = 1) : outputs(outputs_) {
        const Index all = (outputs + LANES<F> - 1) / LANES<F>;
        count = std::max<Index>((all + MOST - 1) / MOST, std::min(tasks, all));
        vectors = (all + count - 1) / count;
        count = (all + vectors - 1) / vectors;
    }
    Index width() const { return vectors * LANES<F>; }
    Index first(Index block) const { return block * width(); }
    Index lanes(Index block) const { return std::min(width(), outputs - first(block)); }
};

// Where weight (o, c, tap) of a tensor (outputs, inputs, taps) lies.
struct Strides {
    Index output, input, tap;
};

// (outputs, inputs, taps) -> (blocks, taps, inputs, width), missing outputs zero; false if a weight is not finite: zeros
// in front of it would make the dense sum NaN.
template <class F>
bool pack(const F* weight, Strides at, Index inputs, Index taps, const Blocks<F>& blocks, F* to, int threads) {
    constexpr Index GROUP = 8;  // inputs whose weights stay in the cache while they are turned
    const Index groups = (inputs + GROUP - 1) / GROUP, width = blocks.width();
    bool finite = true;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(&& : finite)
    for (Index task = 0; task < blocks.count * groups; ++task) {
        const Index block = task / groups, lanes = blocks.lanes(block), from = task % groups * GROUP;
        F check = 0;
        for (Index tap = 0; tap < taps; ++tap)
            for (Index c = from; c < std::min(inputs, from + GROUP); ++c) {
                const F* w = weight + blocks.first(block) * at.output + c * at.input + tap * at.tap;
                F* row = to + ((block * taps + tap) * inputs + c) * width;
                for (Index l = 0; l < lanes; ++l) check += w[l * at.output] * F(0), row[l] = w[l * at.output];
                for (Index l = lanes; l < width; ++l) row[l] = 0;
            }
        finite = finite && check == F(0);
    }
    return finite;
}

// The way back.
template <class F>
void unpack(const F* from, Strides at, Index inputs, Index taps, const Blocks<F>& blocks, F* weight, int threads) {
    constexpr Index GROUP = 8;
    const Index groups = (inputs + GROUP - 1) / GROUP, width = blocks.width();
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index task = 0; task < blocks.count * groups; ++task) {
        const Index block = task / groups, first = task % groups * GROUP;
        for (Index tap = 0; tap < taps; ++tap)
            for (Index c = first; c < std::min(inputs, first + GROUP); ++c) {
                F* w = weight + blocks.first(block) * at.output + c * at.input + tap * at.tap;
                const F* row = from + ((block * taps + tap) * inputs + c) * width;
                for (Index l = 0; l < blocks.lanes(block); ++l) w[l * at.output] = row[l];
            }
    }
}

// One block of a row of outputs, in registers.
template <class F, int NV>
struct Row {
    Vector<F> v[NV];

    Row() {
        for (int i = 0; i < NV; ++i) v[i] = Vector<F>{};
    }
    void load(const F* from, Index lanes) {
        F whole[NV * LANES<F>] = {};
        if (lanes < NV * LANES<F>) std::memcpy(whole, from, size_t(lanes) * sizeof(F)), from = whole;
        for (int i = 0; i < NV; ++i) v[i] = sage::load(from + i * LANES<F>);
    }
    void store(F* to, Index lanes) const {
        F whole[NV * LANES<F>];
        F* at = lanes < NV * LANES<F> ? whole : to;
        for (int i = 0; i < NV; ++i) sage::store<F>(at + i * LANES<F>, v[i]);
        if (at == whole) std::memcpy(to, whole, size_t(lanes) * sizeof(F));
    }
    void add(const Row& other) {
        for (int i = 0; i < NV; ++i) v[i] += other.v[i];
    }

    // Add the rows of weights of the events from `a` to `b`, `shift` further than they say.
    template <bool Ones>
    void gather(const Events<F>& events, Index a, Index b, Index shift, const F* weights) {
        const std::uint32_t* entries = events.entries.get();
        const F* values = events.values.get();
        for (; a < b; ++a) {
            const F* row = weights + (Index(entries[a]) + shift) * (NV * LANES<F>);
            for (int i = 0; i < NV; ++i) {
                const Vector<F> w = sage::load(row + i * LANES<F>);
                v[i] = Ones ? v[i] + w : fused(values[a], w, v[i]);
            }
        }
    }
    // Add this row to the rows of those events.
    template <bool Ones>
    void scatter(const Events<F>& events, Index a, Index b, Index shift, F* sums) const {
        const std::uint32_t* entries = events.entries.get();
        const F* values = events.values.get();
        for (; a < b; ++a) {
            F* row = sums + (Index(entries[a]) + shift) * (NV * LANES<F>);
            for (int i = 0; i < NV; ++i) {
                F* at = row + i * LANES<F>;
                const Vector<F> sum = sage::load(at);
                sage::store<F>(at, Ones ? sum + v[i] : fused(values[a], v[i], sum));
            }
        }
    }
    // 0, or NaN if a value is not finite.
    F check() const {
        Vector<F> sum{};
        for (int i = 0; i < NV; ++i) sum += v[i] * F(0);
        F all = 0;
        for (int l = 0; l < LANES<F>; ++l) all += sum[l];
        return all;
    }
};

// call(number of vectors as a constant, whether all events are 1)
template <int NV = MOST, class Call>
void choose(Index vectors, bool ones, Call&& call) {
    if constexpr (NV > 1) {
        if (vectors < NV) return choose<NV - 1>(vectors, ones, call);
    }
    if (ones) call(std::integral_constant<int, NV>(), std::true_type());
    else call(std::integral_constant<int, NV>(), std::false_type());
}

}  // namespace sage
