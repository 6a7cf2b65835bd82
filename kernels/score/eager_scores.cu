#include "kernels/basic/rows.hpp"
#include "kernels/score/eager_scores.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::EagerScoreShape;
using kernels::kPrefillTile;

constexpr int kTile = static_cast<int>(kPrefillTile);
constexpr int kThreads = 256;
constexpr int kRowsAThread = kTile * kTile / kThreads;
constexpr std::int64_t kColumnThreads = 128;

/// Rows are padded by one element so that the lanes of a warp read different banks.
template <int kHeadDim>
struct Tiles {
  SharedArray<float, kTile*(kHeadDim + 1)> q, k;
};

/// Loads rows [first, first + kTile) of a head's matrix of `tokens` rows, up to `end`, by all
/// threads.
template <class T, int kHeadDim>
KVSIM_DEVICE void load_tile(Span<const T> from, std::int64_t head, std::int64_t tokens,
                            std::int64_t first, std::int64_t end,
                            SharedArray<float, kTile*(kHeadDim + 1)>& to) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  constexpr int kParts = kHeadDim / kPer;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kParts; i += kThreads) {
    const std::int64_t row = first + i / kParts;
    if (row >= end) continue;
    const auto raw = kv::load16(from, (head * tokens + row) * kHeadDim + i % kParts * kPer);
    for (int j = 0; j < kPer; ++j) {
      kv::store(to, i / kParts * (kHeadDim + 1) + i % kParts * kPer + j, kv::to_float(raw.v[j]));
    }
  }
}

/// Each block handles one tile of keys and one tile of queries of a head; a warp writes rows of 32
/// keys.
template <class T, int kHeadDim>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    matrix_kernel(EagerScoreShape shape, float scale, Span<const T> q, Span<const T> keys,
                  Span<T> logits) {
  auto& tile = kv::shared<Tiles<kHeadDim>>();
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int warp = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t from = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t head = blockIdx.z;
  const std::int64_t end = smaller(row + kTile, shape.rows);
  load_tile<T, kHeadDim>(q, head, shape.tokens, shape.first + row, shape.first + end, tile.q);
  load_tile<T, kHeadDim>(keys, head / shape.group(), shape.tokens, from, shape.tokens, tile.k);
  __syncthreads();
  const std::int64_t key = from + lane;
  if (key >= shape.tokens) return;
  for (int i = 0; i < kRowsAThread; ++i) {
    const int r = warp * kRowsAThread + i;
    if (row + r >= end) break;
    float logit = __uint_as_float(0xFF800000U);
    if (key <= shape.first + row + r) {  // eager code also computes masked values; the result is
                                         // equal
      float dot = 0;
      for (int j = 0; j < kHeadDim; ++j) {
        dot +=
            kv::load(tile.q, r * (kHeadDim + 1) + j) * kv::load(tile.k, lane * (kHeadDim + 1) + j);
      }
      kv::flops(2 * kHeadDim);
      logit = scale * dot;
    }
    kv::store(logits, (head * shape.rows + row + r) * shape.tokens + key, kv::from_float<T>(logit));
  }
}

/// One thread per column of a stored head.
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kColumnThreads)
    column_kernel(EagerScoreShape shape, float log_decay, bool accumulates,
                  Span<const float> probabilities, Span<float> mass) {
  const std::int64_t kv_head = blockIdx.y;
  const std::int64_t i = grid_thread();
  if (i >= shape.tokens) return;
  float sum = accumulates ? kv::load(mass, kv_head * shape.tokens + i) : 0.0F;
  for (std::int64_t g = 0; g < shape.group(); ++g) {
    const std::int64_t head = kv_head * shape.group() + g;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const float weight = expf(static_cast<float>(shape.tokens - 1 - shape.first - r) * log_decay);
      sum += weight * kv::load(probabilities, (head * shape.rows + r) * shape.tokens + i);
    }
  }
  kv::store(mass, kv_head * shape.tokens + i, sum);
}

