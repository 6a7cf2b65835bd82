#include "sim/serve/service/serve_run.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/engine/event_queue.hpp"
#include "sim/serve/engine/serve_state.hpp"
#include "sim/serve/engine/slo_watch.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/service/handoffs.hpp"
#include "sim/serve/service/router.hpp"
#include "sim/serve/service/serve_context.hpp"
#include "sim/serve/service/service.hpp"

namespace kvsim {
namespace {

struct Arrival {
  RequestId request = 0;
};
/// A request may leave the API server of a replica.
struct Submission {
  std::int32_t engine = 0;
};
struct IterationEnd {
  std::int32_t engine = 0;
};
struct IterationStart {
  std::int32_t engine = 0;
};
struct TransferEnd {};  // something may have arrived

/// One service: engines driven by one event queue. Decoding engines come first, then engines that
/// only prefill.
class Service {
 public:
  using Queue =
      EventQueue<std::variant<Arrival, Submission, IterationEnd, IterationStart, TransferEnd>>;

  /// `site`: of the same spec; must outlive the service.
  Service(const ServeSpec& spec, const ServeOptions& options, ServeContext& site)
      : spec_{spec},
        options_{options},
        trace_{*spec.requests},
        site_{site},
        is_static_{site.scheduler() == "static"},
        state_{trace_},
        // Each request may arrive, wake all engines, and be refused at the same time.
        queue_{(8 + spec.cluster.replicas + spec.cluster.prefill_replicas) *
                   std::ssize(trace_.requests) +
               1024} {
    state_.factors = options.factors;
    if (spec.calibrated) state_.factors = state_.factors * spec.calibrated->times;
    if (options.attained && !spec.slo.empty()) {
      watch_.emplace(spec.slo, *options.attained, trace_.requests.size());
    }
    const ClusterSpec& cluster = spec.cluster;
    const bool apart = cluster.prefill_replicas > 0;
    if (apart && is_static_) {
      throw InputError{
          "cluster: prefill_replicas: the caches of static batches do not move to other replicas"};
    }
    const std::int32_t all = cluster.replicas + cluster.prefill_replicas;
    for (std::int32_t i = 0; i < all; ++i) {
      roles_.push_back(!apart                 ? ReplicaRole::kWhole
                       : i < cluster.replicas ? ReplicaRole::kDecode
                                              : ReplicaRole::kPrefill);
      engines_.push_back(site_.make_engine(state_, i, options.max_samples, roles_.back()));
      engines_.back()->front_end().change(state_.factors);
    }
    first_door_ = apart ? static_cast<std::size_t>(cluster.replicas) : 0;
    router_ = make_router(cluster.router, cluster.prefix_margin);
    if (apart && site_.cannot_start().empty()) {
      handoffs_ = std::make_unique<Handoffs>(spec, engines_,
                                             site_.pool_unit() * std::int64_t{spec.tensor_parallel},
                                             site_.host_rate());
    }
    requests_.assign(engines_.size(), 0);
    in_flight_.assign(engines_.size(), 0);
    starting_.assign(engines_.size(), false);
    submissions_.resize(engines_.size());
    link_followers();
  }

  ServeResult run() {
    if (!site_.cannot_start().empty()) {
      refuse_all();
      return finish();
    }
    feed();
    while (!queue_.empty()) {
      const auto event = queue_.pop();
      std::visit([&](const auto& e) { handle(e, event.at); }, event.payload);
      if (watch_ && watch_->lost()) {
        stopped_early_ = true;
        break;
      }
    }
    return finish();
  }

 private:
  void link_followers() {
    const std::size_t n = trace_.requests.size();
    const bool any = std::any_of(trace_.requests.begin(), trace_.requests.end(),
                                 [](const Request& r) { return r.after >= 0; });
    if (!any) return;
    first_follower_.assign(n, -1);
    next_follower_.assign(n, -1);
    // Backwards, so that each list is in the workload's order.
    for (std::size_t i = n; i-- > 0;) {
      const std::int32_t after = trace_.requests[i].after;
      if (after < 0) continue;
      next_follower_[i] = std::exchange(first_follower_[static_cast<std::size_t>(after)],
                                        static_cast<RequestId>(i));
    }
    if (trace_.joins.empty()) return;
    joins_ = trace_.joins;
    std::stable_sort(joins_.begin(), joins_.end(),
                     [](const Join& a, const Join& b) { return a.also < b.also; });
    awaits_.assign(n, 1);
    for (const Join& join : joins_) ++awaits_[static_cast<std::size_t>(join.request)];
    released_.assign(n, SimTime{});
  }

