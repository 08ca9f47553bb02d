// Leaky integrate-and-fire over T steps on one tile of positions: forward, forward for backward, and backward.
// A row is one time step of the tile; rows lie `stride` apart.
#pragma once

#include "membrane.h"

namespace sage {

// Options of the recurrence are template arguments, so that its loop holds no branches.
template <bool Decays, bool Exact, bool Hard>
struct Options {
    static constexpr bool decays = Decays, exact = Exact, hard = Hard;
};

template <class O, class F>
inline F leak(const Membrane<F>& m, F x) {
    return O::exact ? x * m.inverse_tau : x / m.tau;
}

// Membrane before firing.
template <class O, class F>
inline F charge(const Membrane<F>& m, F current, F v) {
    if (O::decays) return v + leak<O>(m, current - (v - m.rest));
    return v - leak<O>(m, v - m.rest) + current;
}

// Membrane after firing. A choice, not `spike * reset + (1 - spike) * h`: an infinite h must not become NaN.
template <class O, class F>
inline F after(const Membrane<F>& m, F h) {
    return h >= m.threshold ? (O::hard ? m.reset : h - m.threshold) : h;
}

// Spikes of all steps; `v` (TILE) holds the membrane before and afterwards.
template <class O, class F, class A>
void fire_tile(const Membrane<F>& membrane, A affine, const F* x, Index x_stride, Index steps, F* v, F* spikes,
               Index stride) {
    const Membrane<F> m = membrane;  // a copy that no store can reach: its fields stay in registers
    for (Index t = 0; t < steps; ++t) {
        const F* __restrict in = x + t * x_stride;
        F* __restrict out = spikes + t * stride;
        F* __restrict state = v;
        for (int j = 0; j < TILE; ++j) {
            const F h = charge<O>(m, affine(j, in[j]), state[j]);
            out[j] = h >= m.threshold ? F(1) : F(0);
            state[j] = after<O>(m, h);
        }
    }
}

// Membranes before firing of all steps, (T, TILE); the same arithmetic as above, to the bit.
template <class O, class F, class A>
void charge_tile(const Membrane<F>& membrane, A affine, const F* x, Index x_stride, Index steps, F* v,
                 F* charged) {
    const Membrane<F> m = membrane;
    for (Index t = 0; t < steps; ++t) {
        const F* __restrict in = x + t * x_stride;
        F* __restrict out = charged + t * TILE;
        F* __restrict state = v;
        for (int j = 0; j < TILE; ++j) {
            const F h = charge<O>(m, affine(j, in[j]), state[j]);
            out[j] = h;
            state[j] = after<O>(m, h);
        }
    }
}

// Gradient of the currents of all steps from that of the spikes (null: none); `grad_v` (TILE) holds the gradient of the
// membrane afterwards, and then of the one before. `slope_sums` (T, or null) gets d loss / d slope of each step.
template <int S, class F>
void back_tile(const Membrane<F>& membrane, const F* charged, const F* grad_spikes, Index grad_stride,
               const double* slopes, Index steps, F* grad_v, F* grad_x, Index stride, double* slope_sums) {
    const Membrane<F> m = membrane;
    const F inward = m.decays_input ? m.inverse_tau : F(1);
    F sums[TILE];
    for (Index t = steps - 1; t >= 0; --t) {
        const F slope = F(slopes[t]);
        const F* __restrict h = charged + t * TILE;
        F* __restrict out = grad_x + t * stride;
        F* __restrict gv = grad_v;
        F grad[TILE];
        if (grad_spikes) std::memcpy(grad, grad_spikes + t * grad_stride, sizeof grad);
        else std::memset(grad, 0, sizeof grad);
        if (!m.detaches_reset) {  // the spike also resets
            if (m.hard)
                for (int j = 0; j < TILE; ++j) grad[j] += gv[j] * (m.reset - h[j]);
            else
                for (int j = 0; j < TILE; ++j) grad[j] -= gv[j] * m.threshold;
        }
        for (int j = 0; j < TILE; ++j) grad[j] *= derivative<S>(h[j] - m.threshold, slope);
        if (slope_sums) {  // all shapes are f(slope * distance)
            for (int j = 0; j < TILE; ++j) sums[j] = grad[j] * (h[j] - m.threshold);
            slope_sums[t] += sum(sums) / slopes[t];
        }
        if (m.hard)
            for (int j = 0; j < TILE; ++j) gv[j] = grad[j] + (h[j] >= m.threshold ? F(0) : gv[j]);
        else
            for (int j = 0; j < TILE; ++j) gv[j] += grad[j];
        for (int j = 0; j < TILE; ++j) {
            out[j] = gv[j] * inward;
            gv[j] -= gv[j] * m.inverse_tau;
        }
    }
}

template <class F, class A>
using Fire = void (*)(const Membrane<F>&, A, const F*, Index, Index, F*, F*, Index);
template <class F, class A>
using Charge = void (*)(const Membrane<F>&, A, const F*, Index, Index, F*, F*);
template <class F>
using Back = void (*)(const Membrane<F>&, const F*, const F*, Index, const double*, Index, F*, F*, Index, double*);

// The three functions of a tile for one call's options.
template <class F, class A = Affine<F>>
struct Tiles {
    Fire<F, A> fire;
    Charge<F, A> charge;
    Back<F> back;

    Tiles(const Membrane<F>& m, int shape) {
        static constexpr Back<F> backs[] = {back_tile<SIGMOID, F>, back_tile<ARCTAN, F>, back_tile<RECTANGLE, F>,
                                            back_tile<TRIANGLE, F>};
        back = backs[shape];
        if (m.decays_input) m.exact_inverse ? reset<true, true>(m) : reset<true, false>(m);
        else m.exact_inverse ? reset<false, true>(m) : reset<false, false>(m);
    }

    template <bool Decays, bool Exact>
    void reset(const Membrane<F>& m) {
        if (m.hard) use<Options<Decays, Exact, true>>();
        else use<Options<Decays, Exact, false>>();
    }

    template <class O>
    void use() {
        fire = fire_tile<O, F, A>;
        charge = charge_tile<O, F, A>;
    }
};

}  // namespace sage
