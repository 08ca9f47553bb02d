// Batch normalisation alone where channels lie last in memory, x (R, C): for branches that are added before a neuron fires.
#include "norm_rows.h"

namespace sage {
namespace {

template <class F>
Rows<F> rows_of(Norm<F> norm, const F* x, Index rows, Index channels, int threads) {
    const Membrane<F> asleep(1, 1, 0, 0, 0, nullptr, 0);  // nothing fires
    return Rows<F>{norm, x, nullptr, 1, rows, channels, asleep, threads};
}

template <class F>
void normalise(const Rows<F>& p, bool measures, F* mean, F* var, F* out) {
    const Index columns = p.columns(), parts = p.parts();
    std::vector<Moments> found(measures ? size_t(parts * p.period) : 0);
    Lanes<F> lanes(p.period);
    if (measures)
        spread<F>(p.threads, columns * parts, [&](Index i, Scratch<F>&) {
            measure(p, i % columns, i / columns, &found[size_t(i / columns * p.period + i % columns * TILE)]);
        });
    for (Index c = 0; c < p.channels; ++c) settle(p, c, found, measures, mean, var, lanes);
    spread<F>(p.threads, columns * parts, [&](Index i, Scratch<F>&) {
        const LaneAffine<F> affine = lanes.of(i % columns);
        tiles_of(p, i % columns, i / columns, [&](Index at, Index count) {
            const F* __restrict x = p.x + at;
            F* __restrict y = out + at;
            for (int j = 0; j < count; ++j) y[j] = affine(j, x[j]);
        });
    });
}

// Sum of the gradient of a column in a part, and its sum with x - mean, lane by lane.
template <class F>
void add_part(const Rows<F>& p, const Gradients<F>& g, const Lanes<F>& lanes, Index column, Index part, double* sums) {
    const F* shift = lanes.of(column).shift;
    F plain[TILE] = {}, with_x[TILE] = {};
    Index run = 0;
    const auto close = [&] {
        for (int j = 0; j < TILE; ++j) {
            sums[2 * j] += plain[j], sums[2 * j + 1] += with_x[j];
            plain[j] = with_x[j] = F(0);
        }
        run = 0;
    };
    tiles_of(p, column, part, [&](Index at, Index count) {
        const F* __restrict x = p.x + at;
        const F* __restrict grad = g.residual + at;
        for (int j = 0; j < count; ++j) plain[j] += grad[j], with_x[j] += grad[j] * (x[j] - shift[j]);
        if (++run == BRIEF) close();
    });
    close();
}

template <class F>
void back(const Rows<F>& p, const Gradients<F>& g, bool measured) {
    const Index columns = p.columns(), parts = p.parts();
    std::vector<double> sums(size_t(parts * p.period * 2));
    Lanes<F> lanes(p.period);
    for (Index lane = 0; lane < p.period; ++lane) lanes.set(lane, p.norm.affine(g.mean, g.var, lane % p.channels));
    spread<F>(p.threads, columns * parts, [&](Index i, Scratch<F>&) {
        const Index column = i % columns, part = i / columns;
        add_part(p, g, lanes, column, part, &sums[size_t((part * p.period + column * TILE) * 2)]);
    });
    for (Index c = 0; c < p.channels; ++c) settle_back(p, c, sums, g, lanes);
    spread<F>(p.threads, columns * parts,
              [&](Index i, Scratch<F>&) { back_norm(p, g, lanes, i % columns, i / columns, measured); });
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
        sage::normalise(sage::rows_of<F>({weight, bias, eps}, x, rows, channels, threads), training != 0, mean, var,  \
                        out);                                                                                         \
    }                                                                                                                 \
    SAGE_EXPORT void sage_norm_backward_##SUFFIX(                                                                     \
        const F* x, const F* weight, const F* mean, const F* var, F* grad, F* grad_x, F* grad_weight,                 \
        F* grad_bias, std::int64_t rows, std::int64_t channels, double eps, int training, int threads) {              \
        const sage::Gradients<F> g{mean, var, nullptr, nullptr, grad_x, grad_weight, grad_bias, grad};                \
        sage::back(sage::rows_of<F>({weight, nullptr, eps}, x, rows, channels, threads), g, training != 0);           \
    }

SAGE_NORM(float, f32)
SAGE_NORM(double, f64)
