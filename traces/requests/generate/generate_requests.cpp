#include "traces/requests/generate/generate_requests.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "traces/requests/formats/context_ids.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/random_stream.hpp"

namespace kvsim {
namespace {

SimTime pause_of(const PauseSpec& pause, RandomStream& stream) {
  if (!pause.exponential) return to_sim_time(pause.mean);
  return to_sim_time(pause.mean * stream.exponential());
}

/// Arrival times of an open loop; each call returns the next.
class ArrivalTimes {
 public:
  ArrivalTimes(const ArrivalSpec& spec, std::uint64_t seed)
      : spec_{spec}, stream_{seed, "arrivals"} {
    KVSIM_CHECK(spec.rate > 0.0 && spec.cv > 0.0, "rate {}, CV {}", spec.rate, spec.cv);
  }
  SimTime next() {
    switch (spec_.kind) {
      case ArrivalKind::kFixed:
        at_ = static_cast<double>(count_) / spec_.rate;
        break;
      case ArrivalKind::kPoisson:
        at_ += stream_.exponential() / spec_.rate;
        break;
      case ArrivalKind::kGamma:
        at_ += stream_.gamma(1.0 / (spec_.cv * spec_.cv)) / spec_.rate;
        break;
      case ArrivalKind::kClosed:
        KVSIM_CHECK(false, "a closed loop has no arrival times");
    }
    ++count_;
    if (at_ > 1.0 * kLongestTrace) {
      throw InputError{"arrivals", fmt::format("times within {} s", kLongestTrace),
                       fmt::format("request {} at {:.6g} s", count_, at_)};
    }
    return to_sim_time(Seconds{at_});
  }

 private:
  ArrivalSpec spec_;
  RandomStream stream_;
  double at_ = 0.0;
  std::int64_t count_ = 0;
};

/// Returns the time of the first request of user `user` in a closed loop.
SimTime ramp_time(const ArrivalSpec& spec, std::int64_t user) {
  return to_sim_time(spec.ramp * (static_cast<double>(user) / spec.users));
}

/// Draws one number from each of `count` equal parts of (0, 1), in random order.
std::vector<double> one_of_each_part(std::int64_t count, RandomStream& stream) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back((static_cast<double>(i) + stream.uniform()) / static_cast<double>(count));
  }
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(out[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(stream.below(i + 1))]);
  }
  return out;
}

/// A conversation in progress.
struct Conversation {
  std::int32_t last = -1;  // index of its latest request; -1: none yet
  std::int32_t turns_left = 0;
  std::int64_t context = 0;  // tokens before those that the next turn adds
  std::int32_t number = -1;
  std::vector<std::uint64_t> blocks{};
};

class Generator {
 public:
  Generator(const GeneratorSpec& spec, std::uint64_t seed)
      : spec_{spec},
        seed_{seed},
        prompts_{spec.prompt_tokens},
        outputs_{spec.output_tokens},
        prompt_stream_{seed, "prompt_tokens"},
        output_stream_{seed, "output_tokens"},
        pair_stream_{seed, "lengths"},
        turn_stream_{seed, "turns"},
        think_stream_{seed, "think"},
        prefix_stream_{seed, "shared_prefix"} {
    KVSIM_CHECK(spec.count >= 1 && spec.count < std::numeric_limits<std::int32_t>::max(),
                "{} requests", spec.count);
    trace_.name = spec.name;
    trace_.format = "generated";
    trace_.requests.reserve(static_cast<std::size_t>(spec.count));
    if (spec.sessions) turns_.emplace(spec.sessions->turns);
    trace_.conversations = spec.sessions.has_value();
    if (spec.sessions || spec.shared_prefix) ids_.emplace(trace_, spec.prefix_block);
    if (spec.shared_prefix) make_prefixes(*spec.shared_prefix);
    if (spec.stratified_lengths) stratify();
  }

