// Leaky integrate-and-fire over T steps on one tile of positions: forward, forward for backward, and backward.
// A row is one time step of the tile; rows lie `stride` apart.
#pragma once

#include "sums.h"

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
inline F after(const Membrane<F>& m, F threshold, F h) {
    return h >= threshold ? (O::hard ? m.reset : h - threshold) : h;
}

// Functions without `Plain` know thresholds per step and all that may be asked for; the others hold no branches for it.

// Spikes of all steps; `v` (TILE) holds the membrane before and afterwards; the census may ask for membranes.
template <class O, bool Plain, class F, class A>
void fire_tile(const Membrane<F>& membrane, A affine, const F* x, Index x_stride, Index steps, F* v, F* spikes,
               Index stride, Census<F>* census) {
    const Membrane<F> m = membrane;  // a copy that no store can reach: its fields stay in registers
    for (Index t = 0; t < steps; ++t) {
        const F threshold = m.template threshold_at<Plain>(t);
        const F* __restrict in = x + t * x_stride;
        F* __restrict out = spikes + t * stride;
        F* __restrict state = v;
        F distances[TILE];  // counted in a loop of its own: all in one is too much for the vectoriser
        for (int j = 0; j < TILE; ++j) {
            const F h = charge<O>(m, affine(j, in[j]), state[j]);
            out[j] = h >= threshold ? F(1) : F(0);
            state[j] = after<O>(m, threshold, h);
            if (!Plain) distances[j] = h - threshold;
        }
        if (!Plain && census->totals) census->add(t, distances);
    }
}

// Membranes before firing of all steps, (T, TILE); the same arithmetic as above, to the bit.
template <class O, bool Plain, class F, class A>
void charge_tile(const Membrane<F>& membrane, A affine, const F* x, Index x_stride, Index steps, F* v,
                 F* charged) {
    const Membrane<F> m = membrane;
    for (Index t = 0; t < steps; ++t) {
        const F threshold = m.template threshold_at<Plain>(t);
        const F* __restrict in = x + t * x_stride;
        F* __restrict out = charged + t * TILE;
        F* __restrict state = v;
        for (int j = 0; j < TILE; ++j) {
            const F h = charge<O>(m, affine(j, in[j]), state[j]);
            out[j] = h;
            state[j] = after<O>(m, threshold, h);
        }
    }
}

// Sum of minus d loss / d threshold of a step from the gradients of the distance to it and of the membrane afterwards.
template <class F>
double threshold_sum(const Membrane<F>& m, F threshold, const F* h, const F* grad, const F* gv) {
    F lanes[TILE];
    for (int j = 0; j < TILE; ++j) lanes[j] = grad[j] + (!m.hard && h[j] >= threshold ? gv[j] : F(0));
    return sum(lanes);
}

// Sum of d loss / d tau of a step from the gradient of the charged membrane; v is the membrane before.
template <class F>
double tau_sum(const Membrane<F>& m, const F* h, const F* v, const F* grad) {
    F lanes[TILE];
    if (m.decays_input)
        for (int j = 0; j < TILE; ++j) lanes[j] = grad[j] * (v[j] - h[j]) * m.inverse_tau;
    else
        for (int j = 0; j < TILE; ++j) lanes[j] = grad[j] * (v[j] - m.rest) * m.inverse_tau * m.inverse_tau;
    return sum(lanes);
}

// Membranes after firing of a step.
template <class F>
void fired(const Membrane<F>& m, F threshold, const F* h, F* v) {
    for (int j = 0; j < TILE; ++j) v[j] = h[j] >= threshold ? (m.hard ? m.reset : h[j] - threshold) : h[j];
}

