// Entropy and Gini impurity of attention rows straight from the spikes of query and key, (T, B, H, N, K).
//
// A score is the number of features that fire in both tokens. For a query token the counts of 64 key tokens are added up
// at once: one bit of each of 64 counters to a word, one addition per feature that fires in the query. What a row
// needs is how often each count occurs; exp is a table over counts. There is never a map, nor an exp or log per entry.
#include <atomic>
#include <cmath>
#include <vector>

#include "bits.h"

namespace sage {
namespace {

struct Sizes {
    Index times, batch, heads, tokens, width;
    Index maps() const { return times * batch * heads; }
};

struct Spikes {
    const unsigned char* data;
    const std::int64_t* strides;  // in values, of T, B, H, N, K
    int size;                     // bytes of a value
    Word one;                     // bits of 1 in the dtype

    // Bits of one map: by token (N rows of K bits) or by feature (K rows of N bits); false if a value is not a spike.
    // Values are read in the order in which they lie in memory and turned round as bits.
    bool pack(const Sizes& s, Index map, bool by_token, std::vector<Word>& packed, std::vector<Word>& to) const {
        const Index t = map / (s.batch * s.heads), b = map / s.heads % s.batch, h = map % s.heads;
        const unsigned char* base = data + (t * strides[0] + b * strides[1] + h * strides[2]) * size;
        const bool reads_by_token = strides[4] == 1;
        const Index rows = reads_by_token ? s.tokens : s.width, columns = reads_by_token ? s.width : s.tokens;
        const Index row_stride = strides[reads_by_token ? 3 : 4], stride = strides[reads_by_token ? 4 : 3];
        std::vector<Word>& first = reads_by_token == by_token ? to : packed;
        first.resize(size_t(rows * words(columns)));
        bool good = true;
        for (Index r = 0; r < rows; ++r)
            good &= pack_row(base + r * row_stride * size, size, stride, columns, one, &first[size_t(r * words(columns))]);
        if (reads_by_token != by_token) {
            to.resize(size_t(columns * words(rows)));
            transpose(packed.data(), rows, columns, to.data());
        }
        return good;
    }
};

// exp and what goes with it by the distance of a count from the row's largest exponent, for one temperature.
struct Table {
    bool rising;                           // a larger count weighs more
    std::vector<double> weight, moment, square;

    Table(double factor, Index width) : rising(factor >= 0) {
        for (Index d = 0; d <= width; ++d) {
            const double x = -std::fabs(factor) * double(d), w = std::exp(x);
            weight.push_back(w), moment.push_back(w > 0 ? x * w : 0), square.push_back(w * w);
        }
    }
};

struct Sums {
    double log_z = 0, mean = 0, impurity = 0, product = 1;

    // Z lies in [1, N]: logarithms are taken of products of many of them.
    void add(const Table& table, const Index* histogram, Index lowest, Index highest) {
        double z = 0, u = 0, squares = 0;
        for (Index c = lowest; c <= highest; ++c) {
            const size_t d = size_t(table.rising ? highest - c : c - lowest);
            const double n = double(histogram[c]);
            z += n * table.weight[d], u += n * table.moment[d], squares += n * table.square[d];
        }
        const double inverse = 1 / z;
        mean += u * inverse;
        impurity += 1 - squares * inverse * inverse;
        product *= z;
        if (product > 1e150) flush();
    }

    void flush() {
        log_z += std::log(product);
        product = 1;
    }
};

inline int bit_width(Index value) {
    int bits = 0;
    for (; value; value >>= 1) ++bits;
    return bits;
}

inline Index popcount(Word word) { return __builtin_popcountll(word); }

// histogram[c] = key tokens that share c features with the query token; planes: K rows of N bits.
void count_row(const Index* features, Index fired, const Word* planes, Index tokens, Index* histogram) {
    const int levels = bit_width(fired);
    const Index row = words(tokens);
    for (Index c = 0; c <= fired; ++c) histogram[c] = 0;
    for (Index w = 0; w < row; ++w) {
        Word counter[WORD] = {};  // bit l of every token's count is in counter[l]
        for (Index i = 0; i < fired; ++i) {
            Word carry = planes[features[i] * row + w];
            for (int l = 0; carry && l < levels; ++l) {
                const Word both = counter[l] & carry;
                counter[l] ^= carry;
                carry = both;
            }
        }
        for (Index c = 0; c <= fired; ++c) {
            Word equal = ~Word(0);
            for (int l = 0; l < levels; ++l) equal &= (c >> l & 1) ? counter[l] : ~counter[l];
            histogram[c] += popcount(equal);
        }
    }
    histogram[0] -= row * WORD - tokens;  // bits beyond the last token count nothing
}

struct Worker {  // of one thread
    std::vector<Word> packed, query, planes;
    std::vector<Index> features, histogram;

