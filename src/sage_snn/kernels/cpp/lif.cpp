// Leaky integrate-and-fire over T steps from a given membrane: currents (T, M), membrane (M) or one value for all.
#include "tile.h"

namespace sage {
namespace {

// Where a tile of M positions begins and how many it holds: the last one may be cut off.
struct Span {
    Index first, count;
    Span(Index tile, Index size) : first(tile * TILE), count(size - first < TILE ? size - first : TILE) {}
    bool cut() const { return count < TILE; }
};

template <class F>
void copy(F* to, const F* from, Index count) {
    std::memcpy(to, from, size_t(count) * sizeof(F));
}

// A cut tile is worked on in a buffer of zeros, so that the arithmetic is that of a whole one.
template <class F>
const F* rows(const F* from, Index size, Index steps, Span span, std::vector<F>& buffer) {
    if (!span.cut() || !from) return from ? from + span.first : from;
    buffer.assign(size_t(steps * TILE), F(0));
    for (Index t = 0; t < steps; ++t) copy(buffer.data() + t * TILE, from + t * size + span.first, span.count);
    return buffer.data();
}

template <class F>
void load_membrane(F* v, const F* from, Index step, Span span) {
    for (Index j = 0; j < TILE; ++j) v[j] = j < span.count ? from[step * (span.first + j)] : F(0);
}

template <class F>
void forward(const F* currents, const F* start, Index start_step, F* spikes, F* last, Index steps, Index size,
             const Membrane<F>& m, int threads) {
    const Tiles<F> tiles(m, SIGMOID);
    const Affine<F> identity{F(0), F(1), F(0)};
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index tile = 0; tile < (size + TILE - 1) / TILE; ++tile) {
        const Span span(tile, size);
        std::vector<F> in, out;
        F v[TILE];
        load_membrane(v, start, start_step, span);
        const F* x = rows(currents, size, steps, span, in);
        if (span.cut()) out.resize(size_t(steps * TILE));
        const Index stride = span.cut() ? TILE : size;
        F* to = span.cut() ? out.data() : spikes + span.first;
        tiles.fire(m, identity, x, stride, steps, v, to, stride);
        for (Index t = 0; span.cut() && t < steps; ++t)
            copy(spikes + t * size + span.first, to + t * TILE, span.count);
        copy(last + span.first, v, span.count);
    }
}

template <class F>
struct Gradients {
    const F *spikes, *last;  // of the outputs; either may be null
    const double* slopes;    // one per step
    F *currents, *start;
    double* slope_sums;  // (T), or null
};

template <class F>
void backward(const F* currents, const F* start, Index start_step, const Gradients<F>& g, Index steps, Index size,
              const Membrane<F>& m, int shape, int threads) {
    const Tiles<F> tiles(m, shape);
    const Affine<F> identity{F(0), F(1), F(0)};
    const Index count = (size + TILE - 1) / TILE;
    std::vector<double> slope_sums(g.slope_sums ? size_t(count * steps) : 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<F> charged(size_t(steps * TILE)), in, out;
#pragma omp for schedule(static)
        for (Index tile = 0; tile < count; ++tile) {
            const Span span(tile, size);
            const Index stride = span.cut() ? TILE : size;
            F v[TILE], grad_v[TILE] = {};
            load_membrane(v, start, start_step, span);
            tiles.charge(m, identity, rows(currents, size, steps, span, in), stride, steps, v, charged.data());
            if (g.last) copy(grad_v, g.last + span.first, span.count);
            if (span.cut()) out.resize(size_t(steps * TILE));
            F* to = span.cut() ? out.data() : g.currents + span.first;
            tiles.back(m, charged.data(), rows(g.spikes, size, steps, span, in), stride, g.slopes, steps, grad_v, to,
                       stride, g.slope_sums ? &slope_sums[size_t(tile * steps)] : nullptr);
            for (Index t = 0; span.cut() && t < steps; ++t)
                copy(g.currents + t * size + span.first, to + t * TILE, span.count);
            copy(g.start + span.first, grad_v, span.count);
        }
    }
    if (g.slope_sums) add_up(slope_sums, steps, g.slope_sums);
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// `start_step` is 1 for a membrane per position and 0 for one value that all start from.
#define SAGE_LIF(F, SUFFIX)                                                                                           \
    SAGE_EXPORT void sage_lif_##SUFFIX(const F* currents, const F* start, std::int64_t start_step, F* spikes,         \
                                       F* last, std::int64_t steps, std::int64_t size, double tau, double threshold,  \
                                       double reset, int hard, int decays_input, int threads) {                       \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, 0);                                      \
        sage::forward<F>(currents, start, start_step, spikes, last, steps, size, m, threads);                         \
    }                                                                                                                 \
    SAGE_EXPORT void sage_lif_backward_##SUFFIX(                                                                      \
        const F* currents, const F* start, std::int64_t start_step, const F* grad_spikes, const F* grad_last,         \
        const double* slopes, F* grad_currents, F* grad_start, double* slope_sums, std::int64_t steps,                \
        std::int64_t size, double tau, double threshold, double reset, int hard, int decays_input,                    \
        int detaches_reset, int shape, int threads) {                                                                 \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, detaches_reset);                         \
        const sage::Gradients<F> g{grad_spikes, grad_last, slopes, grad_currents, grad_start, slope_sums};            \
        sage::backward<F>(currents, start, start_step, g, steps, size, m, shape, threads);                            \
    }

SAGE_LIF(float, f32)
SAGE_LIF(double, f64)

// For the tests: the exponential that the sigmoid uses.
SAGE_EXPORT void sage_exp_negative(const float* x, float* out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = sage::exp_negative(x[i]);
}
