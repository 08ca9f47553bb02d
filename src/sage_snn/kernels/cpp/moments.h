// Mean and variance of a channel of x (N, C, L), in pieces whose sums are combined in a fixed order: the result does not
// depend on which thread took which piece.
#pragma once

#include <algorithm>

#include "membrane.h"

namespace sage {

struct Moments {
    double count = 0, mean = 0, squares = 0;  // squares: sum of squared distances from the mean

    void add(const Moments& other) {  // Chan, Golub and LeVeque
        if (other.count == 0) return;
        const double total = count + other.count, distance = other.mean - mean;
        mean += distance * (other.count / total);
        squares += other.squares + distance * distance * (count * other.count / total);
        count = total;
    }
};

constexpr Index PIECE = 1024;  // values whose sums stay in the precision of x, sixteen to a lane; they fit in L1

// How a channel of `planes` planes of `length` values is cut: several short planes, or a part of a long one.
struct Pieces {
    Index planes, length, group, parts;

    Pieces(Index planes_, Index length_)
        : planes(planes_), length(length_), group(std::max<Index>(1, PIECE / std::max<Index>(1, length_))),
          parts((length_ + PIECE - 1) / PIECE) {}

    Index count() const { return (planes + group - 1) / group * parts; }

    // Calls visit(pointer, values) for every run of values of a piece that lies together; planes are `stride` apart.
    template <class F, class Visit>
    void runs(const F* channel, Index stride, Index piece, Visit&& visit) const {
        const Index first = piece / parts * group, begin = piece % parts * PIECE;
        for (Index n = first; n < std::min(planes, first + group); ++n)
            visit(channel + n * stride + begin, std::min(PIECE, length - begin));
    }
};

// Two passes over a piece, the second from L1: sums of (x - c) and (x - c)^2 about its rounded mean c.
template <class F>
Moments moments(const F* channel, Index stride, const Pieces& pieces, Index piece) {
    F first[TILE] = {}, second[TILE] = {};
    Index count = 0;
    pieces.runs(channel, stride, piece, [&](const F* x, Index n) {
        Index i = 0;
        for (; i + TILE <= n; i += TILE)
            for (int j = 0; j < TILE; ++j) first[j] += x[i + j];
        for (int j = 0; j < n - i; ++j) first[j] += x[i + j];
        count += n;
    });
    const F centre = F(sum(first) / double(count));
    for (int j = 0; j < TILE; ++j) first[j] = F(0);
    pieces.runs(channel, stride, piece, [&](const F* x, Index n) {
        Index i = 0;
        for (; i + TILE <= n; i += TILE)
            for (int j = 0; j < TILE; ++j) {
                const F d = x[i + j] - centre;
                first[j] += d;
                second[j] += d * d;
            }
        for (int j = 0; j < n - i; ++j) {
            const F d = x[i + j] - centre;
            first[j] += d;
            second[j] += d * d;
        }
    });
    const double rest = sum(first), n = double(count);
    const double squares = sum(second) - rest * rest / n;
    return {n, double(centre) + rest / n, squares < 0 ? 0 : squares};  // NaN stays NaN
}

}  // namespace sage
