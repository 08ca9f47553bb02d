// Entropy and Gini impurity of attention rows straight from the spikes of query and key, (T, B, H, N, K).
//
// A score is the number of features that fire in both tokens. For a query token the counts of 64 key tokens are added up
// at once: one bit of each of 64 counters to a word, one logical addition for eight queries. What a row needs is how
// often each count occurs; exp is a table over counts. There is never a map, nor an exp or log per entry.
#include <algorithm>
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

// Bits of all heads of one image at one time step, token by token: where heads lie together they are read together.
struct Held {
    Index image = -1;
    bool good = false;
    std::vector<Word> rows;
};

struct Spikes {
    const unsigned char* data;
    const std::int64_t* strides;  // in values, of T, B, H, N, K
    int size;                     // bytes of a value
    Word one;                     // bits of 1 in the dtype

    // Bits of one map: by token (N rows of K bits) or by feature (K rows of N bits); false if a value is not a spike.
    // Values are read in the order in which they lie in memory and turned round as bits.
    bool pack(const Sizes& s, Index map, bool by_token, Held& held, std::vector<Word>& packed,
              std::vector<Word>& to) const {
        const bool reads_by_token = strides[4] == 1;
        const Index rows = reads_by_token ? s.tokens : s.width, columns = reads_by_token ? s.width : s.tokens;
        std::vector<Word>& first = reads_by_token == by_token ? to : packed;
        first.resize(size_t(rows * words(columns)));
        const bool together = reads_by_token && strides[2] == s.width;
        if (!(together ? take(s, map, held, first) : read(s, map, rows, columns, first))) return false;
        if (reads_by_token != by_token) {
            to.resize(size_t(columns * words(rows)));
            transpose(packed.data(), rows, columns, to.data());
        }
        return true;
    }

    const unsigned char* at(const Sizes& s, Index image, Index head) const {
        return data + (image / s.batch * strides[0] + image % s.batch * strides[1] + head * strides[2]) * size;
    }

    bool read(const Sizes& s, Index map, Index rows, Index columns, std::vector<Word>& to) const {
        const unsigned char* base = at(s, map / s.heads, map % s.heads);
        const bool by_token = strides[4] == 1;
        const Index row_stride = strides[by_token ? 3 : 4], stride = strides[by_token ? 4 : 3];
        bool good = true;
        for (Index r = 0; r < rows; ++r)
            good &= pack_row(base + r * row_stride * size, size, stride, columns, one, &to[size_t(r * words(columns))]);
        return good;
    }

    bool take(const Sizes& s, Index map, Held& held, std::vector<Word>& to) const {
        const Index image = map / s.heads, all = s.heads * s.width, row = words(all) + 1;  // one more to look ahead into
        if (held.image != image) {
            held.image = image, held.good = true;
            held.rows.assign(size_t(s.tokens * row), 0);
            for (Index n = 0; n < s.tokens; ++n)
                held.good &= pack_row(at(s, image, 0) + n * strides[3] * size, size, 1, all, one, &held.rows[size_t(n * row)]);
        }
        for (Index w = 0; w < words(s.width); ++w) {
            const Index first = map % s.heads * s.width + w * WORD, count = std::min(WORD, s.width - w * WORD);
            const Index shift = first % WORD;
            const Word mask = count == WORD ? ~Word(0) : (Word(1) << count) - 1;
            const Word* from = &held.rows[size_t(first / WORD)];
            for (Index n = 0; n < s.tokens; ++n, from += row)
                to[size_t(n * words(s.width) + w)] = (from[0] >> shift | (shift ? from[1] << (WORD - shift) : 0)) & mask;
        }
        return held.good;
    }
};

// Eight rows at a time, one to a lane. (Vectors of the compiler, GCC's and Clang's alike, on any processor.)
constexpr int ROWS = 8;
typedef Word Lanes __attribute__((vector_size(ROWS * sizeof(Word))));
typedef double Reals __attribute__((vector_size(ROWS * sizeof(double))));

// Weights of the counts 0..K for one temperature, about the middle count, so that neither end leaves the range of double.
struct Table {
    std::vector<double> weight, moment, square;
    double reach;  // of log Z

    Table(double factor, const Sizes& s) : reach(std::fabs(factor) * double(s.width) / 2 + std::log(double(s.tokens))) {
        for (Index c = 0; c <= s.width; ++c) {
            const double x = factor * (double(c) - double(s.width) / 2), w = std::exp(x);
            weight.push_back(w), moment.push_back(x * w), square.push_back(w * w);
        }
    }
};

constexpr double REACH = 330;  // exp(2 * REACH) and products of Z up to it are finite

struct Totals {  // of eight rows and one temperature
    Reals z, u, squares;
};

