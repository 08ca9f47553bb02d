// Batch normalisation and LIF where a position's channels lie together, in the terms of rows.h, one phase after the other.
#pragma once

#include "rows.h"

namespace sage {

constexpr Index AHEAD = 4;  // rows to ask for in advance: those of a narrow band lie apart, which no processor foresees

template <int Write, class F>
void fetch_ahead(const Rows<F>& p, Band band, const F* from, Index at) {
    const Index next = at + AHEAD * p.period;
    if (band.count == p.columns() || next + TILE > p.size) return;
    for (Index t = 0; t < p.steps; ++t)
        for (Index j = 0; j < TILE; j += LINE / Index(sizeof(F)))
            __builtin_prefetch(from + t * p.size + next + j, Write, 2);
}

// A tile that is cut off is worked on in a buffer, so that the arithmetic is that of a whole one.
template <class F>
const F* gather(const Rows<F>& p, const F* from, Index at, Index count, F pad, std::vector<F>& buffer) {
    if (count == TILE) return from + at;
    buffer.assign(size_t(p.steps * TILE), pad);
    for (Index t = 0; t < p.steps; ++t)
        std::memcpy(&buffer[size_t(t * TILE)], from + t * p.size + at, size_t(count) * sizeof(F));
    return buffer.data();
}

template <class F>
F* target(const Rows<F>& p, F* to, Index at, Index count, std::vector<F>& buffer) {
    if (count == TILE) return to + at;
    buffer.resize(size_t(p.steps * TILE));
    return buffer.data();
}

template <class F>
void scatter(const Rows<F>& p, F* to, Index at, Index count, const F* rows) {
    if (count == TILE) return;
    for (Index t = 0; t < p.steps; ++t)
        std::memcpy(to + t * p.size + at, rows + t * TILE, size_t(count) * sizeof(F));
}

template <class F>
Currents<F, LaneAffine<F>> currents(const Rows<F>& p, const Lanes<F>& lanes, Band band, Index column, const F* x, Index at,
                                    Index count, Scratch<F>& scratch) {
    const Currents<F, LaneAffine<F>> plain{lanes.of(column), x, count == TILE ? p.size : TILE};
    if (!p.residual) return plain;
    fetch_ahead<0>(p, band, p.residual, at);
    const F* residual = gather(p, p.residual, at, count, F(0), scratch.residual);
    return with_residual(plain, residual, lanes.unchanged(), p.steps, scratch.sum);
}

template <class F>
void fire_part(const Rows<F>& p, const Tiles<F, LaneAffine<F>>& functions, const Lanes<F>& lanes, Band band,
               Index part, F* spikes, double near, double* seen, Scratch<F>& scratch) {
    Census<F> census(near, p.steps, seen, scratch.census);
    tiles_of(p, band, part, [&](Index at, Index count, Index column) {
        fetch_ahead<0>(p, band, p.x, at);
        fetch_ahead<1>(p, band, static_cast<const F*>(spikes), at);
        F v[TILE];
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        const Index stride = count == TILE ? p.size : TILE;
        F* out = target(p, spikes, at, count, scratch.out);
        const F* x = gather(p, p.x, at, count, F(0), scratch.in);
        const auto in = currents(p, lanes, band, column, x, at, count, scratch);
        census.begin(count);
        functions.fire(p.membrane, in.affine, in.rows, in.stride, p.steps, v, out, stride, &census);
        census.end(count);
        scatter(p, spikes, at, count, out);
    }, [] {});
    census.close(TILE);
}

template <class F>
void forward(const Rows<F>& p, bool measures, F* mean, F* var, F* spikes, Asked asked) {
    const Tiles<F, LaneAffine<F>> functions(p.membrane, asked.moments == nullptr);
    const Index columns = p.columns(), parts = p.parts(), breadth = p.breadth(asked.moments == nullptr);
    PieceSums seen(parts * columns, p.steps * 3, asked.moments);
    LaneMoments found(measures ? parts * p.period : 0);
    Lanes<F> lanes(p.period);
    const auto see = [&](Band band, Index part, Scratch<F>& scratch) { measure(p, band, part, found, scratch); };
    const auto fire = [&](Band band, Index part, Scratch<F>& scratch) {
        fire_part(p, functions, lanes, band, part, spikes, asked.near, seen.of(part * columns + band.first), scratch);
    };
    if (measures) each_piece(p, breadth, see);
    for (Index c = 0; c < p.channels; ++c) settle(p, c, found, measures, mean, var, lanes);
    each_piece(p, breadth, fire);
    if (asked.moments) report(seen.found, p.steps, p.size, asked.moments);
}

// Gradient of the normalised values of a band in a part, left in g.normal(); sums get its sum and its sum with x - mean,
// lane by lane.
template <bool Plain, class F>
void back_part(const Rows<F>& p, const Tiles<F, LaneAffine<F>>& functions, const Gradients<F>& g, const Lanes<F>& lanes,
               Band band, Index part, double* sums, BackPieces& pieces, Scratch<F>& scratch) {
    F* charged = on_lines(scratch.charged, p.steps * TILE);
    F rest[TILE];
    if (!Plain) std::fill(rest, rest + TILE, p.membrane.rest);
    LaneSums<F> found(band.count * TILE, scratch.census);
    Squares<F> squares(pieces.of(part * p.columns() + band.first).squares);
    const auto back = [&](Index at, Index count, Index column) {
        fetch_ahead<0>(p, band, p.x, at);
        fetch_ahead<0>(p, band, g.spikes, at);
        fetch_ahead<1>(p, band, static_cast<const F*>(g.normal()), at);
        F v[TILE], grad_v[TILE] = {};
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        const Index stride = count == TILE ? p.size : TILE;
        const F* x = gather(p, p.x, at, count, F(0), scratch.in);
        const F* grad = gather(p, g.spikes, at, count, F(0), scratch.grad);
        F* out = target(p, g.normal(), at, count, scratch.out);
        const auto in = currents(p, lanes, band, column, x, at, count, scratch);
        functions.charge(p.membrane, in.affine, in.rows, in.stride, p.steps, v, charged);
        TileSlopes<F> slopes{g.slopes, nullptr, 0};
        if (!Plain)
            slopes = g.own_slopes.of_tile(g.slopes, p.steps, scratch.slopes,
                                          [&](auto gather) { gather(at, count, 0); });
        functions.back(p.membrane, charged, grad, stride, slopes, p.steps, grad_v, out, stride,
                       pieces.of(part * p.columns() + column), Plain ? nullptr : rest);
        found.add((column - band.first) * TILE, std::integral_constant<Index, TILE>(), out, x, lanes.of(column).shift,
                  stride, p.steps);
        if (!Plain && squares.totals) squares.add(grad, out, stride, p.steps);
        scatter(p, g.normal(), at, count, out);
    };
    tiles_of(p, band, part, back, [&] {
        if (++found.run == BRIEF) found.close(sums);
    });
    found.close(sums);
    if (!Plain && squares.totals) squares.close();
}

template <class F>
void backward(const Rows<F>& p, const Gradients<F>& g, int shape, bool measured) {
    const Tiles<F, LaneAffine<F>> functions(p.membrane, is_plain(g), shape);
    const Index period = p.period, columns = p.columns(), parts = p.parts(), breadth = p.breadth(!g.sums.squares);
    std::vector<double> sums(size_t(parts * period * 2));
    BackPieces pieces(parts * columns, p.steps, g.sums);
    Lanes<F> lanes(period);
    for (Index lane = 0; lane < period; ++lane) lanes.set(lane, p.norm.affine(g.mean, g.var, lane % p.channels));
    const auto back = [&](Band band, Index part, Scratch<F>& scratch) {
        const auto run = is_plain(g) ? back_part<true, F> : back_part<false, F>;
        run(p, functions, g, lanes, band, part, &sums[size_t((part * period + band.first * TILE) * 2)], pieces, scratch);
    };
    const auto finish = [&](Band band, Index part, Scratch<F>&) { back_norm(p, g, lanes, band, part, measured); };
    each_piece(p, breadth, back);
    for (Index c = 0; c < p.channels; ++c) settle_back(p, c, sums, g, lanes);
    each_piece(p, breadth, finish);
    pieces.finish();
}

}  // namespace sage
