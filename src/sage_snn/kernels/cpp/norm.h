// What batch normalisation and LIF in one need in either layout of memory.
#pragma once

#include "tile.h"

namespace sage {

constexpr Index LINE = 64;  // bytes of a cache line

// The learnt half of a normalisation; weight and bias may be null.
template <class F>
struct Norm {
    const F *weight, *bias;
    double eps;

    double deviation(const F* var, Index c) const { return 1 / std::sqrt(double(var[c]) + eps); }
    Affine<F> affine(const F* mean, const F* var, Index c) const {
        const double gain = (weight ? double(weight[c]) : 1.0) * deviation(var, c);
        return {mean[c], F(gain), bias ? bias[c] : F(0)};
    }
};

template <class F>
struct Gradients {
    const F *mean, *var, *spikes;
    const double* slopes;  // one per step
    F *x, *weight, *bias;
    double* slope_sums;  // (T), or null
};

template <class F>
struct Scratch {  // of one thread, grown when a tile is cut off and needs buffers
    std::vector<F> charged, in, grad, out;
};

// body(i, scratch) for i < count; which thread runs which i must not matter.
template <class F, class Body>
void spread(int threads, Index count, Body&& body) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<F> scratch;
#pragma omp for schedule(static)
        for (Index i = 0; i < count; ++i) body(i, scratch);
    }
}

}  // namespace sage