    bool run(const Sizes& s, const Spikes& q, const Spikes& k, Index map, const std::vector<Table>& tables,
             std::vector<Sums>& sums) {
        if (!q.pack(s, map, true, packed, query) || !k.pack(s, map, false, packed, planes)) return false;
        features.resize(size_t(s.width)), histogram.resize(size_t(s.width + 1));
        for (Index n = 0; n < s.tokens; ++n) {
            const Index fired = active(&query[size_t(n * words(s.width))], s.width);
            count_row(features.data(), fired, planes.data(), s.tokens, histogram.data());
            Index lowest = 0, highest = fired;
            while (!histogram[size_t(lowest)]) ++lowest;
            while (!histogram[size_t(highest)]) --highest;
            for (size_t i = 0; i < tables.size(); ++i) sums[i].add(tables[i], histogram.data(), lowest, highest);
        }
        for (Sums& sum : sums) sum.flush();
        return true;
    }

    Index active(const Word* token, Index width) {
        Index fired = 0;
        for (Index w = 0; w < words(width); ++w)
            for (Word rest = token[w]; rest; rest &= rest - 1)
                features[size_t(fired++)] = w * WORD + __builtin_ctzll(rest);
        return fired;
    }
};

}  // namespace
}  // namespace sage

// entropy, gini: (S, H), sums over rows of log Z - U / Z (natural logarithm, not normalised) and of 1 - sum p^2 for each
// of S factors = scale / temperature. Returns 0, or 1 if some value is not a spike: then the outputs mean nothing.
extern "C" __attribute__((visibility("default"))) int sage_attention(
    const void* q, const std::int64_t* q_strides, int q_size, std::uint64_t q_one, const void* k,
    const std::int64_t* k_strides, int k_size, std::uint64_t k_one, const std::int64_t* shape, const double* factors,
    std::int64_t count, double* entropy, double* gini, int threads) {
    using namespace sage;
    const Sizes s{shape[0], shape[1], shape[2], shape[3], shape[4]};
    const Spikes query{static_cast<const unsigned char*>(q), q_strides, q_size, q_one};
    const Spikes key{static_cast<const unsigned char*>(k), k_strides, k_size, k_one};
    std::vector<Table> tables;
    for (Index i = 0; i < count; ++i) tables.emplace_back(factors[i], s.width);
    std::vector<std::vector<Sums>> sums(size_t(s.maps()));
    std::atomic<bool> binary{true};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Worker worker;
#pragma omp for schedule(static)
        for (Index map = 0; map < s.maps(); ++map) {
            if (!binary.load(std::memory_order_relaxed)) continue;
            std::vector<Sums>& mine = sums[size_t(map)];
            mine.resize(size_t(count));
            if (!worker.run(s, query, key, map, tables, mine)) binary.store(false, std::memory_order_relaxed);
        }
    }
    if (!binary.load()) return 1;
    for (Index i = 0; i < count * s.heads; ++i) entropy[i] = gini[i] = 0;
    for (Index map = 0; map < s.maps(); ++map)  // always in this order
        for (Index i = 0; i < count; ++i) {
            const Sums& found = sums[size_t(map)][size_t(i)];
            entropy[i * s.heads + map % s.heads] += found.log_z - found.mean;
            gini[i * s.heads + map % s.heads] += found.impurity;
        }
    return 0;
}

// Contiguous values -> words(count) words; 1 if some value is not a spike.
extern "C" __attribute__((visibility("default"))) int sage_pack_bits(const void* from, int size, std::uint64_t one,
                                                                    std::int64_t count, std::uint64_t* to,
                                                                    int threads) {
    using namespace sage;
    std::atomic<bool> binary{true};
    const Index piece = WORD * 256;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index first = 0; first < count; first += piece) {
        const Index n = count - first < piece ? count - first : piece;
        const unsigned char* at = static_cast<const unsigned char*>(from) + first * size;
        if (!pack_row(at, size, 1, n, one, to + first / WORD)) binary.store(false, std::memory_order_relaxed);
    }
    return binary.load() ? 0 : 1;
}

#define SAGE_UNPACK(F, SUFFIX)                                                                                        \
    extern "C" __attribute__((visibility("default"))) void sage_unpack_bits_##SUFFIX(                                 \
        const std::uint64_t* from, std::int64_t count, F* to, int threads) {                                          \
        _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)")                            \
        for (std::int64_t word = 0; word < sage::words(count); ++word)                                                \
            for (std::int64_t i = word * 64; i < count && i < word * 64 + 64; ++i) to[i] = F(from[word] >> (i - word * 64) & 1); \
    }

SAGE_UNPACK(float, f32)
SAGE_UNPACK(double, f64)
