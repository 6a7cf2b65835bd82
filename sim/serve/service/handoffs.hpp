#pragma once

// Inside of sim/serve: caches on their way from replicas that prefill to replicas that decode.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/network/transfer.hpp"
#include "sim/serve/engine/continuous_engine.hpp"
#include "sim/serve/service/router.hpp"
#include "sim/serve/service/service_topology.hpp"

namespace kvsim {

/// A prefilled request is given to a decoding replica at once. Its cache moves as soon as memory is
/// there, in the order of giving (back-pressure: until then, and until all of it has come, the
/// prefilling replica holds it). Moves share links, also with what iterations move between GPUs
/// and host where both go over one. A request decodes on when its client has the first token: a
/// client has tokens in their order.
class Handoffs {
 public:
  /// `engines`: decoding replicas, then those that prefill; all continuous. They outlive this.
  /// `unit`: bytes of a pool's unit on all GPUs of a replica. `to_host`: what copies between a GPU
  /// and its host reach.
  Handoffs(const ServeSpec& spec, std::span<const std::unique_ptr<Engine>> engines, Bytes unit,
           BytesPerSecond to_host);

  /// What engine `prefilling` has prefilled is given away.
  void take(std::size_t prefilling, SimTime now);
  /// Memory may have become free in engine `decoding`.
  void move(std::size_t decoding, SimTime now);
  /// When something happens next.
  [[nodiscard]] std::optional<SimTime> next() const;
  /// Caches that have come by now; the engines they left and came to, in that order.
  [[nodiscard]] std::vector<std::size_t> arrivals(SimTime now);

  /// Whether the iteration that engine `i` has just formed waits for transfers over a shared link;
  /// without them it ends at `ends`. If it waits, unblocked() returns its end.
  [[nodiscard]] bool waits(std::size_t i, SimTime now, SimTime ends);
  struct Unblocked {
    std::size_t engine = 0;
    SimTime took{};  // of the iteration from now on
  };
  /// Iterations whose transfers have come, since the last call.
  [[nodiscard]] std::vector<Unblocked> unblocked() { return std::exchange(unblocked_, {}); }

  /// Requests that were given to an engine.
  [[nodiscard]] std::int64_t given(std::size_t decoding) const { return given_[decoding]; }
  void report(ServeResult& out);

 private:
  struct Pending {
    RequestId id = 0;
    std::size_t from = 0;
    SimTime since{};
  };
  struct Move {
    RequestId id = 0;
    std::size_t from = 0, to = 0;
    SimTime since{};
    Bytes bytes{};
  };
  struct Waiting {
    int transfers = 0;  // under way
    SimTime took{};
  };
  struct Early {
    SimTime until{};
    RequestId id = 0;
  };
  [[nodiscard]] ContinuousEngine& engine(std::size_t i) { return *continuous_[i]; }
  /// The move of `id` is done; its engines are appended to `touched`.
  void hand_over(RequestId id, std::vector<std::size_t>& touched);

  std::span<const std::unique_ptr<Engine>> decoding_;
  std::vector<ContinuousEngine*> continuous_;
  std::unique_ptr<Router> router_;
  Bytes unit_;
  std::int32_t gpus_;  // of a replica, which all move equal shares
  ServiceTopology topology_;
  TransferEngine transfers_;
  std::vector<std::deque<Pending>> pending_;  // [decoding]
  std::vector<Move> moves_;                   // under way
  std::vector<Early> early_;                  // caches that came before the first token did
  std::vector<Waiting> waiting_;              // [engines]
  std::vector<Unblocked> unblocked_;
  std::vector<std::int64_t> given_;
  Bytes moved_{};
  std::vector<SimTime> took_, waited_;
};

}  // namespace kvsim
