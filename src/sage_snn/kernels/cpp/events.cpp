// Products whose input is mostly zero, and the gradients of their weights: every event adds a row of weights (or the row
// of gradients to its weight's); nothing else is touched. Each sum is made by one thread in the order of the dense path,
// so that zeros are all that is left out: taps, then channels, in a convolution; in the product of matrices parts, first
// to last: MKL's of at most 192 terms on top of the bias, oneDNN's of 1280 and the bias last.
#include "blocks.h"
#include "windows.h"

namespace sage {
namespace {

constexpr Index PART = 192, PART_OF_ONEDNN = 1280;

// Where MKL cuts a sum of `length` terms: halves below twice a part, whole parts above.
Index cut_of(Index length) {
    return length <= PART ? length : length < 2 * PART ? (length + 1) / 2 : PART;
}

template <class F, int NV, bool Ones>
void convolve(const Events<F>& events, const Image& s, Index from, Index to, const F* weights, const F* bias,
              Index lanes, F* out) {
    for (Index line = from; line < to; ++line)
        for (Index j = 0; j < s.columns(); ++j) {
            Row<F, NV> sum;
            for (Index tap = 0; tap < 3; ++tap)
                window(events, s, line / s.rows(), tap, line % s.rows(), j, [&](Index a, Index b, Index shift) {
                    sum.template gather<Ones>(events, a, b, shift, weights);
                });
            if (bias) {
                Row<F, NV> more;
                more.load(bias, lanes);
                sum.add(more);
            }
            sum.store(out + (line * s.columns() + j) * s.outputs, lanes);
        }
}

// Weights as `pack` lays them: those that were kept, else packed now into `own`; null if one of them is not finite.
template <class F>
const F* packed(const F* kept, const F* weight, Strides at, Index inputs, Index taps, const Blocks<F>& blocks,
                std::unique_ptr<F[]>& own, int threads) {
    if (kept) return kept;
    own.reset(new F[size_t(blocks.count * taps * inputs * blocks.width())]);
    return pack(weight, at, inputs, taps, blocks, own.get(), threads) ? own.get() : nullptr;
}

// 1 if done; 0 if there are too many events, or weights that are not finite.
template <class F>
int convolution(const F* x, const F* weight, Strides at, const F* kept, const F* bias, Image s, Index per_mille, F* out,
                int threads) {
    Events<F> events;
    const Index lines = s.images * s.rows(), inputs = s.inputs;
    if (!find_events(Reals<F>{x}, s.images * s.height, s.width * inputs, inputs, per_mille, threads, events)) return 0;
    const Blocks<F> blocks(s.outputs);
    std::unique_ptr<F[]> own;
    const F* weights = packed(kept, weight, at, inputs, 9, blocks, own, threads);
    if (!weights) return 0;
    const Index group = std::max<Index>(1, 64 / s.columns()), groups = (lines + group - 1) / group;
    choose(blocks.vectors, !events.values, [&](auto vectors, auto ones) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
        for (Index task = 0; task < blocks.count * groups; ++task) {
            const Index block = task / groups, from = task % groups * group, first = blocks.first(block);
            convolve<F, vectors(), ones()>(events, s, from, std::min(lines, from + group),
                                           weights + block * 9 * inputs * blocks.width(),
                                           bias ? bias + first : nullptr, blocks.lanes(block), out + first);
        }
    });
    return 1;
}

// Gradients of one block and one row of taps, in the order of the outputs; 0, or NaN if a gradient is not finite.
template <class F, int NV, bool Ones>
F correlate(const Events<F>& events, const Image& s, const F* grad, Index lanes, Index tap, F* sums) {
    F check = 0;
    for (Index line = 0; line < s.images * s.rows(); ++line)
        for (Index j = 0; j < s.columns(); ++j) {
            Row<F, NV> row;
            row.load(grad + (line * s.columns() + j) * s.outputs, lanes);
            if (tap == 1) check += row.check();  // the row of taps that sees every output
            window(events, s, line / s.rows(), tap, line % s.rows(), j, [&](Index a, Index b, Index shift) {
                row.template scatter<Ones>(events, a, b, shift, sums);
            });
        }
    return check;
}

template <class F, class From>
int convolution_weight(From x, const F* grad, Image s, Index per_mille, F* weight, int threads) {
    Events<F> events;
    const Index inputs = s.inputs;
    if (!find_events(x, s.images * s.height, s.width * inputs, inputs, per_mille, threads, events)) return 0;
    const Blocks<F> blocks(s.outputs, threads);
    const Index all = blocks.count * 9 * inputs * blocks.width();
    std::unique_ptr<F[]> sums(new F[size_t(all)]);
    bool finite = true;
    choose(blocks.vectors, !events.values, [&](auto vectors, auto ones) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic) reduction(&& : finite)
        for (Index task = 0; task < blocks.count * 3; ++task) {
            const Index block = task / 3, part = 3 * inputs * blocks.width();
            std::fill(sums.get() + task * part, sums.get() + (task + 1) * part, F(0));
            const F check = correlate<F, vectors(), ones()>(events, s, grad + blocks.first(block), blocks.lanes(block),
                                                            task % 3, sums.get() + block * 3 * part);
            finite = finite && check == F(0);
        }
    });
    if (finite) unpack(sums.get(), {9 * inputs, 9, 1}, inputs, 9, blocks, weight, threads);
    return finite;
}