// What the rows of a map add up to, lane by lane; logarithms are taken of products of as many Z as stay finite.
struct Sums {
    Reals mean = {}, impurity = {}, product = Reals{} + 1;
    double log_z = 0, reach = 0;

    void add(Totals t, Index rows, double each) {
        for (Index j = rows; j < ROWS; ++j) t.z[j] = t.squares[j] = 1, t.u[j] = 0;  // a lane without a row adds nothing
        if (reach + each > 2 * REACH) flush();
        const Reals inverse = 1 / t.z;
        mean += t.u * inverse;
        impurity += 1 - t.squares * inverse * inverse;
        product *= t.z;
        reach += each;
    }

    void flush() {
        double all = 1;
        for (int j = 0; j < ROWS; ++j)
            if (reach * ROWS < 2 * REACH) all *= product[j];
            else log_z += std::log(product[j]);
        log_z += std::log(all);
        product = Reals{} + 1, reach = 0;
    }

    static double sum(const Reals& x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }
};

// sum and carry of three bits, 64 times in every lane
inline void add_bits(Lanes& sum, Lanes& carry, const Lanes& a, const Lanes& b) {
    const Lanes either = sum ^ a;
    carry = (sum & a) | (either & b);
    sum = either ^ b;
}

inline Reals popcount(const Lanes& bits) {
    Word words[ROWS];
    std::memcpy(words, &bits, sizeof words);
    for (int j = 0; j < ROWS; ++j) words[j] = Word(__builtin_popcountll(words[j])) | 0x4330000000000000u;
    Reals shifted;  // 2^52 + count, by its bits: faster than converting
    std::memcpy(&shifted, words, sizeof shifted);
    return shifted - 4503599627370496.0;
}

// Counters of one word of 64 keys for eight queries: bit l of every count is in counter[l].
struct Counters {
    static constexpr int LEVELS = 24;
    Lanes counter[LEVELS];
    int levels;  // counter[l] for l >= levels is all zero and not set

    // query: bits of the features of eight tokens, `words(K)` apart; planes: 64 keys to a feature, `row` apart.
    // The number of features is a multiple of eight: what is beyond K never fires.
    void count(const Word* query, Index token_words, const Word* planes, Index row, Index features) {
        Lanes ones = {}, twos = {}, fours = {};
        levels = 3;
        for (Index f = 0; f < features; f += 8) {
            Lanes x[8], token, two[2], four[2], eight;
            for (int j = 0; j < ROWS; ++j) token[j] = query[j * token_words + f / WORD];
            for (int i = 0; i < 8; ++i) x[i] = (0 - (token >> (f % WORD + i) & 1)) & planes[(f + i) * row];
            for (int half = 0; half < 2; ++half) {
                add_bits(ones, two[0], x[half * 4], x[half * 4 + 1]);
                add_bits(ones, two[1], x[half * 4 + 2], x[half * 4 + 3]);
                add_bits(twos, four[half], two[0], two[1]);
            }
            add_bits(fours, eight, four[0], four[1]);
            add_eight(eight);
        }
        counter[0] = ones, counter[1] = twos, counter[2] = fours;
        while (levels && !any(counter[levels - 1])) --levels;
    }

    void add_eight(Lanes carry) {
        for (int l = 3; l < LEVELS && any(carry); ++l) {
            if (l == levels) counter[levels++] = Lanes{};
            const Lanes both = counter[l] & carry;
            counter[l] ^= carry;
            carry = both;
        }
    }

    static bool any(const Lanes& bits) {
        Word all = 0;
        for (int j = 0; j < ROWS; ++j) all |= bits[j];
        return all != 0;
    }

    // Which keys have exactly this count.
    Lanes equal(Index count) const {
        Lanes found = ~Lanes{};
        for (int l = 0; l < levels; ++l) found &= (count >> l & 1) ? counter[l] : ~counter[l];
        return found;
    }
};

struct Worker {  // of one thread
    std::vector<Word> packed, query, planes;
    Held queries, keys;
    std::vector<Totals> totals;
    std::vector<Sums> sums;

