// Attention without a softmax, from the spikes of query, key and value as they lie in memory, (images, N, C): C = H heads
// of K channels, out = scale * Q (K^T V) head by head. A spike adds a row of K numbers, so that nothing is copied into an
// order of heads first, and no zero is multiplied. Each image is worked on by one thread, sums go from token to token.
#include <algorithm>
#include <vector>

#include "blocks.h"

namespace sage {
namespace {

struct Sizes {
    Index images, tokens, heads, width;
    Index channels() const { return heads * width; }
    Index size() const { return tokens * channels(); }   // of an image
    Index products() const { return channels() * width; }  // a row of K for every channel
};

// Numbers and bits of one row of channels.
template <class F>
const F* numbers(Reals<F> x, Index at, Index, F*) {
    return x.x + at;
}
template <class F, class Visit, class From>
void each_event(From x, Index at, Index channels, Visit&& visit) {
    for (Index first = 0; first < channels; first += WORD) {
        Word word;
        x.read(at + first, std::min(WORD, channels - first), word);
        for (; word; word &= word - 1) {
            const Index c = first + __builtin_ctzll(word);
            visit(c, x.value(at + c));
        }
    }
}
template <class F>
const F* numbers(Spikes<F> x, Index at, Index channels, F* room) {
    std::fill(room, room + channels, F(0));
    each_event<F>(x, at, channels, [&](Index c, F) { room[c] = F(1); });
    return room;
}

// 0, or NaN if a value is not finite: zeros in front of it would make the dense sum NaN.
template <class F>
F check(Reals<F> x, Index at, Index size) {
    constexpr Index LANES = 16;  // sums side by side: one would wait for itself
    F sums[LANES] = {}, all = 0;
    Index i = 0;
    for (; i + LANES <= size; i += LANES)
        for (Index l = 0; l < LANES; ++l) sums[l] += x.x[at + i + l] * F(0);
    for (; i < size; ++i) all += x.x[at + i] * F(0);
    for (Index l = 0; l < LANES; ++l) all += sums[l];
    return all;
}
template <class F>
F check(Spikes<F>, Index, Index) {
    return 0;
}

// W numbers in registers.
template <class F, int W>
struct Held {
    static constexpr int SIZE = std::min(W * int(sizeof(F)), BYTES), EACH = SIZE / int(sizeof(F)), COUNT = W / EACH;
    typedef F V __attribute__((vector_size(SIZE)));
    V v[COUNT];

    explicit Held(const F* from) { std::memcpy(v, from, sizeof v); }
    Held() : v{} {}
    void add(F factor, const F* row) {
        for (int i = 0; i < COUNT; ++i) {
            V more;
            std::memcpy(&more, row + i * EACH, sizeof more);
            v[i] += factor * more;
        }
    }
    void store(F* to) const { std::memcpy(to, v, sizeof v); }
};

// One image; W is the width of a head where it is known when this is compiled, or 0.
template <class F, int W>
struct Image {
    const Sizes& s;
    Index width() const { return W ? W : s.width; }
    Index head(Index c) const { return c - c % width(); }  // its first channel