// x (rows, inputs) -> x W^T + b (rows, outputs), added up as MKL or as oneDNN does.
template <class F>
int map(const F* x, const F* weight, const F* kept, const F* bias, Index rows, Index inputs, Index outputs,
        bool as_onednn, Index per_mille, F* out, int threads) {
    Events<F> events;
    const Index cut = as_onednn ? std::min(inputs, PART_OF_ONEDNN) : cut_of(inputs);
    if (!find_events(Reals<F>{x}, rows, inputs, cut, per_mille, threads, events)) return 0;
    const Blocks<F> blocks(outputs);
    std::unique_ptr<F[]> own;
    const F* all = packed(kept, weight, {inputs, 1, 0}, inputs, 1, blocks, own, threads);
    if (!all) return 0;
    constexpr Index GROUP = 64;
    const Index groups = (rows + GROUP - 1) / GROUP;
    choose(blocks.vectors, !events.values, [&](auto vectors, auto ones) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
        for (Index task = 0; task < blocks.count * groups; ++task) {
            const Index block = task / groups, from = task % groups * GROUP, lanes = blocks.lanes(block);
            const F* weights = all + block * inputs * blocks.width();
            for (Index r = from; r < std::min(rows, from + GROUP); ++r) {
                Row<F, vectors()> sum, offset;
                if (bias) (as_onednn ? offset : sum).load(bias + blocks.first(block), lanes);
                for (Index s = r * events.segments; s < (r + 1) * events.segments; ++s) {
                    Row<F, vectors()> part;
                    part.template gather<ones()>(events, events.starts[size_t(s)], events.starts[size_t(s + 1)], 0,
                                                 weights);
                    sum.add(part);
                }
                if (as_onednn && bias) sum.add(offset);
                sum.store(out + r * outputs + blocks.first(block), lanes);
            }
        }
    });
    return 1;
}

template <class F, class From>
int map_weight(From x, const F* grad, Index rows, Index inputs, Index outputs, Index per_mille, F* weight,
               int threads) {
    Events<F> events;
    if (!find_events(x, rows, inputs, inputs, per_mille, threads, events)) return 0;
    const Blocks<F> blocks(outputs, 3 * threads);
    const Index size = inputs * blocks.width(), cut = cut_of(rows);
    std::unique_ptr<F[]> sums(new F[size_t(blocks.count * size)]);
    bool finite = true;
    choose(blocks.vectors, !events.values, [&](auto vectors, auto ones) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic) reduction(&& : finite)
        for (Index block = 0; block < blocks.count; ++block) {
            std::unique_ptr<F[]> part(new F[size_t(size)]);
            F *total = sums.get() + block * size, check = 0;
            std::fill(total, total + size, F(0));
            for (Index from = 0; from < rows; from += cut) {
                std::fill(part.get(), part.get() + size, F(0));
                for (Index r = from; r < std::min(rows, from + cut); ++r) {
                    Row<F, vectors()> row;
                    row.load(grad + r * outputs + blocks.first(block), blocks.lanes(block));
                    check += row.check();
                    row.template scatter<ones()>(events, events.starts[size_t(r)], events.starts[size_t(r + 1)], 0,
                                                 part.get());
                }
                for (Index i = 0; i < size; ++i) total[i] += part[size_t(i)];
            }
            finite = finite && check == F(0);
        }
    });
    if (finite) unpack(sums.get(), {inputs, 1, 0}, inputs, 1, blocks, weight, threads);
    return finite;
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

