// Largest of 3 x 3 values, two apart, one beyond the border: x (N, H, W, C) -> (N, H', W', C), H' = (H + 1) / 2.
// Of equal values the first counts, and a NaN always, as in torch. Between forward and backward a byte per value is kept.
#include <algorithm>

#include "membrane.h"

namespace sage {
namespace {

struct Sizes {
    Index images, height, width, channels;
    Index rows() const { return (height + 1) / 2; }
    Index columns() const { return (width + 1) / 2; }
};

// visit(window, place in it) for the windows that hold this row or column.
template <class Visit>
void windows(Index at, Index count, Visit&& visit) {
    if (at % 2 == 0) return visit(at / 2, 1);
    visit(at / 2, 2);
    if (at / 2 + 1 < count) visit(at / 2 + 1, 0);
}

template <class F>
void forward(const F* x, Sizes s, F* out, std::uint8_t* places, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index line = 0; line < s.images * s.rows(); ++line) {
        const Index n = line / s.rows(), i = line % s.rows();
        for (Index j = 0; j < s.columns(); ++j) {
            const Index at = (line * s.columns() + j) * s.channels;
            for (Index first = 0; first < s.channels; first += TILE) {
                const Index lanes = std::min<Index>(TILE, s.channels - first);
                F best[TILE];
                std::uint8_t place[TILE];
                bool none = true;
                for (Index r = std::max<Index>(0, 1 - 2 * i); r < std::min<Index>(3, s.height + 1 - 2 * i); ++r)
                    for (Index c = std::max<Index>(0, 1 - 2 * j); c < std::min<Index>(3, s.width + 1 - 2 * j); ++c) {
                        const Index from = ((n * s.height + 2 * i + r - 1) * s.width + 2 * j + c - 1) * s.channels;
                        const F* __restrict value = x + from + first;
                        const auto here = std::uint8_t(3 * r + c);
                        if (none)
                            for (Index l = 0; l < lanes; ++l) best[l] = value[l], place[l] = here;
                        else
                            for (Index l = 0; l < lanes; ++l) {
                                const bool better = value[l] > best[l] || value[l] != value[l];
                                best[l] = better ? value[l] : best[l];
                                place[l] = better ? here : place[l];
                            }
                        none = false;
                    }
                std::copy(best, best + lanes, out + at + first);
                std::copy(place, place + lanes, places + at + first);
            }
        }
    }
}

template <class F>
void backward(const F* grad, const std::uint8_t* places, Sizes s, F* grad_x, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index line = 0; line < s.images * s.height; ++line) {
        const Index n = line / s.height, h = line % s.height;
        for (Index w = 0; w < s.width; ++w) {
            F* __restrict to = grad_x + (line * s.width + w) * s.channels;
            std::fill(to, to + s.channels, F(0));
            windows(h, s.rows(), [&](Index i, int r) {
                windows(w, s.columns(), [&](Index j, int c) {
                    const Index at = ((n * s.rows() + i) * s.columns() + j) * s.channels;
                    const F* __restrict from = grad + at;
                    const std::uint8_t* __restrict place = places + at;
                    const auto here = std::uint8_t(3 * r + c);
                    for (Index l = 0; l < s.channels; ++l) to[l] += place[l] == here ? from[l] : F(0);
                });
            });
        }
    }
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

#define SAGE_POOL(F, SUFFIX)                                                                                          \
    SAGE_EXPORT void sage_pool_##SUFFIX(const F* x, std::int64_t images, std::int64_t height, std::int64_t width,     \
                                        std::int64_t channels, F* out, std::uint8_t* places, int threads) {           \
        sage::forward(x, {images, height, width, channels}, out, places, threads);                                    \
    }                                                                                                                 \
    SAGE_EXPORT void sage_pool_backward_##SUFFIX(const F* grad, const std::uint8_t* places, std::int64_t images,      \
                                                 std::int64_t height, std::int64_t width, std::int64_t channels,      \
                                                 F* grad_x, int threads) {                                            \
        sage::backward(grad, places, {images, height, width, channels}, grad_x, threads);                             \
    }

SAGE_POOL(float, f32)
SAGE_POOL(double, f64)
