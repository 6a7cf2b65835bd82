#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/memory/allocator_config.hpp"

namespace kvsim::test {

/// A slow reference of PyTorch's caching allocator: segments are lists of pieces, and every query
/// visits all of them. Garbage collection and stream delays are not included.
class SlowAllocator {
 public:
  SlowAllocator(std::int64_t total, const AllocatorConfig& config)
      : total_{total}, config_{config} {}

  /// Index of the allocation; nullopt if there is no memory for it.
  std::optional<std::int64_t> malloc(std::int64_t n, std::int32_t stream) {
    const std::int64_t size = rounded_size(config_, n);
    const bool small = size <= kMiB;
    std::optional<Place> at = fit(size, small, stream);
    if (!at) at = grow(size, small, stream);
    if (!at && release_oversize(size, small, stream)) at = grow(size, small, stream);
    if (!at) {
      empty_cache();
      ++retries;
      at = grow(size, small, stream);
    }
    if (!at) return std::nullopt;
    Segment& segment = segments_[at->segment];
    const std::int64_t rest = segment.pieces[at->piece].size - size;
    const bool split =
        small || config_.expandable_segments ? rest >= 512 : size < max_split() && rest > kMiB;
    if (split) {
      segment.pieces[at->piece].size = size;
      segment.pieces.insert(segment.pieces.begin() + static_cast<std::ptrdiff_t>(at->piece) + 1,
                            {rest, kFree, 0});
    }
    segment.pieces[at->piece].state = kUsed;
    segment.pieces[at->piece].id = ++last_id_;
    return last_id_;
  }

  void free(std::int64_t id) {
    for (Segment& segment : segments_) {
      for (Piece& piece : segment.pieces) {
        if (piece.state == kUsed && piece.id == id) {
          piece.state = kFree;
          join(segment);
          return;
        }
      }
    }
  }

  void empty_cache() {
    for (std::size_t s = 0; s < segments_.size();) {
      Segment& segment = segments_[s];
      // Reserved address space without memory stays: only cached blocks are searched.
      const bool cached = segment.pieces[0].state != kNoMemory || segment.pieces.size() > 1;
      if (config_.expandable_segments) unmap(segment);
      const bool gone = cached && segment.pieces.size() == 1 && segment.pieces[0].state != kUsed;
      if (gone) {
        segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(s));
      } else {
        ++s;
      }
    }
  }

  [[nodiscard]] std::int64_t allocated() const { return sum(true, false); }
  [[nodiscard]] std::int64_t reserved() const { return sum(true, true); }
  [[nodiscard]] std::int64_t segments() const {
    return static_cast<std::int64_t>(segments_.size());
  }
  [[nodiscard]] std::int64_t largest_free() const {
    std::int64_t max = 0;
    for (const Segment& segment : segments_) {
      for (const Piece& piece : segment.pieces) {
        if (piece.state == kFree) max = std::max(max, piece.size);
      }
    }
    return max;
  }
  std::int64_t retries = 0;

 private:
  static constexpr std::int64_t kMiB = 1 << 20;
  enum PieceState { kFree, kUsed, kNoMemory };
  struct Piece {
    std::int64_t size;
    PieceState state;
    std::int64_t id;
  };
  struct Segment {
    std::uint64_t address;
    std::int32_t stream;
    bool small;
    std::vector<Piece> pieces;
  };
  struct Place {
    std::size_t segment, piece;
  };

  [[nodiscard]] std::int64_t max_split() const {
    return config_.max_split_size ? config_.max_split_size->count() : INT64_MAX;
  }
  [[nodiscard]] std::int64_t sum(bool used, bool free) const {
    std::int64_t total = 0;
    for (const Segment& segment : segments_) {
      for (const Piece& piece : segment.pieces) {
        if ((used && piece.state == kUsed) || (free && piece.state == kFree)) total += piece.size;
      }
    }
    return total;
  }

  static void join(Segment& segment) {
    for (std::size_t i = 0; i + 1 < segment.pieces.size();) {
      Piece& a = segment.pieces[i];
      const Piece& b = segment.pieces[i + 1];
      if (a.state == b.state && a.state != kUsed) {
        a.size += b.size;
        segment.pieces.erase(segment.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      } else {
        ++i;
      }
    }
  }

  /// All free pieces of the pool and stream, by (size, address).
  [[nodiscard]] std::map<std::pair<std::int64_t, std::uint64_t>, Place> cached(
      bool small, std::int32_t stream) const {
    std::map<std::pair<std::int64_t, std::uint64_t>, Place> out;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      if (segment.small != small || segment.stream != stream) continue;
      std::uint64_t address = segment.address;
      for (std::size_t p = 0; p < segment.pieces.size(); ++p) {
        const Piece& piece = segment.pieces[p];
        if (piece.state == kFree) out[{piece.size, address}] = {s, p};
        address += static_cast<std::uint64_t>(piece.size);
      }
    }
    return out;
  }

  /// Size of the piece including the unmapped address space that follows it.
  [[nodiscard]] std::int64_t potential(const Place& at) const {
    const auto& pieces = segments_[at.segment].pieces;
    const bool grows = at.piece + 1 < pieces.size() && pieces[at.piece + 1].state == kNoMemory;
    return pieces[at.piece].size + (grows ? pieces[at.piece + 1].size : 0);
  }

