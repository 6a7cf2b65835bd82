#include "kernels/decode/row_part.hpp"
#include "kernels/merge/merge.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::MergeShape;
using kernels::ResidualShape;

constexpr std::int64_t kWarps = 4;
constexpr std::int64_t kThreads = 32 * kWarps;

constexpr int kMaxPieces = 8;  // of a row of slerp_rows

/// A row in kPieces pieces of a warp's width.
template <class T, int kPieces>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    slerp_kernel(MergeShape shape, float t, Span<const T> a, Span<const T> b, Span<T> direction,
                 Span<float> norm_a, Span<float> norm_b, Span<float> distance) {
  constexpr float kSmall = 1e-4F;
  constexpr float kPi = 3.14159265F;
  constexpr int kPiece = 32 * Part<T>::kPer;
  const std::int64_t n = grid_warp();
  if (n >= shape.merges) return;
  Part<T> x[std::size_t{kPieces}];
  Part<T> y[std::size_t{kPieces}];
  float square_x = 0;
  float square_y = 0;
  float product = 0;
  KVSIM_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    x[p].load(a, n, shape.head_dim, p * kPiece);
    y[p].load(b, n, shape.head_dim, p * kPiece);
    square_x += x[p].dot(x[p]);
    square_y += y[p].dot(y[p]);
    product += x[p].dot(y[p]);
  }
  const float length_x = sqrtf(square_x);
  const float length_y = sqrtf(square_y);
  float from_x = length_x > 0 ? 1.0F : 0.0F;
  float from_y = length_y > 0 ? 1.0F : 0.0F;
  float angle = 0;
  if (length_x > 0 && length_y > 0) {
    const float cosine = fminf(fmaxf(product / (length_x * length_y), -1.0F), 1.0F);
    angle = acosf(cosine);
    if (angle > kPi - kSmall) {
      from_x = 0;
    } else if (angle < kSmall) {
      from_x = 1 - t;
      from_y = t;
    } else {
      from_x = sinf((1 - t) * angle) / sinf(angle);
      from_y = sinf(t * angle) / sinf(angle);
    }
  }
  float square = 0;
  KVSIM_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    x[p].mix(from_x == 0 ? 0.0F : from_x / length_x, from_y == 0 ? 0.0F : from_y / length_y, y[p]);
    square += x[p].dot(x[p]);
  }
  const float length = sqrtf(square);
  KVSIM_UNROLL
  for (int p = 0; p < kPieces; ++p) {
    x[p].mix(length > 0 ? 1 / length : 0.0F, 0, y[p]);
    x[p].store(direction, n, shape.head_dim, p * kPiece);
  }
  if (threadIdx.x % 32 == 0) {
    kv::store(norm_a, n, length_x);
    kv::store(norm_b, n, length_y);
    if (distance.size > 0) kv::store(distance, n, angle / kPi);
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) zip_kernel(MergeShape shape, ZipPairs<T> a) {
  constexpr float kMinLogit = 1e-3F;
  const std::int64_t n = grid_warp();
  if (n >= shape.merges) return;
  const bool leads = threadIdx.x % 32 == 0;
  // Lane 0 reads the pair and its scores, and broadcasts them.
  std::int32_t into = 0;
  std::int32_t from = 0;
  float votes = 0;
  float other_votes = 0;
  float score = 0;
  float other_score = 0;
  if (leads) {
    into = kv::load(a.into, n);
    from = kv::load(a.from, n);
    votes = kv::load(a.votes, into);
    other_votes = kv::load(a.votes, from);
    score = kv::load(a.log_scores, into);
    other_score = kv::load(a.log_scores, from);
  }
  into = __shfl_sync(kAllLanes, into, 0);
  from = __shfl_sync(kAllLanes, from, 0);
  votes = __shfl_sync(kAllLanes, votes, 0);
  other_votes = __shfl_sync(kAllLanes, other_votes, 0);
  score = __shfl_sync(kAllLanes, score, 0);
  other_score = __shfl_sync(kAllLanes, other_score, 0);

  const float log_weight = logf(votes) + score;
  const float other_weight = logf(other_votes) + other_score;
  const float highest = fmaxf(log_weight, other_weight);
  const float w = expf(log_weight - highest);
  const float other_w = expf(other_weight - highest);
  const float sum = w + other_w;
  const float mean_logit = (w * score + other_w * other_score) / sum;
  const float logit = highest + logf(sum) - logf(votes + other_votes);
  const float factor = logit / mean_logit;
  const bool tame =
      (mean_logit >= kMinLogit || mean_logit <= -kMinLogit) && factor >= 0.5F && factor <= 2.0F;
  const float stretch = tame ? factor : 1.0F;
  Part<T> x;
  Part<T> y;
  x.load(a.keys, into, shape.head_dim);
  y.load(a.keys, from, shape.head_dim);
  x.mix(stretch * w / sum, stretch * other_w / sum, y);
  x.store(a.keys, into, shape.head_dim);
  x.load(a.values, into, shape.head_dim);
  y.load(a.values, from, shape.head_dim);
  x.mix(w / sum, other_w / sum, y);
  x.store(a.values, into, shape.head_dim);
  if (leads) {
    kv::store(a.votes, into, (votes + other_votes) * (tame ? 1.0F : expf(logit - mean_logit)));
    kv::store(a.log_scores, into, tame ? logit : mean_logit);
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    residual_kernel(ResidualShape shape, ResidualMerge<T> a) {
  const std::int64_t n = grid_warp();
  if (n >= shape.merges) return;
  const std::int64_t base = n * shape.capacity;
  std::int32_t victim = 0;
  if (threadIdx.x % 32 == 0) victim = kv::load(a.victim, n);
  victim = __shfl_sync(kAllLanes, victim, 0);
  Part<T> key;
  key.load(a.keys, base + victim, shape.head_dim);
  std::int64_t best = 0;
  float highest = __uint_as_float(0xFF800000U);
  Part<T> nearest{};
  for (std::int64_t slot = 0; slot < shape.slots; ++slot) {
    Part<T> candidate;
    candidate.load(a.keys, base + slot, shape.head_dim);
    const float similarity = key.dot(candidate);
    if (similarity > highest) {
      highest = similarity;
      best = slot;
      nearest = candidate;
    }
  }
  std::int32_t count = 0;
  if (threadIdx.x % 32 == 0) count = kv::load(a.counts, n * shape.slots + best);
  count = __shfl_sync(kAllLanes, count, 0);
  const float share = 1.0F / (static_cast<float>(count) + 1.0F);
  nearest.mix(1 - share, share, key);
  nearest.store(a.keys, base + best, shape.head_dim);
  Part<T> value;
  Part<T> other;
  value.load(a.values, base + best, shape.head_dim);
  other.load(a.values, base + victim, shape.head_dim);
  value.mix(1 - share, share, other);
  value.store(a.values, base + best, shape.head_dim);
  if (threadIdx.x % 32 == 0) kv::store(a.counts, n * shape.slots + best, count + 1);
}

Dim3 grid_of(std::int64_t merges) { return {static_cast<std::uint32_t>(ceil_div(merges, kWarps))}; }

constexpr Dim3 kBlock{static_cast<std::uint32_t>(kThreads)};

}  // namespace

template <class T>
void slerp_rows(Stream stream, const MergeShape& s, float t, Span<const T> a, Span<const T> b,
                Span<T> direction, Span<float> norm_a, Span<float> norm_b, Span<float> distance) {
  constexpr std::int64_t kPiece = 32 * kv::Vec16<T>::kSize;
  KVSIM_LAUNCH_CHECK(s.merges >= 1 && s.head_dim >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.head_dim % kv::Vec16<T>::kSize == 0 && s.head_dim <= kMaxPieces * kPiece,
                     "a row is whole 16 bytes, 256 times that at most");
  const std::int64_t elements = s.merges * s.head_dim;
  KVSIM_LAUNCH_CHECK(a.size >= elements && b.size >= elements && direction.size >= elements,
                     "rows are [merges, head_dim]");
  KVSIM_LAUNCH_CHECK(norm_a.size >= s.merges && norm_b.size >= s.merges, "norms are [merges]");
  KVSIM_LAUNCH_CHECK(distance.size == 0 || distance.size >= s.merges, "distances are [merges]");
  const std::int64_t pieces = ceil_div(s.head_dim, kPiece);
  const auto kernel = pieces <= 1   ? slerp_kernel<T, 1>
                      : pieces <= 2 ? slerp_kernel<T, 2>
                      : pieces <= 4 ? slerp_kernel<T, 4>
                                    : slerp_kernel<T, kMaxPieces>;
  launch(stream, "slerp_rows", grid_of(s.merges), kBlock, 0, kernel, s, t, a, b, direction, norm_a,
         norm_b, distance);
}

template <class T>
void zip_merge_pairs(Stream stream, const MergeShape& s, const ZipPairs<T>& a) {
  check_rows<T>(s.merges, s.head_dim);
  KVSIM_LAUNCH_CHECK(a.into.size >= s.merges && a.from.size >= s.merges, "pairs are [merges]");
  KVSIM_LAUNCH_CHECK(
      a.keys.size >= s.entries * s.head_dim && a.values.size >= s.entries * s.head_dim,
      "keys and values are [entries, head_dim]");
  KVSIM_LAUNCH_CHECK(a.votes.size >= s.entries && a.log_scores.size >= s.entries,
                     "votes and log_scores are [entries]");
  launch(stream, "zip_merge_pairs", grid_of(s.merges), kBlock, 0, zip_kernel<T>, s, a);
}

template <class T>
void residual_merge(Stream stream, const ResidualShape& s, const ResidualMerge<T>& a) {
  check_rows<T>(s.merges, s.head_dim);
  KVSIM_LAUNCH_CHECK(s.slots >= 1 && s.capacity > s.slots, "a slot and a victim at least");
  const std::int64_t elements = s.merges * s.capacity * s.head_dim;
  KVSIM_LAUNCH_CHECK(a.keys.size >= elements && a.values.size >= elements,
                     "keys and values are [merges, capacity, head_dim]");
  KVSIM_LAUNCH_CHECK(a.victim.size >= s.merges && a.counts.size >= s.merges * s.slots,
                     "victims are [merges], counts [merges, slots]");
  launch(stream, "residual_merge", grid_of(s.merges), kBlock, 0, residual_kernel<T>, s, a);
}

#define KVSIM_INSTANTIATE(T)                                                               \
  template void slerp_rows(Stream, const MergeShape&, float, Span<const T>, Span<const T>, \
                           Span<T>, Span<float>, Span<float>, Span<float>);                \
  template void zip_merge_pairs(Stream, const MergeShape&, const ZipPairs<T>&);            \
  template void residual_merge(Stream, const ResidualShape&, const ResidualMerge<T>&);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
