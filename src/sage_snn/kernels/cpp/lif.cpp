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
    if (step) copy(v, from + span.first, span.count);
    else std::fill(v, v + span.count, *from);
    std::fill(v + span.count, v + TILE, F(0));
}

template <class F>
struct Problem {
    const F *currents, *start;
    Index start_step, steps, size;
    Membrane<F> membrane;
    int threads;

    Index tiles() const { return (size + TILE - 1) / TILE; }
};

template <class F>
void fire(const Problem<F>& p, const Tiles<F>& functions, Index tile, F* spikes, F* last, Census<F>& census) {
    const Affine<F> identity{F(0), F(1), F(0)};
    const Span span(tile, p.size);
    std::vector<F> in, out;
    F v[TILE];
    load_membrane(v, p.start, p.start_step, span);
    const F* x = rows(p.currents, p.size, p.steps, span, in);
    if (span.cut()) out.resize(size_t(p.steps * TILE));
    const Index stride = span.cut() ? TILE : p.size;
    F* to = span.cut() ? out.data() : spikes + span.first;
    census.begin(span.count);
    functions.fire(p.membrane, identity, x, stride, p.steps, v, to, stride, &census);
    census.end(span.count);
    for (Index t = 0; span.cut() && t < p.steps; ++t)
        copy(spikes + t * p.size + span.first, to + t * TILE, span.count);
    copy(last + span.first, v, span.count);
}

// `moments` (T, 4), or null, gets those of the membranes.
template <class F>
void forward(const Problem<F>& p, F* spikes, F* last, double near, double* moments) {
    const Tiles<F> functions(p.membrane, moments == nullptr);
    const Index pieces = (p.tiles() + BRIEF - 1) / BRIEF;
    PieceSums found(pieces, p.steps * 3, moments);
#pragma omp parallel for num_threads(p.threads) if (p.threads > 1) schedule(static)
    for (Index piece = 0; piece < pieces; ++piece) {
        std::vector<F> sums;
        Census<F> census(near, p.steps, found.of(piece), sums);
        for (Index tile = piece * BRIEF; tile < std::min(p.tiles(), (piece + 1) * BRIEF); ++tile)
            fire(p, functions, tile, spikes, last, census);
        census.close(TILE);
    }
    if (moments) report(found.found, p.steps, p.size, moments);
}

template <class F>
struct Gradients {
    const F *spikes, *last;  // of the outputs; either may be null
    const double* slopes;    // one per step
    NeuronSlopes<F> own_slopes;
    F *currents, *start;
    BackSums sums;
};

template <class F>
struct Buffers {  // of one thread
    std::vector<F> charged, in, out, slopes;
};

template <class F>
void back(const Problem<F>& p, const Tiles<F>& functions, const Gradients<F>& g, Index tile, const BackSums& sums,
          Buffers<F>& buffers) {
    const Affine<F> identity{F(0), F(1), F(0)};
    const Span span(tile, p.size);
    const Index stride = span.cut() ? TILE : p.size;
    F start[TILE], v[TILE], grad_v[TILE] = {};
    load_membrane(start, p.start, p.start_step, span);
    copy(v, start, TILE);
    buffers.charged.resize(size_t(p.steps * TILE));
    F* charged = buffers.charged.data();
    const F* x = rows(p.currents, p.size, p.steps, span, buffers.in);
    functions.charge(p.membrane, identity, x, stride, p.steps, v, charged);
    if (g.last) copy(grad_v, g.last + span.first, span.count);
    if (span.cut()) buffers.out.resize(size_t(p.steps * TILE));
    F* to = span.cut() ? buffers.out.data() : g.currents + span.first;
    const F* grad = rows(g.spikes, p.size, p.steps, span, buffers.in);
    const TileSlopes<F> slopes = g.own_slopes.of_tile(
        g.slopes, p.steps, buffers.slopes, [&](auto gather) { gather(span.first, span.count, 0); });
    functions.back(p.membrane, charged, grad, stride, slopes, p.steps, grad_v, to, stride, sums,
                   start);
    if (sums.squares) {
        Squares<F> squares(sums.squares);
        squares.add(grad, to, stride, p.steps);
        squares.close();
    }
    for (Index t = 0; span.cut() && t < p.steps; ++t)
        copy(g.currents + t * p.size + span.first, to + t * TILE, span.count);
    copy(g.start + span.first, grad_v, span.count);
}

template <class F>
void backward(const Problem<F>& p, const Gradients<F>& g, int shape) {
    const Tiles<F> functions(p.membrane, is_plain(g), shape);
    BackPieces pieces(p.tiles(), p.steps, g.sums);
#pragma omp parallel num_threads(p.threads) if (p.threads > 1)
    {
        Buffers<F> buffers;
#pragma omp for schedule(static)
        for (Index tile = 0; tile < p.tiles(); ++tile) back(p, functions, g, tile, pieces.of(tile), buffers);
    }
    pieces.finish();
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// `start_step` is 1 for a membrane per position and 0 for one value that all start from. thresholds: one per step in
// place of the one, or null. moments: (T, 4), or null. own_slopes: a slope per neuron in place of those of the steps,
// with the sizes and strides that NeuronSlopes takes, or null. The sums are those of BackSums.
#define SAGE_LIF(F, SUFFIX)                                                                                           \
    SAGE_EXPORT void sage_lif_##SUFFIX(                                                                               \
        const F* currents, const F* start, std::int64_t start_step, F* spikes, F* last, std::int64_t steps,           \
        std::int64_t size, double tau, double threshold, double reset, int hard, int decays_input,                    \
        const double* thresholds, double near, double* moments, int threads) {                                        \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, thresholds, 0);                          \
        sage::forward<F>({currents, start, start_step, steps, size, m, threads}, spikes, last, near, moments);        \
    }                                                                                                                 \
    SAGE_EXPORT void sage_lif_backward_##SUFFIX(                                                                      \
        const F* currents, const F* start, std::int64_t start_step, const F* grad_spikes, const F* grad_last,         \
        const double* slopes, const F* own_slopes, const std::int64_t* layout, F* grad_currents, F* grad_start,       \
        double* slope_sums, double* constant_sums, double* squares, std::int64_t steps, std::int64_t size,            \
        double tau, double threshold, double reset, int hard, int decays_input, const double* thresholds,             \
        int detaches_reset, int shape, int threads) {                                                                 \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, thresholds, detaches_reset);             \
        const sage::Gradients<F> g{grad_spikes,   grad_last,  slopes, {own_slopes, layout},                           \
                                   grad_currents, grad_start, {slope_sums, constant_sums, squares}};                  \
        sage::backward<F>({currents, start, start_step, steps, size, m, threads}, g, shape);                          \
    }

SAGE_LIF(float, f32)
SAGE_LIF(double, f64)

// For the tests: the exponential that the sigmoid uses.
SAGE_EXPORT void sage_exp_negative(const float* x, float* out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = sage::exp_negative(x[i]);
}
