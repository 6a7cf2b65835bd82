#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Returns the cumulative frequencies of `symbols` as an adaptive arithmetic coder transmits them:
/// `kinds` 16-bit numbers, strictly ascending from 0, with a total of 2^16; every symbol below
/// `kinds` has a frequency of at least 1. Source: torchac, and
/// lmcache/storage_backend/serde/cachegen_encoder.py, _convert_to_int_and_normalize (LMCache).
/// Throws ContractError if a symbol is not below `kinds`.
[[nodiscard]] std::vector<std::uint32_t> cumulative_frequencies(
    std::span<const std::uint8_t> symbols, std::int32_t kinds);

/// Encodes `symbols` with their frequencies, followed by a last byte.
[[nodiscard]] std::vector<std::uint8_t> arithmetic_encode(
    std::span<const std::uint8_t> symbols, std::span<const std::uint32_t> cumulative);
/// Decodes the first `count` symbols of `code`.
[[nodiscard]] std::vector<std::uint8_t> arithmetic_decode(
    std::span<const std::uint8_t> code, std::size_t count,
    std::span<const std::uint32_t> cumulative);

/// Returns the bits of `symbols` at the entropy of their histogram.
[[nodiscard]] double entropy_bits(std::span<const std::uint8_t> symbols);

}  // namespace kvsim