    void add(F factor, const F* __restrict row, F* __restrict to) const {
        if constexpr (W > 0) {
            Held<F, W> sums(to);
            sums.add(factor, row);
            sums.store(to);
        } else {
            for (Index j = 0; j < s.width; ++j) to[j] += factor * row[j];
        }
    }
    // to = sum of a[j] * rows[j]
    void combine(const F* a, const F* rows, F* to) const {
        if constexpr (W > 0) {
            Held<F, W> sums;
            for (Index j = 0; j < W; ++j) sums.add(a[j], rows + j * W);
            sums.store(to);
        } else {
            std::fill(to, to + s.width, F(0));
            for (Index j = 0; j < s.width; ++j) add(a[j], rows + j * s.width, to);
        }
    }
    // products[c] += a[n, c] * b[n, head of c], over all tokens.
    template <class A, class B>
    void gather(A a, B b, Index image, F* products, F* room) const {
        const Index channels = s.channels();
        std::fill(products, products + s.products(), F(0));
        for (Index n = 0; n < s.tokens; ++n) {
            const Index at = image * s.size() + n * channels;
            const F* row = numbers(b, at, channels, room);
            each_event<F>(a, at, channels, [&](Index c, F x) { add(x, row + head(c), products + c * width()); });
        }
    }
    // out[n, head of c] = sum of a[n, c] * products[c].
    template <class A>
    void spread(A a, const F* products, Index image, F* out) const {
        const Index channels = s.channels();
        for (Index n = 0; n < s.tokens; ++n) {
            const Index at = image * s.size() + n * channels;
            std::fill(out + at, out + at + channels, F(0));
            each_event<F>(a, at, channels, [&](Index c, F x) { add(x, products + c * width(), out + at + head(c)); });
        }
    }
    // The same of numbers that are not rare.
    void spread_all(const F* a, const F* products, Index image, F* out) const {
        const Index channels = s.channels();
        for (Index n = 0; n < s.tokens; ++n) {
            const Index at = image * s.size() + n * channels;
            for (Index h = 0; h < channels; h += width()) combine(a + at + h, products + h * width(), out + at + h);
        }
    }
    void scale(F factor, F* x, Index size) const {
        for (Index i = 0; i < size; ++i) x[i] *= factor;
    }
    // Every head's square of products by itself.
    void transpose(const F* from, F* to) const {
        for (Index c = 0; c < s.channels(); ++c)
            for (Index j = 0; j < width(); ++j) to[(head(c) + j) * width() + c % width()] = from[c * width() + j];
    }
};

// call(width as a constant, or 0)
template <class Call>
void choose_width(Index width, Call&& call) {
    switch (width) {
        case 8: return call(std::integral_constant<int, 8>());
        case 16: return call(std::integral_constant<int, 16>());
        case 32: return call(std::integral_constant<int, 32>());
        case 64: return call(std::integral_constant<int, 64>());
        default: return call(std::integral_constant<int, 0>());
    }
}

// 1 if done; 0 if a value is not finite.
template <class F>
int forward(Reals<F> q, Reals<F> k, Reals<F> v, Sizes s, F factor, F* out, int threads) {
    bool finite = true;
    choose_width(s.width, [&](auto width) {
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(&& : finite)
        {
            std::vector<F> products(size_t(s.products())), room(size_t(s.channels()));
            const Image<F, width()> one{s};
#pragma omp for schedule(static)
            for (Index image = 0; image < s.images; ++image) {
                const Index at = image * s.size();
                one.gather(k, v, image, products.data(), room.data());
                one.spread(q, products.data(), image, out);
                one.scale(factor, out + at, s.size());
                finite = finite && check(k, at, s.size()) + check(v, at, s.size()) == F(0);
            }
        }
    });
    return finite;
}

// Gradients of query, key and value; 1 if done, 0 if a value or a gradient is not finite.
template <class F, class From>
int backward(const F* grad, From q, From k, From v, Sizes s, F factor, F* of_q, F* of_k, F* of_v, int threads) {
    bool finite = true;
    choose_width(s.width, [&](auto width) {
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(&& : finite)
        {
            std::vector<F> products(size_t(s.products())), turned(size_t(s.products())), room(size_t(s.channels()));
            const Image<F, width()> one{s};
#pragma omp for schedule(static)
            for (Index image = 0; image < s.images; ++image) {
                const Index at = image * s.size();
                one.gather(k, v, image, products.data(), room.data());
                one.scale(factor, products.data(), s.products());
                one.transpose(products.data(), turned.data());
                one.spread_all(grad, turned.data(), image, of_q);
                one.gather(q, Reals<F>{grad}, image, products.data(), room.data());
                one.scale(factor, products.data(), s.products());
                one.spread(k, products.data(), image, of_v);
                one.transpose(products.data(), turned.data());
                one.spread(v, turned.data(), image, of_k);
                const F all = check(q, at, s.size()) + check(k, at, s.size()) + check(v, at, s.size());
                finite = finite && all + check(Reals<F>{grad}, at, s.size()) == F(0);
            }
        }
    });
    return finite;
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

#define SAGE_MIX(F, SUFFIX)                                                                                           \
    SAGE_EXPORT int sage_mix_##SUFFIX(const F* q, const F* k, const F* v, std::int64_t images, std::int64_t tokens,   \
                                      std::int64_t heads, std::int64_t width, double scale, F* out, int threads) {    \
        using R = sage::Reals<F>;                                                                                     \
        return sage::forward(R{q}, R{k}, R{v}, {images, tokens, heads, width}, F(scale), out, threads);               \
    }                                                                                                                 \
    SAGE_EXPORT int sage_mix_backward_##SUFFIX(const F* grad, const void* q, const void* k, const void* v, int bits,  \
                                               std::int64_t images, std::int64_t tokens, std::int64_t heads,          \
                                               std::int64_t width, double scale, F* of_q, F* of_k, F* of_v,           \
                                               int threads) {                                                         \
        const sage::Sizes s{images, tokens, heads, width};                                                            \
        if (bits) {                                                                                                   \
            const auto from = [](const void* x) { return sage::Spikes<F>{static_cast<const sage::Word*>(x)}; };       \
            return sage::backward(grad, from(q), from(k), from(v), s, F(scale), of_q, of_k, of_v, threads);           \
        }                                                                                                             \
        const auto from = [](const void* x) { return sage::Reals<F>{static_cast<const F*>(x)}; };                     \
        return sage::backward(grad, from(q), from(k), from(v), s, F(scale), of_q, of_k, of_v, threads);               \
    }

SAGE_MIX(float, f32)
SAGE_MIX(double, f64)