  /// Keeps exactly one request that does not wait for another in the event queue.
  void feed() {
    while (next_ < trace_.requests.size() && trace_.requests[next_].after >= 0) ++next_;
    if (next_ == trace_.requests.size()) return;
    queue_.schedule(trace_.requests[next_].arrival, Phase::kArrival,
                    Arrival{static_cast<RequestId>(next_)});
    ++next_;
    ++coming_;
  }

  void handle(const Arrival& e, SimTime now) {
    const auto i = static_cast<std::size_t>(e.request);
    --coming_;
    if (trace_.requests[i].after < 0) feed();
    state_.arrive(e.request, now);
    if (watch_) watch_->arrived(e.request);
    const std::size_t to = first_door_ + router_->choose(e.request, doors());
    ++requests_[to];
    state_.outcomes[i].replica = static_cast<std::int16_t>(to);
    engines_[to]->front_end().arrive(e.request, now, trace_.requests[i].prompt_tokens);
    engines_[to]->promise(1);
    ++coming_;
    leave_front_end(to, now);
  }
  void handle(const Submission& e, SimTime now) {
    const auto to = static_cast<std::size_t>(e.engine);
    submissions_[to].reset();
    leave_front_end(to, now);
  }
  /// Delivers requests that have reached the engine, and schedules an event for the next one; an
  /// early event has no effect.
  void leave_front_end(std::size_t to, SimTime now) {
    FrontEnd& front_end = engines_[to]->front_end();
    while (const auto request = front_end.take(now)) {
      --coming_;
      engines_[to]->promise(-1);
      submit(*request, to, now);
    }
    const auto next = front_end.next();
    if (!next || (submissions_[to] && *submissions_[to] <= *next)) return;
    submissions_[to] = next;
    queue_.schedule(*next, Phase::kArrival, Submission{static_cast<std::int32_t>(to)});
  }
  void submit(RequestId request, std::size_t to, SimTime now) {
    if (handoffs_ == nullptr || decoder(0).serves(request, now)) {
      engines_[to]->arrive(request, now);
    }
    follow(now);
    wake(to, now);
    // Notifies engines that wait for a full batch that no requests are left.
    for (std::size_t k = 0; k < engines_.size() && coming_ == 0; ++k) wake(k, now);
  }
  void handle(const IterationEnd& e, SimTime now) {
    const auto i = static_cast<std::size_t>(e.engine);
    --in_flight_[i];
    engines_[i]->end(now);
    follow(now);
    if (watch_) watch_->look(state_.outcomes, now);
    if (handoffs_ != nullptr) {
      roles_[i] == ReplicaRole::kPrefill ? handoffs_->take(i, now) : handoffs_->move(i, now);
      await_transfers();
    }
    if (starting_[i] || queue_.has_more_now() || (watch_ && watch_->lost())) return wake(i, now);
    handle(IterationStart{e.engine}, now);  // the event that would be next
  }
  void handle(const TransferEnd&, SimTime now) {
    awaited_.reset();
    for (const std::size_t i : handoffs_->arrivals(now)) {
      if (roles_[i] == ReplicaRole::kDecode) handoffs_->move(i, now);
      wake(i, now);
    }
    for (const Handoffs::Unblocked& one : handoffs_->unblocked()) {
      queue_.schedule(now + one.took, Phase::kRelease,
                      IterationEnd{static_cast<std::int32_t>(one.engine)});
    }
    await_transfers();
  }
  /// Schedules an event for the next change on the links; an early event has no effect.
  void await_transfers() {
    const auto next = handoffs_->next();
    if (!next || (awaited_ && *awaited_ <= *next)) return;
    awaited_ = next;
    queue_.schedule(*next, Phase::kTransfer, TransferEnd{});
  }
  void handle(const IterationStart& e, SimTime now) {
    const auto i = static_cast<std::size_t>(e.engine);
    starting_[i] = false;
    const auto ends = engines_[i]->start(now, coming_ > 0);
    follow(now);
    if (!ends) return;  // the next event wakes it
    ++in_flight_[i];
    if (handoffs_ != nullptr && handoffs_->waits(i, now, *ends)) {
      await_transfers();
    } else {
      queue_.schedule(*ends, Phase::kRelease, IterationEnd{e.engine});
    }
    wake(i, now);  // a pipeline has several in flight
  }
  /// Other events at this time are handled before the iteration is formed.
  void wake(std::size_t i, SimTime now) {
    if (in_flight_[i] >= engines_[i]->max_in_flight() || starting_[i]) return;
    starting_[i] = true;
    queue_.schedule(now, Phase::kSchedule, IterationStart{static_cast<std::int32_t>(i)});
  }
  /// Engines that receive arriving requests.
  [[nodiscard]] std::span<const std::unique_ptr<Engine>> doors() const {
    return std::span{engines_}.subspan(first_door_);
  }
  [[nodiscard]] ContinuousEngine& decoder(std::size_t i) {
    return dynamic_cast<ContinuousEngine&>(*engines_[i]);
  }
  /// Releases requests that waited for one that has ended.
  void follow(SimTime now) {
    for (const RequestId id : state_.ended) {
      if (watch_) watch_->ended(id, state_.outcomes[static_cast<std::size_t>(id)]);
      if (first_follower_.empty()) continue;
      // The client has its last token once the API server has sent it.
      const SimTime ended = std::max(now, state_.outcomes[static_cast<std::size_t>(id)].finish);
      if (trace_.shared_list) {
        release_next(ended);
        continue;
      }
      for (RequestId f = first_follower_[static_cast<std::size_t>(id)]; f >= 0;
           f = next_follower_[static_cast<std::size_t>(f)]) {
        release(f, ended);
      }
      auto join = std::lower_bound(joins_.begin(), joins_.end(), id,
                                   [](const Join& one, RequestId of) { return one.also < of; });
      for (; join != joins_.end() && join->also == id; ++join) release(join->request, ended);
    }
    // A static batch still uses sequences that ended before the batch.
    for (std::size_t k = 0; !is_static_ && k < state_.ended.size(); ++k) {
      const auto group = state_.release(state_.ended[k]);
      for (std::size_t i = 0; group && i < engines_.size(); ++i) engines_[i]->release_group(*group);
    }
    state_.ended.clear();
  }

