// Batch normalisation and leaky integrate-and-fire in one, (T*B, C, L) -> spikes, every call from rest. Backward keeps x
// and two numbers per channel, and recomputes the rest. `last`: channels lie last in memory, x is (T*B, L, C) there.
#include "norm_planes.h"
#include "norm_rows.h"

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// Training measures mean and var (biased) and writes them; otherwise they are read. weight, bias and residual, which is
// added to the normalised values, may be null.
// thresholds: one per step in place of the one, or null. moments: (T, 4), or null. own_slopes: a slope per neuron in
// place of those of the steps, with the sizes and strides that NeuronSlopes takes, or null. The sums: BackSums.
#define SAGE_NORM_LIF(F, SUFFIX)                                                                                      \
    SAGE_EXPORT void sage_norm_lif_##SUFFIX(                                                                          \
        const F* x, const F* weight, const F* bias, F* mean, F* var, const F* residual, F* spikes,                    \
        std::int64_t steps, std::int64_t batch, std::int64_t channels, std::int64_t length, int last,                 \
        double eps, int training, double tau, double threshold, double reset, int hard, int decays_input,             \
        const double* thresholds, double near, double* moments, int threads) {                                        \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, thresholds, 0);                          \
        const sage::Norm<F> norm{weight, bias, eps};                                                                  \
        const sage::Asked asked{near, moments};                                                                       \
        if (last)                                                                                                     \
            sage::forward(sage::Rows<F>{norm, x, residual, steps, batch * length, channels, m, threads},              \
                          training != 0, mean, var, spikes, asked);                                                   \
        else                                                                                                          \
            sage::forward(sage::Planes<F>{norm, x, residual, steps, batch, channels, length, m, threads},             \
                          training != 0, mean, var, spikes, asked);                                                   \
    }                                                                                                                 \
    SAGE_EXPORT void sage_norm_lif_backward_##SUFFIX(                                                                 \
        const F* x, const F* weight, const F* bias, const F* mean, const F* var, const F* residual,                   \
        const F* grad_spikes, const double* slopes, const F* own_slopes, const std::int64_t* layout, F* grad_x,       \
        F* grad_weight, F* grad_bias, F* grad_residual, double* slope_sums, double* constant_sums,                    \
        double* squares, std::int64_t steps, std::int64_t batch, std::int64_t channels, std::int64_t length,          \
        int last, double eps, int training, double tau, double threshold, double reset, int hard,                     \
        int decays_input, const double* thresholds, int detaches_reset, int shape, int threads) {                     \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, thresholds, detaches_reset);             \
        const sage::Norm<F> norm{weight, bias, eps};                                                                  \
        const sage::Gradients<F> g{mean,        var,       grad_spikes,   slopes,               grad_x,               \
                                   grad_weight, grad_bias, grad_residual, {own_slopes, layout},                       \
                                   {slope_sums, constant_sums, squares}};                                             \
        if (last)                                                                                                     \
            sage::backward(sage::Rows<F>{norm, x, residual, steps, batch * length, channels, m, threads}, g, shape,   \
                           training != 0);                                                                            \
        else                                                                                                          \
            sage::backward(sage::Planes<F>{norm, x, residual, steps, batch, channels, length, m, threads}, g, shape,  \
                           training != 0);                                                                            \
    }

SAGE_NORM_LIF(float, f32)
SAGE_NORM_LIF(double, f64)
