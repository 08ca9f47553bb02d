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
    F* residual;  // null: none was added
    NeuronSlopes<F> own_slopes = {};  // in place of those of the steps
    BackSums sums = {};

    // The gradient of the normalised values: the residual's, or, with none, kept where that of x will be.
    F* normal() const { return residual ? residual : x; }
};

template <class F>
struct Scratch {  // of one thread, grown when a tile is cut off and needs buffers
    std::vector<F> charged, in, grad, out, residual, sum, slopes, census;
};

// Room for `count` values from the beginning of a cache line on: vectors that cross two lines cost twice.
template <class F>
F* on_lines(std::vector<F>& buffer, Index count) {
    buffer.resize(size_t(count + LINE / Index(sizeof(F))));
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    return buffer.data() + (LINE - Index(address % LINE)) % LINE / Index(sizeof(F));
}

// What is asked of the membranes in the forward pass.
struct Asked {
    double near;
    double* moments;  // (T, 4), or null: nobody asks
};

// What charges the membranes of a tile: rows of values, `stride` apart, and what is still to be done to each.
template <class F, class A>
struct Currents {
    A affine;
    const F* rows;
    Index stride;
};

// Normalised values and the residual, added up in `sum` (T, TILE), to which nothing is to be done.
template <class F, class A>
Currents<F, A> with_residual(const Currents<F, A>& x, const F* residual, A unchanged, Index steps,
                             std::vector<F>& sum) {
    sum.resize(size_t(steps * TILE));
    for (Index t = 0; t < steps; ++t) {
        const F* __restrict in = x.rows + t * x.stride;
        const F* __restrict more = residual + t * x.stride;
        F* __restrict out = sum.data() + t * TILE;
        for (int j = 0; j < TILE; ++j) out[j] = x.affine(j, in[j]) + more[j];
    }
    return {unchanged, sum.data(), TILE};
}

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