  /// Releases the next request of a shared list, if any is left.
  void release_next(SimTime ended) {
    auto& next = next_of_list_;
    while (next < trace_.requests.size() && trace_.requests[next].after < 0) ++next;
    if (next < trace_.requests.size()) release(static_cast<RequestId>(next++), ended);
  }

  /// One of the requests that `id` waits for has ended; after the last one, the pause of `id`
  /// begins.
  void release(RequestId id, SimTime ended) {
    const auto i = static_cast<std::size_t>(id);
    if (!awaits_.empty()) {
      released_[i] = std::max(released_[i], ended);
      if (--awaits_[i] > 0) return;
      ended = released_[i];
    }
    queue_.schedule(ended + trace_.requests[i].arrival, Phase::kArrival, Arrival{id});
    ++coming_;
  }

  void refuse_all() {
    const std::string why = options_.suggests_gpus
                                ? fmt::format("{}; {}", site_.cannot_start(), site_.would_start())
                                : site_.cannot_start();
    state_.oom(SimTime{}, -1, why, Bytes{}, Bytes{}, site_.resident());
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      state_.outcomes[i].arrival =
          trace_.requests[i].after < 0 ? trace_.requests[i].arrival : SimTime{-1};
      state_.end(static_cast<RequestId>(i), RequestStatus::kRejected, SimTime{});
    }
  }

