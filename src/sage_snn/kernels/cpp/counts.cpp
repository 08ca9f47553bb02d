// Inference in whole numbers: firing from rest into bytes or reals, pooling of bytes, reals that are counts as bytes.
#include <algorithm>

#include "tile.h"

namespace sage {
namespace {

constexpr Index PIECE = 64;  // tiles that one thread takes at a time

// Currents of all steps, `step` apart (0: the same for all), positions `size` in number; spikes (T, size) as S.
template <class F>
struct Currents {
    const F* values;
    Index step, steps, size;
};

// `Count` positions from `first` on: a constant for whole tiles, so that their loop becomes vector code.
template <class O, class F, class S, Index Count>
void fire_span(const Membrane<F>& membrane, const Currents<F>& x, Index first, Index cut, S* spikes) {
    const Membrane<F> m = membrane;  // a copy that no store can reach
    const Index count = Count ? Count : cut;
    F v[TILE];
    std::fill(v, v + TILE, m.rest);
    for (Index t = 0; t < x.steps; ++t) {
        const F threshold = m.template threshold_at<false>(t);
        const F* __restrict in = x.values + t * x.step + first;
        S* __restrict out = spikes + t * x.size + first;
        for (Index j = 0; j < count; ++j) {
            const F h = charge<O>(m, in[j], v[j]);
            out[j] = h >= threshold ? S(1) : S(0);
            v[j] = after<O>(m, threshold, h);
        }
    }
}

template <class O, class F, class S>
void fire(const Membrane<F>& m, const Currents<F>& x, S* spikes, int threads) {
    const Index pieces = (x.size + PIECE * TILE - 1) / (PIECE * TILE);
#pragma omp parallel for num_threads(threads) if (threads > 1 && pieces > 1) schedule(static)
    for (Index piece = 0; piece < pieces; ++piece) {
        const Index end = std::min(x.size, (piece + 1) * PIECE * TILE);
        Index first = piece * PIECE * TILE;
        for (; first + TILE <= end; first += TILE) fire_span<O, F, S, TILE>(m, x, first, TILE, spikes);
        if (first < end) fire_span<O, F, S, 0>(m, x, first, end - first, spikes);
    }
}

template <bool Decays, bool Exact, class F, class S>
void choose_reset(const Membrane<F>& m, const Currents<F>& x, S* spikes, int threads) {
    if (m.hard) fire<Options<Decays, Exact, true>>(m, x, spikes, threads);
    else fire<Options<Decays, Exact, false>>(m, x, spikes, threads);
}

template <class F, class S>
void choose(const Membrane<F>& m, const Currents<F>& x, S* spikes, int threads) {
    if (m.decays_input)
        m.exact_inverse ? choose_reset<true, true>(m, x, spikes, threads)
                        : choose_reset<true, false>(m, x, spikes, threads);
    else
        m.exact_inverse ? choose_reset<false, true>(m, x, spikes, threads)
                        : choose_reset<false, false>(m, x, spikes, threads);
}

// Largest of 3 x 3 bytes, two apart, one beyond the border: x (N, H, W, C) -> (N, (H + 1) / 2, (W + 1) / 2, C).
void pool(const std::uint8_t* x, Index images, Index height, Index width, Index channels, std::uint8_t* out,
          int threads) {
    const Index rows = (height + 1) / 2, columns = (width + 1) / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index line = 0; line < images * rows; ++line) {
        const Index n = line / rows, i = line % rows;
        for (Index j = 0; j < columns; ++j) {
            std::uint8_t* __restrict best = out + (line * columns + j) * channels;
            std::fill(best, best + channels, std::uint8_t(0));
            for (Index h = std::max<Index>(0, 2 * i - 1); h < std::min(height, 2 * i + 2); ++h)
                for (Index w = std::max<Index>(0, 2 * j - 1); w < std::min(width, 2 * j + 2); ++w) {
                    const std::uint8_t* __restrict value = x + ((n * height + h) * width + w) * channels;
                    for (Index c = 0; c < channels; ++c) best[c] = std::max(best[c], value[c]);
                }
        }
    }
}

// Bytes of `count` whole numbers from 0 to `most`; not 0 if another number is among them.
template <class F>
int count_span(const F* __restrict x, Index count, F most, std::uint8_t* __restrict out) {
    int others = 0;
    for (Index i = 0; i < count; ++i) {
        const F within = x[i] >= F(0) && x[i] <= most ? x[i] : F(0);  // 0 for NaN, too
        const auto whole = std::int32_t(within);
        others |= F(whole) != x[i];
        out[i] = std::uint8_t(whole);
    }
    return others;
}

template <class F>
int count(const F* x, Index size, F most, std::uint8_t* out, int threads) {
    constexpr Index length = PIECE * TILE;
    const Index pieces = (size + length - 1) / length;
    int others = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1 && pieces > 1) schedule(static) reduction(| : others)
    for (Index piece = 0; piece < pieces; ++piece) {
        const Index first = piece * length;
        others |= count_span(x + first, std::min(length, size - first), most, out + first);
    }
    return others;
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

#define SAGE_COUNTS(F, SUFFIX)                                                                                        \
    SAGE_EXPORT void sage_fire_##SUFFIX(                                                                              \
        const F* currents, std::int64_t step, void* spikes, int as_bytes, std::int64_t steps, std::int64_t size,      \
        double tau, double threshold, double reset, int hard, int decays_input, const double* thresholds,             \
        int threads) {                                                                                                \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, thresholds, 0);                          \
        const sage::Currents<F> x{currents, step, steps, size};                                                       \
        if (as_bytes) sage::choose(m, x, static_cast<std::uint8_t*>(spikes), threads);                                \
        else sage::choose(m, x, static_cast<F*>(spikes), threads);                                                    \
    }                                                                                                                 \
    SAGE_EXPORT int sage_count_##SUFFIX(const F* x, std::int64_t size, int most, std::uint8_t* out, int threads) {    \
        return sage::count<F>(x, size, F(most), out, threads);                                                        \
    }

SAGE_COUNTS(float, f32)
SAGE_COUNTS(double, f64)

SAGE_EXPORT void sage_pool_counts(const std::uint8_t* x, std::int64_t images, std::int64_t height, std::int64_t width,
                                  std::int64_t channels, std::uint8_t* out, int threads) {
    sage::pool(x, images, height, width, channels, out, threads);
}