  RequestTrace run() {
    if (spec_.arrivals.kind == ArrivalKind::kClosed)
      closed_loop();
    else
      open_loop();
    check_requests(trace_);
    return std::move(trace_);
  }

 private:
  void make_prefixes(const SharedPrefixSpec& prefix) {
    KVSIM_CHECK(prefix.prompts >= 1 && prefix.tokens >= 0, "shared prefixes");
    which_.emplace(LengthSpec{
        .kind = LengthKind::kZipf, .low = 1, .high = prefix.prompts, .exponent = prefix.exponent});
    const std::int32_t whole = prefix.tokens / spec_.prefix_block;
    prefixes_.resize(static_cast<std::size_t>(prefix.prompts));
    for (auto& blocks : prefixes_) {
      for (std::int32_t i = 0; i < whole; ++i) blocks.push_back(ids_->fresh());
    }
    if (prefix.tokens % spec_.prefix_block != 0) {
      trace_.notes.push_back(fmt::format(
          "of each shared prompt of {} tokens, only {} are shared, in whole blocks of {}",
          prefix.tokens, whole * spec_.prefix_block, spec_.prefix_block));
    }
  }

  void begin(Conversation& talk) {
    talk = Conversation{.last = talk.last,
                        .turns_left = turns_ ? turns_->draw(turn_stream_) : 1,
                        .number = conversations_++};
    if (spec_.shared_prefix) {
      const double u = prefix_stream_.uniform();
      const std::int32_t which = which_->draw(prefix_stream_);
      if (u < spec_.shared_prefix->share) {
        talk.context = spec_.shared_prefix->tokens;
        talk.blocks = prefixes_[static_cast<std::size_t>(which - 1)];
      }
    }
  }

  /// Adds the conversation's next request, which arrives at `arrival`, or that long after `after`
  /// ends.
  void add(Conversation& talk, SimTime arrival, std::int32_t after, std::int32_t session) {
    Request r;
    r.arrival = arrival;
    r.after = after;
    r.session = session;
    const LengthPairs::Pair drawn = lengths();
    const std::int64_t prompt = talk.context + drawn.prompt;
    if (prompt > kMaxTokens) {
      throw InputError{"sessions", fmt::format("contexts of at most {} tokens", kMaxTokens),
                       fmt::format("{}", prompt)};
    }
    r.prompt_tokens = static_cast<std::int32_t>(prompt);
    r.output_tokens = drawn.output;
    if (ids_) ids_->turn(r, talk.blocks);
    talk.context = prompt + r.output_tokens;
    --talk.turns_left;
    talk.last = static_cast<std::int32_t>(trace_.requests.size());
    trace_.requests.push_back(r);
  }