  /// The peak of a pool plus all other memory, or of batches in PyTorch.
  void put_peak_interval(ServeResult& out) const {
    if (out.pool_interval && out.startup->starts()) {
      const PoolInterval& pool = *out.pool_interval;
      // The actual pool consists of whole blocks.
      out.peak_interval = BytesInterval{.low = std::min(out.peak_hbm, pool.peak_low),
                                        .high = std::max(out.peak_hbm, pool.peak_high)};
      out.peak_basis = pool.basis;
    } else if (const auto ends = memory_ends(*site_.cost_input().stack, stage_gpus(spec_));
               ends && !ends->by_term && out.oom_events == 0 && site_.cannot_start().empty()) {
      const Bytes activations = activations_of(*site_.cost_input().stack, out.peak_owners);
      out.peak_interval =
          peak_interval(*ends, {.peak = out.peak_hbm, .known = out.peak_hbm - activations});
      out.peak_basis = ends->basis;
    }
  }

  ServeResult finish() {
    ServeResult out;
    out.outcomes = std::move(state_.outcomes);
    out.spans = std::move(state_.spans);
    double at_peak = 0, bytes = 0, busy = 0, reservation_wait = 0, link_wait = 0;
    double tokens_full = 0, seqs_full = 0;
    PhaseShares phases;  // seconds, until they are divided
    EngineMemory memory = engines_.front()->memory();
    for (const auto& engine : engines_) {
      const EngineMemory other = engine->memory();
      out.kv_dropped += other.dropped;
      out.kv_reclaimed += other.reclaimed;
      for (const TierResult& tier : other.tiers) {
        const auto known = std::find_if(out.tiers.begin(), out.tiers.end(),
                                        [&](const TierResult& t) { return t.name == tier.name; });
        if (known == out.tiers.end()) {
          out.tiers.push_back(tier);
        } else if (tier.peak > known->peak) {
          *known = tier;
        }
      }
      const std::int64_t max = std::max(memory.peak_blocks, other.peak_blocks);
      if (other.peak > memory.peak) memory = other;
      const auto& allocations = other.allocator;
      if (allocations &&
          (!out.allocator || allocations->end.reserved_peak > out.allocator->end.reserved_peak)) {
        out.allocator = allocations;
        out.reserved_hbm = other.context + allocations->end.reserved_peak;
      }
      memory.peak_blocks = max;
    }
    for (const auto& engine : engines_) {
      out.timeline.push_back(engine->timeline().samples());
      const auto& iterations = engine->timeline().iterations();
      out.iteration_samples.insert(out.iteration_samples.end(), iterations.begin(),
                                   iterations.end());
      at_peak += engine->work().at_peak.count();
      reservation_wait += to_seconds(engine->work().reservation_wait).count();
      bytes += engine->work().bytes;
      busy += to_seconds(engine->work().busy).count();
      link_wait += engine->work().link_wait.count();
      out.offload_fetched += engine->work().fetched;
      out.offload_written += engine->work().written;
      phases.prompts += to_seconds(engine->work().prompts).count();
      phases.mixed += to_seconds(engine->work().mixed).count();
      phases.decodes += to_seconds(engine->work().decodes).count();
      tokens_full += to_seconds(engine->work().tokens_full).count();
      seqs_full += to_seconds(engine->work().seqs_full).count();
      out.iterations += std::ssize(engine->iteration_ends());
      out.iteration_ends.push_back(engine->take_iteration_ends());
      for (std::string& note : engine->notes()) {
        if (std::find(out.notes.begin(), out.notes.end(), note) == out.notes.end()) {
          out.notes.push_back(std::move(note));
        }
      }
    }
    measure(out, spec_.slo);
    add_replicas(out);
    if (!options_.keep_gaps) {
      out.spans = {};
      out.iteration_ends = {};
    }
    const double span = to_seconds(out.makespan).count() * static_cast<double>(engines_.size());
    if (span > 0) {
      out.mfu = at_peak / span;
      out.reservation_wait_share = reservation_wait / span;
      out.mbu = bytes / (span * spec_.gpu->hbm_bandwidth.count());
      out.busy = busy / span;
      out.link_wait = link_wait / span;
      out.phases = {phases.prompts / span, phases.mixed / span, phases.decodes / span};
      out.tokens_full = tokens_full / span;
      out.seqs_full = seqs_full / span;
    }
    out.stopped_early = stopped_early_;
    out.preemptions = state_.preemptions;
    out.oom_events = state_.oom_events;
    out.truncated_requests = state_.truncated_requests;
    out.recomputed_tokens = state_.recomputed;
    out.drafted_tokens = state_.drafted;
    out.accepted_tokens = state_.accepted;
    out.verifications = state_.verifications;
    out.prefix_hit_tokens = state_.prefix_hits;
    out.prefix_query_tokens = state_.prefix_queries;
    out.ooms = std::move(state_.ooms);
    out.kv_capacity_tokens = site_.capacity_tokens();
    out.peak_hbm = memory.peak;
    out.usable_hbm = site_.usable();
    out.peak_owners = memory.peak_owners;
    out.kv_pool = memory.pool;
    out.blocks = memory.blocks;
    out.block_tokens = memory.block_tokens;
    out.peak_blocks = memory.peak_blocks;
    out.startup = site_.startup();
    if (out.startup) {
      out.pool_interval =
          pool_interval(*out.startup, *site_.cost_input().stack, stage_gpus(spec_), spec_.options);
      // A method's rows, or layers that hold every token, have fewer blocks.
      if (out.startup->blocks > 0) {
        const double share =
            static_cast<double>(out.blocks) / static_cast<double>(out.startup->blocks);
        for (std::int64_t* end :
             {&out.pool_interval->blocks_low, &out.pool_interval->blocks_high}) {
          *end = std::llround(static_cast<double>(*end) * share);
        }
      }
    }
    put_peak_interval(out);
    out.scheduler = engines_.front()->describe();
    out.limits = engines_.front()->limits();
    out.calibration_id = site_.calibration().id;
    out.calibration = site_.provenance();
    out.undeclared = site_.undeclared();
    const std::vector<std::string> notes = site_.notes();
    out.notes.insert(out.notes.begin(), notes.begin(), notes.end());
    if (state_.prefix_queries > 0 && state_.prefix_hits == 0) {
      out.no_hits = site_.no_hits_text();
      if (!out.no_hits.empty()) out.notes.push_back(out.no_hits);
    }
    out.notes.insert(out.notes.end(), trace_.notes.begin(), trace_.notes.end());
    return out;
  }

