#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"

namespace kvsim {
namespace {

constexpr std::array<Coefficient, 13> kCoefficients{{
    {"fixed_us", "us", "launches and other fixed costs", 9, 0.5, 60},
    {"mma_share", "1", "of the tensor cores' rate while a tile multiplies", 0.95, 0.2, 1},
    {"softmax_ps", "ps",
     "time of one SM at 1.8 GHz for a query-key pair, in addition to the products", 24, 1, 200},
    {"tile_us", "us",
     "time of one SM at 1.8 GHz for a tile of queries: loads, first and last steps", 1.5, 0.01, 20},
    {"column_latency", "1",
     "loop over the columns of a single tile, as a share of the time when all SMs are busy", 0.9,
     0.15, 4},
    {"tail", "1", "share of the longest tile that the last wave adds", 0.4, 0, 2},
    {"packed_heads", "1",
     "1: the query heads of a KV head share a tile; 0: each has a separate tile", 0.8, 0, 1},
    {"split", "1", "1: few tiles over many columns are split, their parts combined through memory",
     0.3, 0, 1},
    {"hbm_share", "1", "of HBM bandwidth", 0.8, 0.15, 1.2},
    {"l2_gbps", "GB/s", "L2 bandwidth of an SM", 30, 3, 300},
    {"kv_write", "1", "weight of the traffic of storing new keys and values", 0.8, 0.01, 10},
    {"token_us", "us",
     "time of one SM at 1.8 GHz to store one token's keys and values, a block of 512 threads", 0.4,
     0.001, 5},
    {"power_cap", "1", "slowdown of calls far above 8 ms, when the clock drops", 0.1, 0, 1},
}};

constexpr double kTileRows = 128;    // queries per tile
constexpr double kTileColumns = 64;  // keys per step of a tile
constexpr double kBlockThreads = 512;
constexpr double kSustainedUs = 8000;
constexpr double kClock = 1.8e9;  // Hz; reference clock of the times per SM

double squared(double x) { return x * x; }
double eighth_power(double x) { return squared(squared(squared(x))); }
double eighth_root(double x) { return std::sqrt(std::sqrt(std::sqrt(x))); }

/// Returns the SM clock in Hz from the fp32 rate: two operations per lane and clock, with 128 lanes
/// per SM, or 64 on data-center chips before Hopper.
double sm_clock(const KernelGpu& gpu) {
  const double flops = gpu.fp32_flops / gpu.sms;
  return flops / (flops > 256e9 ? 256 : 128);
}

/// Tiles for one way of filling them, in SM time.
struct Tiling {
  double total_us = 0;    // over all tiles
  double longest_us = 0;  // the last rows' tile, which reads every column
  double tiles = 0;
};

/// `units` sequences × heads, each with `rows` queries, `group` of which share a position.
Tiling tile(double units, double rows, double group, double tokens, double prefix, double columns,
            double parts, double split, double tile_us, double column_us) {
  const double tiles = std::ceil(rows / kTileRows);
  const double step = kTileRows / group;  // positions per tile
  // The causal staircase: tile i of a unit reads prefix + (i + 1) step keys, the last one all;
  // steps that are not whole column tiles waste half a column tile each on average.
  const double seen = std::max(step * tiles * (tiles - 1) / 2 + tokens +
                                   tiles * (prefix + std::max(0.0, kTileColumns - step) / 2),
                               tiles * kTileColumns);
  const double whole = columns * kTileColumns;
  const double part = std::ceil(columns / parts) * kTileColumns;
  return {.total_us = units * (tiles * tile_us + seen * column_us),
          .longest_us = tile_us + (whole + (part - whole) * split) * column_us,
          .tiles = units * tiles};
}

/// FlashAttention over tiles of 128 queries: the SMs process the tiles of all sequences and heads,
/// longest first; then the traffic of Q, K, V and O that does not overlap at the ends of the tiles;
/// then the kernel that stores the new keys and values.
double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<PrefillAttentionCall>(any);
  const double slow = kClock / sm_clock(gpu);
  const auto [fixed_us, mma_share, softmax_ps, tile_us, column_latency, tail, packed_heads, split,
              hbm_share, l2_gbps, kv_write, token_us, power_cap] =
      std::array<double, 13>{c[0], c[1], slow * c[2], slow * c[3], c[4],         c[5], c[6],
                             c[7], c[8], c[9],        c[10],       slow * c[11], c[12]};
  const double batch = call.batch, tokens = call.new_tokens, prefix = call.prefix;
  const double heads = call.q_heads, kv_heads = call.kv_heads, dim = call.head_dim;
  const double group = heads / kv_heads;
  const double columns = std::ceil((prefix + tokens) / kTileColumns);

