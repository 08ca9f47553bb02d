// Spikes of any dtype to bits: a value is 1 if its bits are those of the dtype's one, 0 if they are all zero; anything
// else is not a spike and is reported, never rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sage {

using Index = std::ptrdiff_t;
using Word = std::uint64_t;

constexpr Index WORD = 64;

inline Index words(Index bits) { return (bits + WORD - 1) / WORD; }

// Eight bytes of 0 or 1 -> eight bits, the first byte lowest (both x86-64 and arm64 are little-endian).
inline Word eight(const unsigned char* bytes) {
    Word value;
    std::memcpy(&value, bytes, sizeof value);
    return value * 0x0102040810204080u >> 56;
}

// One word from `count` <= 64 values; true if all were spikes.
template <class E, bool Together>
bool pack_word(const unsigned char* from, Index stride, Index count, E one, Word& word) {
    unsigned char bytes[WORD] = {};
    E odd = 0;
    const Index step = Together ? Index(sizeof(E)) : stride * Index(sizeof(E));
    for (Index j = 0; j < count; ++j) {
        E value;
        std::memcpy(&value, from + j * step, sizeof value);
        bytes[j] = value == one;
        odd = E(odd | (value == one ? E(0) : value));
    }
    word = 0;
    for (Index g = 0; g * 8 < count; ++g) word |= eight(bytes + g * 8) << (g * 8);
    return odd == 0;
}

// The usual case, up to 64 values of four bytes that lie together; the processor's own comparisons give bits at once.
inline bool pack_together(const unsigned char* from, Index count, std::uint32_t one, Word& word) {
#if defined(__AVX512F__)
    const __m512i ones = _mm512_set1_epi32(int(one));
    Word any = 0;
    word = 0;
    for (Index i = 0; i < count; i += 16) {
        const __mmask16 here = count - i < 16 ? __mmask16((1u << (count - i)) - 1) : __mmask16(0xFFFF);
        const __m512i values = _mm512_maskz_loadu_epi32(here, from + i * 4);
        word |= Word(_mm512_cmpeq_epi32_mask(values, ones)) << i;
        any |= Word(_mm512_test_epi32_mask(values, values)) << i;
    }
    return any == word;
#elif defined(__AVX2__)
    if (count % 8) return pack_word<std::uint32_t, true>(from, 1, count, one, word);
    const __m256i ones = _mm256_set1_epi32(int(one)), zeros = _mm256_setzero_si256();
    bool good = true;
    word = 0;
    for (Index i = 0; i < count; i += 8) {
        const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 4));
        const auto bits = [](__m256i m) { return Word(unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(m)))); };
        const Word fired = bits(_mm256_cmpeq_epi32(values, ones));
        good &= (fired ^ bits(_mm256_cmpeq_epi32(values, zeros))) == 0xFF;
        word |= fired << i;
    }
    return good;
#else
    return pack_word<std::uint32_t, true>(from, 1, count, one, word);
#endif
}

// A row of `count` values, `stride` apart, into words(count) words.
template <class E>
bool pack_row(const unsigned char* from, Index stride, Index count, Word one, Word* to) {
    bool good = true;
    for (Index first = 0; first < count; first += WORD) {
        const unsigned char* at = from + first * stride * Index(sizeof(E));
        const Index n = count - first < WORD ? count - first : WORD;
        Word& word = to[first / WORD];
        if (stride == 1 && sizeof(E) == 4) good &= pack_together(at, n, std::uint32_t(one), word);
        else if (stride == 1) good &= pack_word<E, true>(at, 1, n, E(one), word);
        else good &= pack_word<E, false>(at, stride, n, E(one), word);
    }
    return good;
}

inline bool pack_row(const unsigned char* from, int size, Index stride, Index count, Word one, Word* to) {
    switch (size) {
        case 1: return pack_row<std::uint8_t>(from, stride, count, one, to);
        case 2: return pack_row<std::uint16_t>(from, stride, count, one, to);
        case 4: return pack_row<std::uint32_t>(from, stride, count, one, to);
        default: return pack_row<std::uint64_t>(from, stride, count, one, to);
    }
}

// 64 x 64 bits in place, rows become columns (Hacker's Delight 7-3).
inline void transpose(Word* block) {
    Word mask = 0x00000000FFFFFFFFu;
    for (int j = 32; j; j >>= 1, mask ^= mask << j)
        for (int base = 0; base < 64; base += 2 * j)
            for (int k = base; k < base + j; ++k) {
                const Word t = ((block[k] >> j) ^ block[k + j]) & mask;
                block[k] ^= t << j;
                block[k + j] ^= t;
            }
}

// The same for few rows: bit by bit, but 64 columns at once.
inline void transpose_few(const Word* block, Index rows, Word* to) {
    for (int k = 0; k < WORD; ++k) to[k] = 0;
    for (Index r = 0; r < rows; ++r)
        for (int k = 0; k < WORD; ++k) to[k] |= (block[r] >> k & 1) << r;
}

// The same for few columns: one column of all 64 rows at once, where the processor can.
inline bool transpose_narrow(const Word* block, Index columns, Word* to) {
#if defined(__AVX512F__)
    if (columns > 32) return false;
    __m512i rows[4];
    for (int i = 0; i < 4; ++i) {
        const __m256i low = _mm512_cvtepi64_epi32(_mm512_loadu_si512(block + 16 * i));
        const __m256i high = _mm512_cvtepi64_epi32(_mm512_loadu_si512(block + 16 * i + 8));
        rows[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    for (Index c = 0; c < columns; ++c) {
        const __m512i bit = _mm512_set1_epi32(int(1u << c));
        to[c] = 0;
        for (int i = 0; i < 4; ++i) to[c] |= Word(_mm512_test_epi32_mask(rows[i], bit)) << (16 * i);
    }
    return true;
#else
    (void)block, (void)columns, (void)to;
    return false;
#endif
}

// rows x columns bits -> columns x rows; each row of either takes whole words.
inline void transpose(const Word* from, Index rows, Index columns, Word* to) {
    Word block[WORD], turned[WORD];
    for (Index r = 0; r < rows; r += WORD)
        for (Index c = 0; c < columns; c += WORD) {
            const Index count = rows - r < WORD ? rows - r : WORD;
            for (Index i = 0; i < WORD; ++i) block[i] = i < count ? from[(r + i) * words(columns) + c / WORD] : 0;
            const Word* found = turned;
            if (count <= 16) transpose_few(block, count, turned);
            else if (!transpose_narrow(block, columns, turned)) transpose(block), found = block;
            for (Index i = 0; i < WORD && c + i < columns; ++i) to[(c + i) * words(rows) + r / WORD] = found[i];
        }
}

// The first `count` <= 64 values of a word. In halves, so that the processor shifts as many at once as it has values of
// four bytes; a whole word by a loop whose length is a constant.
template <class F>
void unpack_word(Word word, Index count, F* __restrict to) {
    if (count < WORD) {
        for (Index j = 0; j < count; ++j) to[j] = F(word >> j & 1);
        return;
    }
    const std::uint32_t halves[2] = {std::uint32_t(word), std::uint32_t(word >> 32)};
    for (int half = 0; half < 2; ++half)
        for (int j = 0; j < 32; ++j) to[half * 32 + j] = F(std::int32_t(halves[half] >> j & 1));
}

}  // namespace sage