// Gradient of the currents of all steps from that of the spikes (null: none); `grad_v` (TILE) holds the gradient of the
// membrane afterwards, and then of the one before. Without `Plain` lanes may have slopes of their own, and the sums of
// the constants may be asked for; that of tau needs `start` (TILE), the first membranes.
template <int S, bool Plain, class F>
void back_tile(const Membrane<F>& membrane, const F* charged, const F* grad_spikes, Index grad_stride,
               const TileSlopes<F>& slopes, Index steps, F* grad_v, F* grad_x, Index stride, const BackSums& asked,
               const F* start) {
    const Membrane<F> m = membrane;
    const F inward = m.decays_input ? m.inverse_tau : F(1);
    F sums[TILE];
    for (Index t = steps - 1; t >= 0; --t) {
        const F slope = Plain || !slopes.lanes ? F(slopes.steps[t]) : F(0), threshold = m.template threshold_at<Plain>(t);
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
                for (int j = 0; j < TILE; ++j) grad[j] -= gv[j] * threshold;
        }
        if (Plain || !slopes.lanes) {
            for (int j = 0; j < TILE; ++j) grad[j] *= derivative<S>(h[j] - threshold, slope);
        } else {
            const F* __restrict own = slopes.lanes + t * slopes.stride;
            for (int j = 0; j < TILE; ++j) grad[j] *= derivative<S>(h[j] - threshold, own[j]);
        }
        if (asked.slopes) {  // all shapes are f(slope * distance)
            for (int j = 0; j < TILE; ++j) sums[j] = grad[j] * (h[j] - threshold);
            asked.slopes[t] += sum(sums) / slopes.steps[t];
        }
        if (!Plain && asked.constants) asked.constants[t] -= threshold_sum(m, threshold, h, grad, gv);
        if (!Plain && asked.constants) {
            F charges[TILE];
            for (int j = 0; j < TILE; ++j) charges[j] = grad[j] + (m.hard && h[j] >= threshold ? F(0) : gv[j]);
            if (t) fired(m, m.template threshold_at<Plain>(t - 1), h - TILE, sums);
            asked.constants[steps] += tau_sum(m, h, t ? sums : start, charges);
        }
        for (int j = 0; j < TILE; ++j) {
            const F charge = grad[j] + (m.hard && h[j] >= threshold ? F(0) : gv[j]);
            out[j] = charge * inward;
            gv[j] = charge - charge * m.inverse_tau;
        }
    }
}

template <class F, class A>
using Fire = void (*)(const Membrane<F>&, A, const F*, Index, Index, F*, F*, Index, Census<F>*);
template <class F, class A>
using Charge = void (*)(const Membrane<F>&, A, const F*, Index, Index, F*, F*);
template <class F>
using Back = void (*)(const Membrane<F>&, const F*, const F*, Index, const TileSlopes<F>&, Index, F*, F*, Index,
                      const BackSums&, const F*);

// The functions of a tile for one call's options.
template <class F, class A = Affine<F>>
struct Tiles {
    Fire<F, A> fire;
    Charge<F, A> charge;
    Back<F> back;

    // `plain`: no census is asked for in the forward pass; no slopes of neurons and no sums but of slopes in backward.
    Tiles(const Membrane<F>& m, bool plain, int shape = SIGMOID) {
        static constexpr Back<F> backs[][2] = {{back_tile<SIGMOID, false, F>, back_tile<SIGMOID, true, F>},
                                               {back_tile<ARCTAN, false, F>, back_tile<ARCTAN, true, F>},
                                               {back_tile<RECTANGLE, false, F>, back_tile<RECTANGLE, true, F>},
                                               {back_tile<TRIANGLE, false, F>, back_tile<TRIANGLE, true, F>}};
        back = backs[shape][plain && !m.thresholds];
        if (m.decays_input) m.exact_inverse ? reset<true, true>(m, plain) : reset<true, false>(m, plain);
        else m.exact_inverse ? reset<false, true>(m, plain) : reset<false, false>(m, plain);
    }

  private:
    template <bool Decays, bool Exact>
    void reset(const Membrane<F>& m, bool plain) {
        if (m.hard) use<Options<Decays, Exact, true>>(m, plain);
        else use<Options<Decays, Exact, false>>(m, plain);
    }

    template <class O>
    void use(const Membrane<F>& m, bool plain) {
        fire = plain && !m.thresholds ? fire_tile<O, true, F, A> : fire_tile<O, false, F, A>;
        charge = m.thresholds ? charge_tile<O, false, F, A> : charge_tile<O, true, F, A>;
    }
};

}  // namespace sage