  void add_replicas(ServeResult& out) {
    out.gpus = service_gpus(spec_);
    const double makespan = to_seconds(out.makespan).count();
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      const Engine& engine = *engines_[i];
      const EngineCounts& counts = engine.counts();
      const EngineMemory memory = engine.memory();
      const bool decodes = roles_[i] == ReplicaRole::kDecode;
      out.replicas.push_back(
          {.role = roles_[i],
           .requests = decodes && handoffs_ != nullptr ? handoffs_->given(i) : requests_[i],
           .prompt_tokens = counts.prompt_tokens,
           .preemptions = counts.preemptions,
           .prefix_hit_tokens = counts.prefix_hits,
           .prefix_query_tokens = counts.prefix_queries,
           .iterations = std::ssize(out.iteration_ends[i]),
           .blocks = memory.blocks,
           .peak_blocks = memory.peak_blocks,
           .busy = makespan > 0 ? to_seconds(engine.work().busy).count() / makespan : 0,
           .ttft = {},
           .tpot = {},
           .e2e = {},
           .queue = {}});
    }
    measure_replicas(out);
    if (handoffs_ != nullptr) handoffs_->report(out);
  }

  const ServeSpec& spec_;
  ServeOptions options_;
  const RequestTrace& trace_;
  ServeContext& site_;
  bool is_static_;
  ServeState state_;
  std::optional<SloWatch> watch_;
  bool stopped_early_ = false;
  Queue queue_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<ReplicaRole> roles_;
  std::size_t first_door_ = 0;  // first engine that receives arriving requests; all later ones do
                                // too
  std::unique_ptr<Router> router_;
  std::unique_ptr<Handoffs> handoffs_;  // null: no replica prefills for others
  std::optional<SimTime> awaited_;      // of the next event of a transfer
  std::vector<std::int64_t> requests_;  // received by each engine
  std::vector<std::size_t> in_flight_;  // iterations of each engine
  std::vector<bool> starting_;
  std::vector<std::optional<SimTime>> submissions_;  // the next one of each engine
  std::vector<Join> joins_{};                        // in order of `also`
  std::vector<std::int32_t> awaits_{};  // requests that each still waits for; empty: at most one
  std::vector<SimTime> released_{};     // latest end of these so far
  std::vector<RequestId> first_follower_, next_follower_;  // empty: no request depends on another
  std::size_t next_ = 0;
  std::size_t next_of_list_ = 0;
  std::int64_t coming_ = 0;  // scheduled arrivals
};