#define SAGE_EVENTS(F, SUFFIX)                                                                                        \
    /* How many numbers `sage_event_pack` writes; it gives 0 if a weight is not finite. */                            \
    SAGE_EXPORT std::int64_t sage_event_size_##SUFFIX(std::int64_t outputs, std::int64_t inputs, std::int64_t taps) { \
        const sage::Blocks<F> blocks(outputs);                                                                        \
        return blocks.count * taps * inputs * blocks.width();                                                         \
    }                                                                                                                 \
    SAGE_EXPORT int sage_event_pack_##SUFFIX(const F* weight, std::int64_t of_output, std::int64_t of_input,          \
                                             std::int64_t of_tap, std::int64_t outputs, std::int64_t inputs,          \
                                             std::int64_t taps, F* to, int threads) {                                 \
        return sage::pack(weight, {of_output, of_input, of_tap}, inputs, taps, sage::Blocks<F>(outputs), to, threads);\
    }                                                                                                                 \
    SAGE_EXPORT int sage_event_conv_##SUFFIX(                                                                         \
        const F* x, const F* weight, std::int64_t of_output, std::int64_t of_input, std::int64_t of_tap,              \
        const F* kept, const F* bias, std::int64_t images, std::int64_t height, std::int64_t width,                   \
        std::int64_t inputs, std::int64_t outputs, std::int64_t stride, std::int64_t per_mille, F* out,               \
        int threads) {                                                                                                \
        return sage::convolution(x, weight, {of_output, of_input, of_tap}, kept, bias,                                \
                                 {images, height, width, inputs, outputs, stride}, per_mille, out, threads);          \
    }                                                                                                                 \
    SAGE_EXPORT int sage_event_conv_weight_##SUFFIX(                                                                  \
        const F* x, const std::uint64_t* bits, const F* grad, std::int64_t images, std::int64_t height,               \
        std::int64_t width, std::int64_t inputs, std::int64_t outputs, std::int64_t stride, std::int64_t per_mille,   \
        F* weight, int threads) {                                                                                     \
        const sage::Image s{images, height, width, inputs, outputs, stride};                                          \
        return bits ? sage::convolution_weight(sage::Spikes<F>{bits}, grad, s, per_mille, weight, threads)            \
                    : sage::convolution_weight(sage::Reals<F>{x}, grad, s, per_mille, weight, threads);               \
    }                                                                                                                 \
    SAGE_EXPORT int sage_event_map_##SUFFIX(const F* x, const F* weight, const F* kept, const F* bias,                \
                                            std::int64_t rows, std::int64_t inputs, std::int64_t outputs,             \
                                            int as_onednn, std::int64_t per_mille, F* out, int threads) {             \
        return sage::map(x, weight, kept, bias, rows, inputs, outputs, as_onednn, per_mille, out, threads);           \
    }                                                                                                                 \
    SAGE_EXPORT int sage_event_map_weight_##SUFFIX(                                                                   \
        const F* x, const std::uint64_t* bits, const F* grad, std::int64_t rows, std::int64_t inputs,                 \
        std::int64_t outputs, std::int64_t per_mille, F* weight, int threads) {                                       \
        return bits ? sage::map_weight(sage::Spikes<F>{bits}, grad, rows, inputs, outputs, per_mille, weight, threads)\
                    : sage::map_weight(sage::Reals<F>{x}, grad, rows, inputs, outputs, per_mille, weight, threads);   \
    }

SAGE_EVENTS(float, f32)
SAGE_EVENTS(double, f64)