  // FlashAttention splits the columns if the tiles of one sequence would leave a fifth of the SMs
  // idle and there are more than four column tiles (of 128 since Hopper). There is at least one
  // part, whose result goes through memory in fp32, even if the batch fills the GPU.
  const double sequence_tiles = std::ceil(tokens * heads / kTileRows);
  const double split_columns = gpu.hopper_or_later ? 2 * kTileColumns : kTileColumns;
  const bool splits =
      sequence_tiles < 0.8 * gpu.sms && std::ceil((prefix + tokens) / split_columns) > 4;
  const double parts = splits ? std::clamp(std::floor(gpu.sms / (batch * sequence_tiles)), 1.0,
                                           std::min(columns, 128.0))
                              : 1;

  const double column_us =
      kTileRows *
      (4e6 * dim * gpu.sms / (gpu.peak(format.compute) * mma_share) + 1e-6 * softmax_ps);
  const Tiling alone =
      tile(batch * heads, tokens, 1, tokens, prefix, columns, parts, split, tile_us, column_us);
  const Tiling packed = tile(batch * kv_heads, tokens * group, group, tokens, prefix, columns,
                             parts, split, tile_us, column_us);
  const auto mixed = [share = packed_heads](double a, double b) { return a + (b - a) * share; };
  const double longest = mixed(alone.longest_us, packed.longest_us);
  const double waves = mixed(alone.tiles, packed.tiles) / gpu.sms;
  const double busy = mixed(alone.total_us, packed.total_us) / gpu.sms +
                      tail * longest * std::max(0.0, 1 - 1 / (waves * waves));
  const double lone = column_latency * longest;
  const double larger = std::max(busy, lone);
  const double compute = larger * eighth_root(1 + eighth_power(std::min(busy, lone) / larger));

  const double partial = splits ? 8 * batch * tokens * heads * dim * parts * split : 0;
  const double bytes = 2 * batch * tokens * heads * dim * format.operand_bytes +
                       2 * batch * (prefix + tokens) * kv_heads * dim * format.stored_bytes +
                       partial;
  const double over = squared(bytes / gpu.l2);
  const double missing = over / (1 + over);
  const double byte_us =
      1e6 * missing / (gpu.bandwidth * hbm_share) + (1 - missing) / (1e3 * l2_gbps * gpu.sms);

  // One block per token with as many threads as the token's keys have elements, up to 512: blocks
  // with fewer threads finish sooner, and more of them share an SM.
  const double threads = std::min(1.0, kv_heads * dim / kBlockThreads);
  const double blocks_us = batch * tokens * token_us / gpu.sms * threads * std::sqrt(threads);
  const double stored_us = kv_write * byte_us * 2 * batch * tokens * kv_heads * dim *
                           (format.operand_bytes + format.stored_bytes);
  const double store = std::sqrt(squared(blocks_us) + squared(stored_us));

  const double us = fixed_us + compute + bytes * byte_us + store;
  return us * (1 + power_cap * us / (us + kSustainedUs));
}

}  // namespace

const KernelForm& prefill_attention_form() {
  static constexpr KernelForm kForm{.id = "prefill-attention",
                                    .op = KernelOp::kPrefillAttention,
                                    .coefficients = kCoefficients,
                                    .microseconds = microseconds};
  return kForm;
}

}  // namespace kvsim