constexpr std::int32_t kMaxReplicas = 4096;

void check_cluster(const ServeSpec& spec) {
  const auto within = [](const char* what, std::int64_t value, std::int64_t low) {
    if (value < low || value > kMaxReplicas) {
      throw InputError{fmt::format("cluster: {}: expected an integer in [{}, {}], got {}", what,
                                   low, kMaxReplicas, value)};
    }
  };
  within("replicas", spec.cluster.replicas, 1);
  within("prefill_replicas", spec.cluster.prefill_replicas, 0);
  const std::int32_t experts = spec.options.expert_parallel.value_or(1);
  const std::int32_t each = stage_gpus(spec);
  const std::int32_t groups = std::max(1, experts / std::max(1, each));
  if (spec.cluster.replicas % groups != 0 || spec.cluster.prefill_replicas % groups != 0) {
    throw InputError{fmt::format(
        "cluster: replicas: experts over {} GPUs are shared by {} replicas of {}, got {} and {}",
        experts, groups, each, spec.cluster.replicas, spec.cluster.prefill_replicas)};
  }
  if (spec.nvme.capacity > Bytes{} &&
      !(spec.nvme.read.count() > 0 && spec.nvme.write.count() > 0)) {
    throw InputError{"nvme: expected read and write bandwidths above 0"};
  }
  if (spec.cluster.prefix_margin < 0) {
    throw InputError{fmt::format("cluster: prefix_margin: expected at least 0, got {}",
                                 spec.cluster.prefix_margin)};
  }
  if (!(spec.cluster.link.count() >= 0) || !(spec.cluster.link_latency.count() >= 0)) {
    throw InputError{
        fmt::format("cluster: link: expected a bandwidth and a latency of at least 0, "
                    "got {} B/s and {} s",
                    spec.cluster.link.count(), spec.cluster.link_latency.count())};
  }
}

const ServeSpec& checked(const ServeSpec& spec) {
  KVSIM_CHECK(spec.llm != nullptr && spec.gpu != nullptr && spec.stack != nullptr && spec.requests,
              "a service has no model, GPU, stack or workload");
  check_requests(*spec.requests);
  check_cluster(spec);
  return spec;
}

}  // namespace

ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options, const ServeHooks& hooks) {
  ServeContext site{checked(spec), hooks};
  return Service{spec, options, site}.run();
}

ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options) {
  return run_serve(spec, options, ServeHooks{});
}

struct PreparedService::Impl {
  ServeSpec spec;
  ServeHooks hooks{};
  ServeContext site;

  explicit Impl(ServeSpec of) : spec{std::move(of)}, site{checked(spec), hooks} {}
};

PreparedService::PreparedService(ServeSpec spec) : impl_{std::make_unique<Impl>(std::move(spec))} {}
PreparedService::~PreparedService() = default;

const ServeSpec& PreparedService::spec() const { return impl_->spec; }
const std::optional<EngineStartup>& PreparedService::startup() const {
  return impl_->site.startup();
}
std::optional<MinTimes> PreparedService::min_times(std::int64_t context, std::int64_t max) {
  return impl_->site.min_times(context, max);
}

ServeResult PreparedService::run(std::shared_ptr<const RequestTrace> requests, std::int32_t copies,
                                 const ServeOptions& options) {
  ServeSpec one = impl_->spec;
  KVSIM_CHECK(copies >= 1 && requests->requests.size() == one.requests->requests.size(),
              "{} copies of a service under {} requests, prepared for {}", copies,
              requests->requests.size(), one.requests->requests.size());
  one.requests = std::move(requests);
  one.cluster.replicas *= copies;
  one.cluster.prefill_replicas *= copies;
  return Service{checked(one), options, impl_->site}.run();
}

}  // namespace kvsim
