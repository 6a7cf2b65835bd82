#include "sim/serve/serve_run.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/engine/event_queue.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/serve_site.hpp"
#include "sim/serve/serve_state.hpp"
#include "sim/serve/service.hpp"

namespace kvsim {
namespace {

struct Arrival {
  RequestId request = 0;
};
struct IterationEnd {
  std::int32_t engine = 0;
};
struct IterationStart {
  std::int32_t engine = 0;
};

/// One service: engines driven by one queue of events.
class Service {
 public:
  using Queue = EventQueue<std::variant<Arrival, IterationEnd, IterationStart>>;

  Service(const ServeSpec& spec, const ServeOptions& options, const ServeHooks& hooks)
      : spec_{spec},
        options_{options},
        trace_{*spec.requests},
        site_{spec, hooks},
        state_{trace_},
        // Each request may come, and be refused, at one moment.
        queue_{8 * std::ssize(trace_.requests) + 1024} {
    engines_.push_back(site_.make_engine(state_, 0, options.max_samples));
    busy_.assign(engines_.size(), false);
    starting_.assign(engines_.size(), false);
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
    // From the last, so that each list stands in the workload's order.
    for (std::size_t i = n; i-- > 0;) {
      const std::int32_t after = trace_.requests[i].after;
      if (after < 0) continue;
      next_follower_[i] = std::exchange(first_follower_[static_cast<std::size_t>(after)],
                                        static_cast<RequestId>(i));
    }
  }

  /// The next request that waits for no other is always in the queue of events, and no more.
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
    Sequence& s = state_.sequences[i];
    s.arrival = now;
    s.rank = state_.arrived++;
    state_.outcomes[i].arrival = now;
    constexpr std::int32_t kEngine = 0;
    engines_[kEngine]->arrive(e.request, now);
    follow(now);
    wake(kEngine, now);
  }
  void handle(const IterationEnd& e, SimTime now) {
    busy_[static_cast<std::size_t>(e.engine)] = false;
    engines_[static_cast<std::size_t>(e.engine)]->end(now);
    follow(now);
    wake(e.engine, now);
  }
  void handle(const IterationStart& e, SimTime now) {
    const auto i = static_cast<std::size_t>(e.engine);
    starting_[i] = false;
    const auto ends = engines_[i]->start(now, coming_ > 0);
    follow(now);
    if (!ends) return;  // what comes next wakes it
    busy_[i] = true;
    queue_.schedule(*ends, Phase::kRelease, IterationEnd{e.engine});
  }
  /// All that comes at this moment comes before the iteration is formed.
  void wake(std::int32_t engine, SimTime now) {
    const auto i = static_cast<std::size_t>(engine);
    if (busy_[i] || starting_[i]) return;
    starting_[i] = true;
    queue_.schedule(now, Phase::kSchedule, IterationStart{engine});
  }
  /// Requests that waited for one that has ended.
  void follow(SimTime now) {
    for (const RequestId id : state_.ended) {
      if (first_follower_.empty()) break;
      for (RequestId f = first_follower_[static_cast<std::size_t>(id)]; f >= 0;
           f = next_follower_[static_cast<std::size_t>(f)]) {
        queue_.schedule(now + trace_.requests[static_cast<std::size_t>(f)].arrival, Phase::kArrival,
                        Arrival{f});
        ++coming_;
      }
    }
    state_.ended.clear();
  }

  void refuse_all() {
    state_.oom(SimTime{}, -1, site_.cannot_start(), Bytes{}, Bytes{}, site_.standing());
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      state_.outcomes[i].arrival =
          trace_.requests[i].after < 0 ? trace_.requests[i].arrival : SimTime{-1};
      state_.end(static_cast<RequestId>(i), RequestStatus::kRejected, SimTime{});
    }
  }

  ServeResult finish() {
    ServeResult out;
    out.outcomes = std::move(state_.outcomes);
    out.spans = std::move(state_.spans);
    double flops = 0, bytes = 0, busy = 0;
    const EngineMemory memory = engines_.front()->memory();
    for (const auto& engine : engines_) {
      out.timeline.push_back(engine->timeline().samples());
      const auto& iterations = engine->timeline().iterations();
      out.iteration_samples.insert(out.iteration_samples.end(), iterations.begin(),
                                   iterations.end());
      flops += engine->work().flops;
      bytes += engine->work().bytes;
      busy += to_seconds(engine->work().busy).count();
      out.iterations += std::ssize(engine->iteration_ends());
      out.iteration_ends.push_back(engine->take_iteration_ends());
      out.notes = engine->notes();
    }
    measure(out, spec_.slo);
    if (!options_.keep_gaps) {
      out.spans = {};
      out.iteration_ends = {};
    }
    const double span = to_seconds(out.makespan).count() * static_cast<double>(engines_.size());
    if (span > 0) {
      const Dtype dtype = activation_dtype(spec_.weight_dtype);
      out.mfu = flops / (span * peak_flops(*spec_.gpu, dtype).count());
      out.mbu = bytes / (span * spec_.gpu->hbm_bandwidth.count());
      out.busy = busy / span;
    }
    out.preemptions = state_.preemptions;
    out.oom_events = state_.oom_events;
    out.recomputed_tokens = state_.recomputed;
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
    out.scheduler = engines_.front()->describe();
    out.calibration_id = site_.calibration().id;
    out.calibration = site_.provenance();
    const std::vector<std::string> notes = site_.notes();
    out.notes.insert(out.notes.begin(), notes.begin(), notes.end());
    out.notes.insert(out.notes.end(), trace_.notes.begin(), trace_.notes.end());
    return out;
  }

  const ServeSpec& spec_;
  ServeOptions options_;
  const RequestTrace& trace_;
  ServeSite site_;
  ServeState state_;
  Queue queue_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<bool> busy_, starting_;
  std::vector<RequestId> first_follower_, next_follower_;  // empty: no request waits for another
  std::size_t next_ = 0;
  std::int64_t coming_ = 0;  // arrivals that are scheduled
};

}  // namespace

ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options, const ServeHooks& hooks) {
  KVSIM_CHECK(spec.llm != nullptr && spec.gpu != nullptr && spec.stack != nullptr && spec.requests,
              "a service lacks its model, GPU, stack or workload");
  check_requests(*spec.requests);
  if (spec.cluster.replicas != 1 || spec.cluster.prefill_replicas != 0 ||
      spec.pipeline_parallel != 1 || spec.speculation.draft != nullptr) {
    throw InputError{
        "one engine is served: replicas, prefill replicas, pipelines and draft models are not"};
  }
  return Service{spec, options, hooks}.run();
}

ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options) {
  return run_serve(spec, options, ServeHooks{});
}

}  // namespace kvsim
