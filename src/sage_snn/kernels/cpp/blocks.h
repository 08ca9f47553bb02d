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

// Weights of a group of inputs and some lanes are turned in a tile: what lies far apart, often in the same few sets of the
// cache, is then read and written once, a line at a time.
template <class F>
constexpr Index GROUP = 64 / Index(sizeof(F));  // inputs whose weights fill a line of the cache
constexpr Index TURNED = 16;                    // lanes

// visit(lane, input) for a tile of so many; whole ones have constant sizes, for vector code.
template <class F, class Visit>
inline void turn(Index lanes, Index inputs, Visit&& visit) {
    if (lanes == TURNED && inputs == GROUP<F>) {
        for (Index l = 0; l < TURNED; ++l)
            for (Index c = 0; c < GROUP<F>; ++c) visit(l, c);
        return;
    }
    for (Index l = 0; l < lanes; ++l)
        for (Index c = 0; c < inputs; ++c) visit(l, c);
}

// body(tap, input, lane, inputs, lanes) for the tiles of a block and of its group of inputs.
template <class F, class Body>
void tiles_of(Index group, Index inputs, Index taps, Index lanes, Body&& body) {
    const Index from = group * GROUP<F>, count = std::min(GROUP<F>, inputs - from);
    for (Index tap = 0; tap < taps; ++tap)
        for (Index lane = 0; lane < lanes; lane += TURNED) body(tap, from, lane, count, std::min(TURNED, lanes - lane));
}

// (outputs, inputs, taps) -> (blocks, taps, inputs, width), missing outputs zero; false if a weight is not finite: zeros
// in front of it would make the dense sum NaN.
template <class F>
bool pack(const F* weight, Strides at, Index inputs, Index taps, const Blocks<F>& blocks, F* to, int threads) {
    const Index groups = (inputs + GROUP<F> - 1) / GROUP<F>, width = blocks.width();
    bool finite = true;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(&& : finite)
    for (Index task = 0; task < blocks.count * groups; ++task) {
        const Index block = task / groups, lanes = blocks.lanes(block);
        F checks[GROUP<F>] = {};
        tiles_of<F>(task % groups, inputs, taps, lanes, [&](Index tap, Index input, Index lane, Index ins, Index outs) {
            const F* from = weight + (blocks.first(block) + lane) * at.output + input * at.input + tap * at.tap;
            F* rows = to + ((block * taps + tap) * inputs + input) * width + lane;
            F tile[TURNED][GROUP<F>];
            if (at.input == 1) turn<F>(outs, ins, [&](Index l, Index c) { tile[l][c] = from[l * at.output + c]; });
            else turn<F>(outs, ins, [&](Index l, Index c) { tile[l][c] = from[l * at.output + c * at.input]; });
            turn<F>(outs, ins, [&](Index l, Index c) { checks[c] += tile[l][c] * F(0); });
            turn<F>(outs, ins, [&](Index l, Index c) { rows[c * width + l] = tile[l][c]; });
            if (lane + outs == lanes)
                for (Index c = 0; c < ins; ++c) std::fill(rows + c * width + outs, rows + (c + 1) * width - lane, F(0));
        });
        for (Index c = 0; c < GROUP<F>; ++c) finite = finite && checks[c] == F(0);
    }
    return finite;
}

// The way back.
template <class F>
void unpack(const F* from, Strides at, Index inputs, Index taps, const Blocks<F>& blocks, F* weight, int threads) {
    const Index groups = (inputs + GROUP<F> - 1) / GROUP<F>, width = blocks.width();
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index task = 0; task < blocks.count * groups; ++task) {
        const Index block = task / groups, lanes = blocks.lanes(block);
        tiles_of<F>(task % groups, inputs, taps, lanes, [&](Index tap, Index input, Index lane, Index ins, Index outs) {
            F* to = weight + (blocks.first(block) + lane) * at.output + input * at.input + tap * at.tap;
            const F* rows = from + ((block * taps + tap) * inputs + input) * width + lane;
            F tile[TURNED][GROUP<F>];
            turn<F>(outs, ins, [&](Index l, Index c) { tile[l][c] = rows[c * width + l]; });
            if (at.input == 1) turn<F>(outs, ins, [&](Index l, Index c) { to[l * at.output + c] = tile[l][c]; });
            else turn<F>(outs, ins, [&](Index l, Index c) { to[l * at.output + c * at.input] = tile[l][c]; });
        });
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
