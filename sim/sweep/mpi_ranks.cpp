// The only file that uses MPI: processes joined by Boost.MPI, and the distribution of work among
// them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/mpi/collectives.hpp>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>

#include "sim/sweep/join_ranks.hpp"

namespace kvsim {

template <class Archive>
void serialize(Archive& archive, TaskOutcome& outcome, unsigned /*version*/) {
  archive& outcome.task& outcome.kind& outcome.text;
}

namespace {

namespace mpi = boost::mpi;
using Clock = std::chrono::steady_clock;

constexpr int kAsk = 1;   // outcomes of earlier tasks, and a request for more
constexpr int kWork = 2;  // tasks; empty if there are no more
constexpr std::chrono::microseconds kIdle{100};

/// Size of a batch of tasks: about 20 ms of work, so that requests cost little, and small enough at
/// the end that all processes finish simultaneously.
constexpr double kBatchSeconds = 0.02;
constexpr std::size_t kMaxConcurrent = 64;

/// The tasks not yet handed out. Used by both threads of rank 0.
class Queue {
 public:
  Queue(std::span<const std::size_t> tasks, std::size_t at_least, int processes)
      : tasks_{tasks}, at_least_{at_least}, processes_{static_cast<std::size_t>(processes)} {}

  std::vector<std::size_t> take() {
    const std::scoped_lock lock{guard_};
    const std::size_t left = tasks_.size() - next_;
    if (stopped_ || left == 0) return {};
    std::size_t n = 1;
    if (done_ > 0) {
      const double each = seconds_ / static_cast<double>(done_);
      n = each * kMaxConcurrent < kBatchSeconds ? kMaxConcurrent
                                                : static_cast<std::size_t>(kBatchSeconds / each);
    }
    n = std::min(n, left / (4 * processes_));
    n = std::clamp<std::size_t>(std::max(n, at_least_), 1, left);
    const auto from = tasks_.begin() + static_cast<std::ptrdiff_t>(next_);
    next_ += n;
    return {from, from + static_cast<std::ptrdiff_t>(n)};
  }
  /// Records the time of one process for `n` tasks. It determines only the size of the next batch,
  /// never a result.
  void took(std::size_t n, Clock::duration time) {
    const std::scoped_lock lock{guard_};
    done_ += n;
    seconds_ += std::chrono::duration<double>(time).count();
  }
  void stop() {
    const std::scoped_lock lock{guard_};
    stopped_ = true;
  }

 private:
  std::span<const std::size_t> tasks_;
  std::size_t at_least_, processes_;
  std::mutex guard_;
  std::size_t next_ = 0;
  bool stopped_ = false;
  std::size_t done_ = 0;
  double seconds_ = 0;
};

using Run = std::function<std::vector<TaskOutcome>(std::span<const std::size_t>)>;
using Keep = std::function<void(TaskOutcome&&)>;

/// Rank 0 during a sweep: one thread works; this one answers the other processes and keeps results.
class Foreman {
 public:
  Foreman(mpi::communicator& world, Queue& queue, const Keep& keep)
      : world_{world},
        queue_{queue},
        keep_{keep},
        sent_(static_cast<std::size_t>(world.size())),
        working_{world.size() - 1} {}

  void work(const Run& run) {
    std::atomic<bool> over{false};
    const std::jthread worker{[&] {
      for (auto tasks = queue_.take(); !tasks.empty(); tasks = queue_.take()) {
        const auto began = Clock::now();
        std::vector<TaskOutcome> outcomes = run(tasks);
        queue_.took(tasks.size(), Clock::now() - began);
        const std::scoped_lock lock{guard_};
        for (TaskOutcome& outcome : outcomes) mine_.push_back(std::move(outcome));
      }
      over = true;
    }};
    while (true) {
      // Taken before the check, so that nothing happens in between.
      const bool last = over && working_ == 0;
      const bool kept = keep_mine();
      const bool answered = answer_one();
      if (last) break;
      if (!kept && !answered) std::this_thread::sleep_for(kIdle);
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void keep_all(std::deque<TaskOutcome>& outcomes) {
    for (TaskOutcome& outcome : outcomes) {
      if (outcome.kind != TaskOutcome::kDone) queue_.stop();
      if (failure_) continue;
      try {
        keep_(std::move(outcome));
      } catch (...) {
        failure_ = std::current_exception();
        queue_.stop();
      }
    }
  }
  bool keep_mine() {
    std::deque<TaskOutcome> outcomes;
    {
      const std::scoped_lock lock{guard_};
      outcomes.swap(mine_);
    }
    keep_all(outcomes);
    return !outcomes.empty();
  }
  bool answer_one() {
    const auto message = world_.iprobe(mpi::any_source, kAsk);
    if (!message) return false;
    std::vector<TaskOutcome> outcomes;
    world_.recv(message->source(), kAsk, outcomes);
    const auto who = static_cast<std::size_t>(message->source());
    if (!outcomes.empty()) queue_.took(outcomes.size(), Clock::now() - sent_[who]);
    std::deque<TaskOutcome> moved{std::make_move_iterator(outcomes.begin()),
                                  std::make_move_iterator(outcomes.end())};
    if (std::any_of(moved.begin(), moved.end(),
                    [](const TaskOutcome& each) { return each.kind != TaskOutcome::kDone; })) {
      queue_.stop();
    }
    // It continues working while its results are kept.
    const std::vector<std::size_t> next = queue_.take();
    sent_[who] = Clock::now();
    world_.send(message->source(), kWork, next);
    if (next.empty()) --working_;
    keep_all(moved);
    return true;
  }

  mpi::communicator& world_;
  Queue& queue_;
  const Keep& keep_;
  std::vector<Clock::time_point> sent_;
  int working_;  // other processes that have not been notified that no work is left
  std::mutex guard_;
  std::deque<TaskOutcome> mine_;  // of this process, not yet kept
  std::exception_ptr failure_;    // from keeping results
};

class MpiRanks : public Ranks {
 public:
  [[nodiscard]] int rank() const override { return world_.rank(); }
  [[nodiscard]] int size() const override { return world_.size(); }

  [[nodiscard]] std::vector<std::string> all_texts(const std::string& mine) override {
    std::vector<std::string> all;
    mpi::all_gather(world_, mine, all);
    return all;
  }

  void share(std::span<const std::size_t> tasks, std::size_t at_least, const Run& run,
             const Keep& keep) override {
    if (rank() == 0) {
      Queue queue{tasks, at_least, size()};
      Foreman{world_, queue, keep}.work(run);
      return;
    }
    std::vector<TaskOutcome> outcomes;
    while (true) {
      world_.send(0, kAsk, outcomes);
      std::vector<std::size_t> mine;
      world_.recv(0, kWork, mine);
      if (mine.empty()) return;
      outcomes = run(mine);
    }
  }

 private:
  // An exception that propagates to main is not a reason to abort: the other processes are
  // notified.
  mpi::environment environment_{mpi::threading::funneled, /*abort_on_exception=*/false};
  mpi::communicator world_;
};

}  // namespace

bool built_with_mpi() { return true; }

std::unique_ptr<Ranks> join_ranks() { return std::make_unique<MpiRanks>(); }

}  // namespace kvsim
