// Spikes of any dtype to bits: a value is 1 if its bits are those of the dtype's one, 0 if they are all zero; anything
// else is not a spike and is reported, never rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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
    for (int g = 0; g < 8; ++g) word |= eight(bytes + g * 8) << (g * 8);
    return odd == 0;
}

// A row of `count` values, `stride` apart, into words(count) words.
template <class E>
bool pack_row(const unsigned char* from, Index stride, Index count, Word one, Word* to) {
    bool good = true;
    for (Index first = 0; first < count; first += WORD) {
        const unsigned char* at = from + first * stride * Index(sizeof(E));
        const Index n = count - first < WORD ? count - first : WORD;
        if (stride == 1 && n == WORD) good &= pack_word<E, true>(at, 1, WORD, E(one), to[first / WORD]);
        else good &= pack_word<E, false>(at, stride, n, E(one), to[first / WORD]);
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
        for (int k = 0; k < 64; k = ((k | j) + 1) & ~j) {
            const Word t = ((block[k] >> j) ^ block[k | j]) & mask;
            block[k] ^= t << j;
            block[k | j] ^= t;
        }
}

// rows x columns bits -> columns x rows; each row of either takes whole words.
inline void transpose(const Word* from, Index rows, Index columns, Word* to) {
    Word block[WORD];
    for (Index r = 0; r < rows; r += WORD)
        for (Index c = 0; c < columns; c += WORD) {
            for (Index i = 0; i < WORD; ++i) block[i] = r + i < rows ? from[(r + i) * words(columns) + c / WORD] : 0;
            transpose(block);
            for (Index i = 0; i < WORD && c + i < columns; ++i) to[(c + i) * words(rows) + r / WORD] = block[i];
        }
}

}  // namespace sage
