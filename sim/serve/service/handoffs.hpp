#pragma once

// Internal to sim/serve: transfers of caches from prefilling to decoding replicas.

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

/// Assigns a prefilled request to a decoding replica immediately. Its cache moves as soon as memory
/// is available, in the order of assignment. Until all of it has arrived, the prefilling replica
/// holds it (back-pressure). Moves share links with each other, and with iterations' transfers
/// between GPUs and host if both use the same link. A request continues to decode once its client
/// has the first token, because clients receive tokens in order.
class Handoffs {
 public:
  /// `engines`: decoding replicas, then prefilling ones; all continuous. They must outlive this
  /// object. `unit`: bytes of a pool's unit on all GPUs of a replica. `to_host`: bandwidth of
  /// copies between a GPU and its host.
  Handoffs(const ServeSpec& spec, std::span<const std::unique_ptr<Engine>> engines, Bytes unit,
           BytesPerSecond to_host);

  /// Assigns the requests that engine `prefilling` has prefilled.
  void take(std::size_t prefilling, SimTime now);
  /// Starts moves to engine `decoding` if memory has become free there.
  void move(std::size_t decoding, SimTime now);
  /// Returns the time of the next event.
  [[nodiscard]] std::optional<SimTime> next() const;
  /// Completes the transfers that have arrived by `now`; returns the engines that they left and
  /// reached, in that order.
  [[nodiscard]] std::vector<std::size_t> arrivals(SimTime now);

  /// Returns whether the iteration just formed by engine `i` waits for transfers over a shared
  /// link; without them it ends at `ends`. If it waits, unblocked() reports its end.
  [[nodiscard]] bool waits(std::size_t i, SimTime now, SimTime ends);
  struct Unblocked {
    std::size_t engine = 0;
    SimTime took{};  // time of the iteration from now
  };
  /// Returns the iterations whose transfers have finished since the last call.
  [[nodiscard]] std::vector<Unblocked> unblocked() { return std::exchange(unblocked_, {}); }

  /// Number of requests assigned to an engine.
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
    int transfers = 0;  // in flight
    SimTime took{};
  };
  struct Early {
    SimTime until{};
    RequestId id = 0;
  };
  [[nodiscard]] ContinuousEngine& engine(std::size_t i) { return *continuous_[i]; }
  /// Completes the move of `id` and appends its engines to `touched`.
  void hand_over(RequestId id, std::vector<std::size_t>& touched);

  std::span<const std::unique_ptr<Engine>> decoding_;
  std::vector<ContinuousEngine*> continuous_;
  std::unique_ptr<Router> router_;
  Bytes unit_;
  std::int32_t gpus_;  // of a replica; all move equal shares
  ServiceTopology topology_;
  TransferEngine transfers_;
  std::vector<std::deque<Pending>> pending_;  // [decoding]
  std::vector<Move> moves_;                   // in flight
  std::vector<Early> early_;                  // caches that arrived before the first token
  std::vector<Waiting> waiting_;              // [engines]
  std::vector<Unblocked> unblocked_;
  std::vector<std::int64_t> given_;
  Bytes moved_{};
  std::vector<SimTime> took_, waited_;
};

}  // namespace kvsim