  [[nodiscard]] std::optional<Place> fit(std::int64_t size, bool small, std::int32_t stream) const {
    const auto all = cached(small, stream);
    auto it = all.lower_bound({size, 0});
    if (it == all.end()) return std::nullopt;
    if (config_.expandable_segments) {
      for (auto next = std::next(it);
           next != all.end() && potential(next->second) < potential(it->second); ++next) {
        it = next;
      }
    }
    const std::int64_t got = it->first.first;
    if (size < max_split() && got >= max_split()) return std::nullopt;
    if (size >= max_split() && got >= size + config_.max_non_split_rounding.count()) {
      return std::nullopt;
    }
    return it->second;
  }

  std::optional<Place> grow(std::int64_t size, bool small, std::int32_t stream) {
    if (config_.expandable_segments) return expand(size, small, stream);
    const std::int64_t wanted = small              ? 2 * kMiB
                                : size < 10 * kMiB ? 20 * kMiB
                                                   : (size + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB;
    if (reserved() + wanted > total_) return std::nullopt;
    segments_.push_back({next_, stream, small, {{wanted, kFree, 0}}});
    next_ += static_cast<std::uint64_t>(wanted);
    return Place{segments_.size() - 1, 0};
  }

  std::optional<Place> expand(std::int64_t size, bool small, std::int32_t stream) {
    const std::int64_t granule = small ? 2 * kMiB : 20 * kMiB;
    // The lowest address with unmapped space in an idle run of at least `size`.
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].small != small || segments_[s].stream != stream) continue;
      const auto& pieces = segments_[s].pieces;
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        if (pieces[p].state != kNoMemory) continue;
        const std::size_t from = p > 0 && pieces[p - 1].state == kFree ? p - 1 : p;
        std::int64_t room = 0;
        for (std::size_t i = from; i < pieces.size() && pieces[i].state != kUsed; ++i) {
          room += pieces[i].size;
        }
        if (room >= size) return fill(s, from, size, granule);
      }
    }
    const std::int64_t space = (total_ + total_ / 8 + granule - 1) / granule * granule;
    segments_.push_back({next_, stream, small, {{space, kNoMemory, 0}}});
    next_ += static_cast<std::uint64_t>(space);
    return fill(segments_.size() - 1, 0, size, granule);
  }

  /// Maps unmapped space, starting at piece `at`, until there is a free piece of `size`.
  std::optional<Place> fill(std::size_t s, std::size_t at, std::int64_t size,
                            std::int64_t granule) {
    auto& pieces = segments_[s].pieces;
    while (pieces[at].state != kFree || pieces[at].size < size) {
      const std::size_t hole = pieces[at].state == kFree ? at + 1 : at;
      const std::int64_t have = pieces[at].state == kFree ? pieces[at].size : 0;
      const std::int64_t wanted = std::min(size - have, pieces[hole].size);
      const std::int64_t mapped = (wanted + granule - 1) / granule * granule;
      if (reserved() + mapped > total_) return std::nullopt;
      if (mapped < pieces[hole].size) {
        const Piece rest{pieces[hole].size - mapped, kNoMemory, 0};
        pieces[hole].size = mapped;
        pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(hole) + 1, rest);
      }
      pieces[hole].state = kFree;
      join(segments_[s]);
    }
    return Place{s, at};
  }

  void unmap(Segment& segment) const {
    const std::int64_t granule = segment.small ? 2 * kMiB : 20 * kMiB;
    std::vector<Piece> out;
    std::int64_t begin = 0;
    for (const Piece& piece : segment.pieces) {
      const std::int64_t end = begin + piece.size;
      const std::int64_t first = (begin + granule - 1) / granule * granule;
      const std::int64_t last = end / granule * granule;
      if (piece.state != kFree || first >= last) {
        out.push_back(piece);
      } else {
        if (first > begin) out.push_back({first - begin, kFree, 0});
        out.push_back({last - first, kNoMemory, 0});
        if (end > last) out.push_back({end - last, kFree, 0});
      }
      begin = end;
    }
    segment.pieces = std::move(out);
    join(segment);
  }

  bool release_oversize(std::int64_t size, bool small, std::int32_t stream) {
    if (!config_.max_split_size || config_.expandable_segments) return false;
    const std::int64_t key = std::max(size, max_split());
    std::vector<std::pair<std::int64_t, std::uint64_t>> oversize;  // ascending
    for (const auto& [where, place] : cached(small, stream)) {
      if (where.first >= max_split()) oversize.push_back(where);
    }
    for (const auto& [bytes, address] : oversize) {
      if (bytes >= key) {
        drop(address);
        return true;
      }
    }
    std::int64_t released = 0;
    for (; released < key && !oversize.empty(); oversize.pop_back()) {
      released += oversize.back().first;
      drop(oversize.back().second);
    }
    return released >= key;
  }
  void drop(std::uint64_t address) {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].address == address) {
        segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(s));
        return;
      }
    }
  }

  std::int64_t total_;
  AllocatorConfig config_;
  std::vector<Segment> segments_;
  std::uint64_t next_ = std::uint64_t{1} << 44;
  std::int64_t last_id_ = 0;
};

}  // namespace kvsim::test
