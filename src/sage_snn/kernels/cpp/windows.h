// Which events an output of a convolution sees.
#pragma once

#include "events.h"

namespace sage {

// A convolution of 3 x 3, one pixel beyond the border: x (N, H, W, C) -> (N, H', W', O).
struct Image {
    Index images, height, width, inputs, outputs, stride;
    Index rows() const { return (height - 1) / stride + 1; }
    Index columns() const { return (width - 1) / stride + 1; }
};

// visit(first event, last, shift) for the rows of input pixels that an output sees; the shift makes of a place in a row
// of pixels one among the rows of weights (tap, channel). Three neighbours are one list.
template <class F, class Visit>
inline void window(const Events<F>& events, const Image& s, Index n, Index tap, Index i, Index j, Visit&& visit) {
    const Index y = i * s.stride + tap - 1, x = j * s.stride;
    if (y < 0 || y >= s.height) return;
    const Index* starts = events.starts.get() + (n * s.height + y) * s.width;
    const Index first = x ? x - 1 : 0, last = std::min(s.width, x + 2);
    visit(starts[first], starts[last], (3 * tap + 1 - x) * s.inputs);
}

}  // namespace sage