  void stratify() {
    if (!spec_.lengths) {
      prompt_parts_ = one_of_each_part(spec_.count, prompt_stream_);
      output_parts_ = one_of_each_part(spec_.count, output_stream_);
      return;
    }
    prompt_parts_ = one_of_each_part(spec_.count, pair_stream_);
    auto& rows = spec_.lengths->rows;
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return std::int64_t{a.prompt} + a.output < std::int64_t{b.prompt} + b.output;
    });
  }

  LengthPairs::Pair lengths() {
    const std::size_t next = trace_.requests.size();
    if (spec_.stratified_lengths && spec_.lengths) {
      const auto& rows = spec_.lengths->rows;
      const auto row =
          static_cast<std::size_t>(prompt_parts_[next] * static_cast<double>(rows.size()));
      return rows[std::min(row, rows.size() - 1)];
    }
    if (spec_.stratified_lengths) {
      return {.prompt = prompts_.at(prompt_parts_[next]),
              .output = outputs_.at(output_parts_[next])};
    }
    if (!spec_.lengths) {
      return {.prompt = prompts_.draw(prompt_stream_), .output = outputs_.draw(output_stream_)};
    }
    const auto& rows = spec_.lengths->rows;
    return rows[static_cast<std::size_t>(pair_stream_.below(std::ssize(rows)))];
  }

  [[nodiscard]] bool wanted() const { return std::ssize(trace_.requests) < spec_.count; }

  void open_loop() {
    ArrivalTimes times{spec_.arrivals, seed_};
    while (wanted()) {
      Conversation talk;
      begin(talk);
      const std::int32_t session = spec_.sessions ? talk.number : -1;
      add(talk, times.next(), -1, session);
      while (talk.turns_left > 0 && wanted()) {
        add(talk, pause_of(spec_.sessions->think, think_stream_), talk.last, session);
      }
    }
  }

  void closed_loop() {
    const std::int64_t users = std::min<std::int64_t>(spec_.arrivals.users, spec_.count);
    trace_.shared_list = spec_.arrivals.shared;
    std::vector<Conversation> talks(static_cast<std::size_t>(users));
    for (std::int64_t user = 0; wanted(); user = (user + 1) % users) {
      Conversation& talk = talks[static_cast<std::size_t>(user)];
      const bool first = talk.last < 0;
      const bool goes_on = talk.turns_left > 0;
      if (!goes_on) begin(talk);
      const SimTime when =
          first ? ramp_time(spec_.arrivals, user)
                : pause_of(goes_on ? spec_.sessions->think : spec_.think, think_stream_);
      const auto session = spec_.sessions       ? talk.number
                           : trace_.shared_list ? -1
                                                : static_cast<std::int32_t>(user);
      add(talk, when, talk.last, session);
    }
  }

  GeneratorSpec spec_;
  std::uint64_t seed_;
  LengthSampler prompts_, outputs_;
  std::optional<LengthSampler> turns_{}, which_{};
  RandomStream prompt_stream_, output_stream_, pair_stream_, turn_stream_, think_stream_,
      prefix_stream_;
  RequestTrace trace_{};
  std::optional<ContextIds> ids_{};
  std::vector<std::vector<std::uint64_t>> prefixes_{};
  std::vector<double> prompt_parts_{}, output_parts_{};  // by request, if stratified
  std::int32_t conversations_ = 0;
};

}  // namespace

RequestTrace generate_requests(const GeneratorSpec& spec, std::uint64_t seed) {
  return Generator{spec, seed}.run();
}

void replace_arrivals(RequestTrace& trace, const ArrivalSpec& arrivals, const PauseSpec& think,
                      std::uint64_t seed) {
  auto& requests = trace.requests;
  if (arrivals.kind != ArrivalKind::kClosed) {
    ArrivalTimes times{arrivals, seed};
    for (Request& r : requests) {
      if (r.after < 0) r.arrival = times.next();
    }
  } else {
    const bool any_waits = std::any_of(requests.begin(), requests.end(),
                                       [](const Request& r) { return r.after >= 0; });
    if (arrivals.shared && (any_waits || trace.conversations)) {
      throw InputError{
          "arrivals: shared: the file has conversations, whose turns wait for their own previous "
          "turn"};
    }
    trace.shared_list = arrivals.shared;
    RandomStream stream{seed, "think"};
    std::vector<std::int32_t> user_of(requests.size());
    std::vector<std::int32_t> last_of;  // by user: the last request sent
    std::int32_t next = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Request& r = requests[i];
      if (r.after >= 0) {
        user_of[i] = user_of[static_cast<std::size_t>(r.after)];
      } else if (std::ssize(last_of) < arrivals.users) {
        user_of[i] = static_cast<std::int32_t>(last_of.size());
        r.arrival = ramp_time(arrivals, user_of[i]);
        last_of.push_back(-1);
      } else {
        user_of[i] = next;
        r.arrival = pause_of(think, stream);
        r.after = last_of[static_cast<std::size_t>(next)];
        next = (next + 1) % arrivals.users;
      }
      last_of[static_cast<std::size_t>(user_of[i])] = static_cast<std::int32_t>(i);
    }
  }
  trace.notes.emplace_back("the scenario's arrivals replace those of the file");
  check_requests(trace);
}

}  // namespace kvsim