void check(const EagerScoreShape& s) {
  KVSIM_LAUNCH_CHECK(s.n_heads >= 1 && s.n_kv_heads >= 1 && s.tokens >= 1 && s.rows >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.n_heads % s.n_kv_heads == 0, "n_heads is a multiple of n_kv_heads");
  KVSIM_LAUNCH_CHECK(s.head_dim == 64 || s.head_dim == 128, "head_dim is 64 or 128");
  KVSIM_LAUNCH_CHECK(s.first >= 0 && s.first < s.tokens, "first is a token");
}

}  // namespace

template <class T>
void score_matrix(Stream stream, const EagerScoreShape& s, float scale, Span<const T> q,
                  Span<const T> keys, Span<T> logits) {
  check(s);
  KVSIM_LAUNCH_CHECK(s.first + s.rows <= s.tokens, "the rows are the prompt's");
  KVSIM_LAUNCH_CHECK(q.size >= s.n_heads * s.tokens * s.head_dim &&
                         keys.size >= s.n_kv_heads * s.tokens * s.head_dim,
                     "q is [n_heads, tokens, head_dim], keys [n_kv_heads, tokens, head_dim]");
  KVSIM_LAUNCH_CHECK(logits.size >= s.n_heads * s.rows * s.tokens,
                     "logits are [n_heads, rows, tokens]");
  const Dim3 grid{static_cast<std::uint32_t>(ceil_div(s.tokens, kTile)),
                  static_cast<std::uint32_t>(ceil_div(s.rows, kTile)),
                  static_cast<std::uint32_t>(s.n_heads)};
  if (s.head_dim == 64) {
    launch(stream, "score_matrix", grid, {kThreads}, 0, matrix_kernel<T, 64>, s, scale, q, keys,
           logits);
  } else {
    launch(stream, "score_matrix", grid, {kThreads}, 0, matrix_kernel<T, 128>, s, scale, q, keys,
           logits);
  }
}

void column_sums(Stream stream, const EagerScoreShape& s, float decay, bool accumulates,
                 Span<const float> probabilities, Span<float> mass) {
  check(s);
  KVSIM_LAUNCH_CHECK(decay > 0 && decay <= 1, "decay is in (0, 1]");
  KVSIM_LAUNCH_CHECK(
      probabilities.size >= s.n_heads * s.rows * s.tokens && mass.size >= s.n_kv_heads * s.tokens,
      "probabilities are [n_heads, rows, tokens], mass [n_kv_heads, tokens]");
  launch(stream, "column_sums",
         {static_cast<std::uint32_t>(ceil_div(s.tokens, kColumnThreads)),
          static_cast<std::uint32_t>(s.n_kv_heads)},
         {static_cast<std::uint32_t>(kColumnThreads)}, 0, column_kernel, s, logf(decay),
         accumulates, probabilities, mass);
}

template <class T>
void eager_scores(Stream stream, const EagerScoreShape& s, const EagerScores<T>& a) {
  check(s);
  EagerScoreShape chunk = s;
  for (chunk.first = s.first; chunk.first < s.tokens; chunk.first += s.rows) {
    const std::int64_t left = s.tokens - chunk.first;
    chunk.rows = left < s.rows ? left : s.rows;
    score_matrix<T>(stream, chunk, a.scale, a.q, a.keys, a.logits);
    softmax_rows<T>(stream, {.rows = s.n_heads * chunk.rows, .width = s.tokens}, a.logits,
                    a.probabilities);
    column_sums(stream, chunk, a.decay, chunk.first > s.first, a.probabilities, a.mass);
  }
}

#define KVSIM_INSTANTIATE(T)                                                                      \
  template void score_matrix(Stream, const EagerScoreShape&, float, Span<const T>, Span<const T>, \
                             Span<T>);                                                            \
  template void eager_scores(Stream, const EagerScoreShape&, const EagerScores<T>&);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