    // found (S, 2): sums over the rows of a map of entropy and impurity; rows (N,): entropy of each row with the first
    // table, unless null.
    bool run(const Sizes& s, const Spikes& q, const Spikes& k, Index map, const std::vector<Table>& tables, double* found,
             double* rows) {
        if (!q.pack(s, map, true, queries, packed, query) || !k.pack(s, map, false, keys, packed, planes)) return false;
        const Index features = (s.width + 7) / 8 * 8, token_words = words(s.width);
        planes.resize(size_t(features * words(s.tokens)), 0);
        for (Index f = s.width; f < features; ++f)
            for (Index w = 0; w < words(s.tokens); ++w) planes[size_t(f * words(s.tokens) + w)] = 0;
        query.resize(size_t((s.tokens + ROWS) * token_words));  // the last eight may be fewer; theirs are not read
        sums.assign(tables.size(), Sums());
        for (Index first = 0; first < s.tokens; first += ROWS) {
            weigh(s, &query[size_t(first * token_words)], features, tables);
            const Index count = s.tokens - first < ROWS ? s.tokens - first : ROWS;
            for (size_t i = 0; i < tables.size(); ++i) sums[i].add(totals[i], count, tables[i].reach);
            for (Index j = 0; rows && j < count; ++j)
                rows[first + j] = std::log(totals[0].z[j]) - totals[0].u[j] / totals[0].z[j];
        }
        for (size_t i = 0; i < tables.size(); ++i) {
            sums[i].flush();
            found[2 * i] = sums[i].log_z - Sums::sum(sums[i].mean), found[2 * i + 1] = Sums::sum(sums[i].impurity);
        }
        return true;
    }

    // Z, U and the sum of squares of eight rows.
    void weigh(const Sizes& s, const Word* tokens, Index features, const std::vector<Table>& tables) {
        const Index row = words(s.tokens);
        totals.assign(tables.size(), Totals{});
        Counters counters;
        for (Index w = 0; w < row; ++w) {
            counters.count(tokens, words(s.width), planes.data() + w, row, features);
            const Word keys = w < row - 1 || s.tokens % WORD == 0 ? ~Word(0) : (Word(1) << s.tokens % WORD) - 1;
            const Index last = (Index(1) << counters.levels) - 1;
            for (Index c = 0; c <= (last < s.width ? last : s.width); ++c) {
                Lanes equal = counters.equal(c);
                if (c == 0) equal &= keys;  // there is nothing beyond the last token
                const Reals n = popcount(equal);
                for (size_t i = 0; i < tables.size(); ++i) {
                    totals[i].z += n * tables[i].weight[size_t(c)];
                    totals[i].u += n * tables[i].moment[size_t(c)];
                    totals[i].squares += n * tables[i].square[size_t(c)];
                }
            }
        }
    }
};

}  // namespace
}  // namespace sage

// entropy, gini: (S, H), sums over rows of log Z - U / Z (natural logarithm, not normalised) and of 1 - sum p^2 for each
// of S factors = scale / temperature. rows: (T, B, H, N), log Z - U / Z of every row with the first factor, or null.
// Returns 0; or 1 if some value is not a spike, or 2 if a factor is so large that Z leaves the range of double: then the
// outputs mean nothing.
extern "C" __attribute__((visibility("default"))) int sage_attention(
    const void* q, const std::int64_t* q_strides, int q_size, std::uint64_t q_one, const void* k,
    const std::int64_t* k_strides, int k_size, std::uint64_t k_one, const std::int64_t* shape, const double* factors,
    std::int64_t count, double* entropy, double* gini, double* rows, int threads) {
    using namespace sage;
    const Sizes s{shape[0], shape[1], shape[2], shape[3], shape[4]};
    const Spikes query{static_cast<const unsigned char*>(q), q_strides, q_size, q_one};
    const Spikes key{static_cast<const unsigned char*>(k), k_strides, k_size, k_one};
    std::vector<Table> tables;
    for (Index i = 0; i < count; ++i) tables.emplace_back(factors[i], s);
    for (const Table& table : tables)
        if (!(table.reach < REACH)) return 2;
    std::vector<double> found(size_t(s.maps() * count * 2));
    std::atomic<bool> binary{true};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Worker worker;
#pragma omp for schedule(static)
        for (Index map = 0; map < s.maps(); ++map) {
            if (!binary.load(std::memory_order_relaxed)) continue;
            double* mine = found.data() + map * count * 2;
            double* each = rows ? rows + map * s.tokens : nullptr;
            if (!worker.run(s, query, key, map, tables, mine, each)) binary.store(false, std::memory_order_relaxed);
        }
    }
    if (!binary.load()) return 1;
    for (Index i = 0; i < count * s.heads; ++i) entropy[i] = gini[i] = 0;
    for (Index map = 0; map < s.maps(); ++map)  // always in this order
        for (Index i = 0; i < count; ++i) {
            entropy[i * s.heads + map % s.heads] += found[size_t((map * count + i) * 2)];
            gini[i * s.heads + map % s.heads] += found[size_t((map * count + i) * 2 + 1)];
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
        if (!binary.load(std::memory_order_relaxed)) continue;
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
            sage::unpack_word(from[word], std::min<sage::Index>(sage::WORD, count - word * 64), to + word * 64);      \
    }

SAGE_UNPACK(float, f32)
SAGE_UNPACK(double, f64)
