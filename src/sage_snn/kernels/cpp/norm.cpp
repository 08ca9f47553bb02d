// Batch normalisation alone where channels lie last in memory, x (R, C): for branches that are added before a neuron fires.
#include "rows.h"

namespace sage {
namespace {

template <class F>
Rows<F> problem(Norm<F> norm, const F* x, Index rows, Index channels, int threads) {
    const Membrane<F> asleep(1, 1, 0, 0, 0, nullptr, 0);  // nothing fires
    return Rows<F>{norm, x, nullptr, 1, rows, channels, asleep, threads};
}

template <class F>
void normalise(const Rows<F>& p, bool measures, F* mean, F* var, F* out) {
    LaneMoments found(measures ? p.parts() * p.period : 0);
    Lanes<F> lanes(p.period);
    if (measures)
        each_piece(p, p.breadth(true), [&](Band band, Index part, Scratch<F>& scratch) {
            measure(p, band, part, found, scratch);
        });
    for (Index c = 0; c < p.channels; ++c) settle(p, c, found, measures, mean, var, lanes);
    each_piece(p, p.breadth(true), [&](Band band, Index part, Scratch<F>&) {
        const LaneAffine<F> affine = lanes.of(band.first);
        rows_of(p, band, part, [&](Index at, Index width) {
            const F* __restrict x = p.x + at;
            F* __restrict y = out + at;
            for (int j = 0; j < width; ++j) y[j] = affine(j, x[j]);
        });
    });
}

// Sum of the gradient of a band in a part, and its sum with x - mean, lane by lane.
template <class F>
void add_part(const Rows<F>& p, const Gradients<F>& g, const Lanes<F>& lanes, Band band, Index part, double* sums,
              Scratch<F>& scratch) {
    const F* shift = lanes.of(band.first).shift;
    LaneSums<F> found(band.count * TILE, scratch.census);
    rows_of(p, band, part, [&](Index at, Index width) {
        found.add(0, width, g.residual + at, p.x + at, shift, 0, 1);
        if (++found.run == BRIEF) found.close(sums);
    });
    found.close(sums);
}

template <class F>
void back(const Rows<F>& p, const Gradients<F>& g, bool measured) {
    std::vector<double> sums(size_t(p.parts() * p.period * 2));
    Lanes<F> lanes(p.period);
    for (Index lane = 0; lane < p.period; ++lane) lanes.set(lane, p.norm.affine(g.mean, g.var, lane % p.channels));
    each_piece(p, p.breadth(true), [&](Band band, Index part, Scratch<F>& scratch) {
        add_part(p, g, lanes, band, part, &sums[size_t((part * p.period + band.first * TILE) * 2)], scratch);
    });
    for (Index c = 0; c < p.channels; ++c) settle_back(p, c, sums, g, lanes);
    each_piece(p, p.breadth(true),
               [&](Band band, Index part, Scratch<F>&) { back_norm(p, g, lanes, band, part, measured); });
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// Training measures mean and var (biased) and writes them; otherwise they are read. weight and bias may be null. The
// gradient of the normalised values is that of a residual, and stays as it is.
#define SAGE_NORM(F, SUFFIX)                                                                                          \
    SAGE_EXPORT void sage_norm_##SUFFIX(const F* x, const F* weight, const F* bias, F* mean, F* var, F* out,          \
                                        std::int64_t rows, std::int64_t channels, double eps, int training,           \
                                        int threads) {                                                                \
        sage::normalise(sage::problem<F>({weight, bias, eps}, x, rows, channels, threads), training != 0, mean, var,  \
                        out);                                                                                         \
    }                                                                                                                 \
    SAGE_EXPORT void sage_norm_backward_##SUFFIX(                                                                     \
        const F* x, const F* weight, const F* mean, const F* var, F* grad, F* grad_x, F* grad_weight,                 \
        F* grad_bias, std::int64_t rows, std::int64_t channels, double eps, int training, int threads) {              \
        const sage::Gradients<F> g{mean, var, nullptr, nullptr, grad_x, grad_weight, grad_bias, grad};                \
        sage::back(sage::problem<F>({weight, nullptr, eps}, x, rows, channels, threads), g, training != 0);           \
    }

SAGE_NORM(float, f32)
SAGE_NORM(double, f64)
