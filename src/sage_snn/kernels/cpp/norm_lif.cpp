// Batch normalisation and leaky integrate-and-fire in one, (T*B, C, L) -> spikes, every call from rest. Backward keeps x
// and two numbers per channel, and recomputes the rest. `last`: channels lie last in memory, x is (T*B, L, C) there.
#include "norm_planes.h"
#include "norm_rows.h"

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// Training measures mean and var (biased) and writes them; otherwise they are read. weight, bias and residual, which is
// added to the normalised values, may be null.
// slope_sums: null, or (T): d loss / d slope of each step.
#define SAGE_NORM_LIF(F, SUFFIX)                                                                                      \
    SAGE_EXPORT void sage_norm_lif_##SUFFIX(                                                                          \
        const F* x, const F* weight, const F* bias, F* mean, F* var, const F* residual, F* spikes,                    \
        std::int64_t steps, std::int64_t batch, std::int64_t channels, std::int64_t length, int last,                 \
        double eps, int training, double tau, double threshold, double reset, int hard, int decays_input,             \
        int threads) {                                                                                                \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, 0);                                      \
        const sage::Norm<F> norm{weight, bias, eps};                                                                  \
        if (last)                                                                                                     \
            sage::forward(sage::Rows<F>{norm, x, residual, steps, batch * length, channels, m, threads},              \
                          training != 0, mean, var, spikes);                                                          \
        else                                                                                                          \
            sage::forward(sage::Planes<F>{norm, x, residual, steps, batch, channels, length, m, threads},             \
                          training != 0, mean, var, spikes);                                                          \
    }                                                                                                                 \
    SAGE_EXPORT void sage_norm_lif_backward_##SUFFIX(                                                                 \
        const F* x, const F* weight, const F* bias, const F* mean, const F* var, const F* residual,                   \
        const F* grad_spikes, const double* slopes, F* grad_x, F* grad_weight, F* grad_bias, F* grad_residual,        \
        double* slope_sums, std::int64_t steps, std::int64_t batch, std::int64_t channels, std::int64_t length,       \
        int last, double eps, int training, double tau, double threshold, double reset, int hard,                     \
        int decays_input, int detaches_reset, int shape, int threads) {                                               \
        const sage::Membrane<F> m(tau, threshold, reset, hard, decays_input, detaches_reset);                         \
        const sage::Norm<F> norm{weight, bias, eps};                                                                  \
        const sage::Gradients<F> g{mean,        var,       grad_spikes,   slopes,    grad_x,                          \
                                   grad_weight, grad_bias, grad_residual, slope_sums};                                \
        if (last)                                                                                                     \
            sage::backward(sage::Rows<F>{norm, x, residual, steps, batch * length, channels, m, threads}, g, shape,   \
                           training != 0);                                                                            \
        else                                                                                                          \
            sage::backward(sage::Planes<F>{norm, x, residual, steps, batch, channels, length, m, threads}, g, shape,  \
                           training != 0);                                                                            \
    }

SAGE_NORM_LIF(float, f32)
SAGE_NORM_LIF(double, f64)
