#include "sim/memory/vllm_log.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/number_text.hpp"
#include "sim/memory/log_wording.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kMiB = 1024.0 * 1024.0;

struct Line {
  std::string_view text;      // in lower case, for wordings
  std::string_view original;  // for messages
  const std::string& file;
  std::size_t number = 0;

  [[nodiscard]] std::string place() const { return fmt::format("{}:{}", file, number); }
  [[nodiscard]] std::string shown() const { return excerpt(original, 160); }
  [[nodiscard]] bool has(std::initializer_list<std::string_view> wordings) const {
    return std::any_of(wordings.begin(), wordings.end(), [this](std::string_view wording) {
      return text.find(wording) != std::string_view::npos;
    });
  }
};

constexpr double kMaxCount = 4e9;  // tokens, blocks
constexpr double kMaxGiB = 1e6;    // a thousand times the largest GPU; sums stay below 2^63 bytes
// Most memory that may become free while CUDA graphs are captured: activations and other buffers.
constexpr double kMaxFreedGiB = 8;

double number(std::string_view text, const Line& line, double max = kMaxCount) {
  std::string digits{text};
  std::erase(digits, ',');
  double value = 0;
  const auto [end, error] = number_from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    throw InputError{fmt::format("{}: expected a number, got \"{}\" in: {}", line.place(), digits,
                                 line.shown())};
  }
  if (!(std::abs(value) <= max)) {
    throw InputError{fmt::format("{}: expected a number of at most {}, got \"{}\" in: {}",
                                 line.place(), max, digits, line.shown())};
  }
  return value;
}

double positive(std::string_view text, const Line& line, double max = kMaxCount) {
  const double value = number(text, line, max);
  if (!(value > 0)) {
    throw InputError{
        fmt::format("{}: expected a number above 0, got {} in: {}; take the log of a "
                    "start that succeeded",
                    line.place(), text, line.shown())};
  }
  return value;
}

Bytes gib(double value) { return rounded<Bytes>(value * kGiB); }

/// A wording with sizes in GiB, and the values that they state. vLLM writes "GiB" and "GB" for 2^30
/// bytes.
struct SizeWording {
  LogWording wording;
  std::vector<std::optional<Bytes> VllmLog::*> sizes{};
};

const std::vector<SizeWording>& size_wordings() {
  static const std::vector<SizeWording> wordings{
      // V0 0.6.4 to 0.8: "model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch
      // activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is ..."
      {LogWording{"model weights take N~gi?b"}, {&VllmLog::weights}},
      {LogWording{"non_torch_memory takes N~gi?b"}, {&VllmLog::non_torch}},
      {LogWording{"activation peak memory takes N~gi?b"}, {&VllmLog::activation}},
      {LogWording{"reserved for kv cache is N~gi?b"}, {&VllmLog::kv_cache}},
      {LogWording{"total gpu memory~(?N~gi?b"}, {&VllmLog::total}},
      {LogWording{"total_gpu_memory~(?N~gi?b"}, {&VllmLog::total}},
      // V1: "Model loading took 14.9889 GiB and 5.2 seconds"; V0: "Loading model weights took ..."
      {LogWording{"model loading took N~gi?b"}, {&VllmLog::weights}},
      {LogWording{"loading model weights took N~gi?b"}, {&VllmLog::weights}},
      {LogWording{"available kv cache memory: N~gi?b"}, {&VllmLog::kv_cache}},
      {LogWording{"graph capturing finished in D secs?, took N~gi?b"}, {&VllmLog::graphs}},
      // V1 at level DEBUG
      {LogWording{"total non kv cache memory: D~gi?b; torch peak memory increase: N~gi?b; "
                  "non-torch forward increase memory: N~gi?b; weights memory: N~gi?b"},
       {&VllmLog::activation, &VllmLog::non_torch, &VllmLog::weights}},
      // V0 0.6.3: "Memory profiling results: total_gpu_memory=79.22GiB initial_memory_usage=...
      // peak_torch_memory=16.22GiB memory_usage_post_profile=... non_torch_memory=1.79GiB
      // kv_cache_size=53.29GiB gpu_memory_utilization=0.90"
      {LogWording{"total_gpu_memory=N~gi?b"}, {&VllmLog::total}},
      {LogWording{"non_torch_memory=N~gi?b"}, {&VllmLog::non_torch}},
      {LogWording{"kv_cache_size=N~gi?b"}, {&VllmLog::kv_cache}},
  };
  return wordings;
}

/// Whether the logged start succeeded. vLLM restarts in the same log, and an engine that started
/// may run out of memory while it serves.
class StartOutcome {
 public:
  void read(const Line& line) {
    if (line.has({"vllm api server version", "initializing a v1 llm engine",
                  "initializing an llm engine"})) {
      failure_.reset();
      has_started_ = false;
    } else if (line.has({"application startup complete", "init engine (profile",
                         "uvicorn running on"})) {
      failure_.reset();
      has_started_ = true;
    } else if (line.has({"outofmemoryerror", "cuda out of memory", "cuda error: out of memory",
                         "no available memory for the cache blocks"})) {
      if (has_started_) {
        later_ = fmt::format("line {}: the engine ran out of memory after its start", line.number);
      } else {
        fail(line);
      }
    } else if (line.has({"is larger than the available kv cache memory",
                         "is larger than the maximum number of tokens that can be stored in kv "
                         "cache"})) {
      fail(line, "increase gpu_memory_utilization or lower max_model_len");
    } else if (line.has({"is less than desired gpu memory utilization"})) {
      fail(line, "free the GPU's memory or lower gpu_memory_utilization");
    } else if (!failure_ && line.has({"engine core initialization failed"})) {
      // Earlier lines may contain the cause.
      fail(line, "remove the cause of the failure");
    }
  }
  /// Records that `line` shows a failure of this start; a later one in the same log may succeed.
  /// `hint`: the remedy.
  void fail(const Line& line,
            std::string_view hint =
                "lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs") {
    failure_ = refusal(line, hint);
  }
  /// Records that `line` has the memory of CUDA graphs, in GiB. The last such line counts,
  /// regardless of later lines.
  void read_graphs(const Line& line, double gib) {
    graphs_.reset();
    if (gib >= -kMaxFreedGiB) return;
    graphs_ =
        refusal(line, "stop the other processes on the GPU, which freed memory during the start");
  }
  /// Errors: InputError if the last start failed.
  void check(VllmLog& log) const {
    for (const auto& message : {failure_, graphs_}) {
      if (message) throw InputError{*message};
    }
    if (later_) log.warnings.push_back(*later_);
  }

 private:
  static std::string refusal(const Line& line, std::string_view hint) {
    return fmt::format(
        "{}: expected the log of a start that succeeded, got \"{}\"; {}, and use the log of that "
        "start",
        line.place(), line.shown(), hint);
  }

  std::optional<std::string> failure_, graphs_, later_;  // messages
  bool has_started_ = false;
};

class LogReader {
 public:
  explicit LogReader(VllmLog& log) : log_{log} {}

  void read(const Line& line) {
    outcome_.read(line);
    for (const SizeWording& each : size_wordings()) {
      if (!each.wording.find_in(line.text, numbers_)) continue;
      for (std::size_t i = 0; i < each.sizes.size(); ++i)
        put_size(each.sizes[i], numbers_[i], line);
    }
    static const LogWording graphs{"graph capturing finished in D secs?, took N~mi?b"};
    if (graphs.find_in(line.text, numbers_)) {
      const double mib = number(numbers_[0], line, kMaxGiB);
      log_.graphs = rounded<Bytes>(mib * kMiB);
      outcome_.read_graphs(line, mib * kMiB / kGiB);
      found_ = true;
    }
    static const LogWording peak{"peak_torch_memory=N~gi?b"};
    if (peak.find_in(line.text, numbers_)) peak_ = gib(positive(numbers_[0], line, kMaxGiB));
    // The last one is a label of the metric vllm:cache_config_info.
    static const LogWording blocks{"# gpu blocks: N"}, other_blocks{"# cuda blocks: N"},
        metric_blocks{"num_gpu_blocks=\"N\""};
    for (const LogWording* wording : {&blocks, &other_blocks, &metric_blocks}) {
      if (wording->find_in(line.text, numbers_)) log_.blocks = count(numbers_[0], line);
    }
    static const LogWording tokens{"gpu kv cache size: N tokens"},
        metric_tokens{"kv_cache_size_tokens=\"N\""};
    for (const LogWording* wording : {&tokens, &metric_tokens}) {
      if (wording->find_in(line.text, numbers_)) log_.tokens = count(numbers_[0], line);
    }
    static const LogWording concurrency{"maximum concurrency for N tokens per request: Nx"};
    if (concurrency.find_in(line.text, numbers_)) {
      log_.max_model_len = count(numbers_[0], line);
      log_.max_concurrency = positive(numbers_[1], line);
    }
    // "total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90)"; "'gpu_memory_utilization':
    // 0.9"
    static const LogWording fraction{"gpu_memory_utilization'?E(?N"};
    static const LogWording requested{"requested memory: N"};
    static const LogWording metric_fraction{"gpu_memory_utilization=\"N\""};
    for (const LogWording* wording : {&fraction, &requested, &metric_fraction}) {
      if (wording->find_in(line.text, numbers_)) put_fraction(numbers_[0], line);
    }
  }
  /// Errors: InputError if none of the figures was found, or the start failed.
  void finish(const std::string& file) {
    outcome_.check(log_);
    if (!found_) {
      throw InputError{fmt::format(
          "{}: expected a vLLM start-up log (lines such as \"Model loading took 14.99 GiB\" or "
          "\"GPU KV cache size: 31,232 tokens\"), or the metric vllm:cache_config_info, found none "
          "of their figures",
          file)};
    }
    if (peak_ && log_.weights && !log_.activation) {
      log_.activation = *peak_ - *log_.weights;
      log_.notes.emplace_back("activation: peak_torch_memory minus the weights");
    }
    if (!log_.activation && log_.total && log_.memory_fraction && log_.weights && log_.non_torch &&
        log_.kv_cache) {
      log_.activation =
          gib(static_cast<double>(log_.total->count()) / kGiB * *log_.memory_fraction) -
          *log_.weights - *log_.non_torch - *log_.kv_cache;
      log_.notes.emplace_back("activation: the memory fraction minus the other terms");
    }
  }

 private:
  void put_size(std::optional<Bytes> VllmLog::*size, std::string_view text, const Line& line) {
    found_ = true;
    if (size == &VllmLog::kv_cache && number(text, line, kMaxGiB) <= 0) return outcome_.fail(line);
    // The others may be negative if another process freed memory meanwhile.
    if (size == &VllmLog::graphs) outcome_.read_graphs(line, number(text, line, kMaxGiB));
    const bool is_held = size == &VllmLog::total || size == &VllmLog::weights;
    log_.*size = gib(is_held ? positive(text, line, kMaxGiB) : number(text, line, kMaxGiB));
  }
  void put_fraction(std::string_view text, const Line& line) {
    const double value = number(text, line);
    if (!(value > 0 && value <= 1)) {
      throw InputError{fmt::format("{}: expected a memory fraction in (0, 1], got {} in: {}",
                                   line.place(), text, line.shown())};
    }
    log_.memory_fraction = value;
  }
  std::int64_t count(std::string_view text, const Line& line) {
    found_ = true;
    return static_cast<std::int64_t>(positive(text, line));
  }

  VllmLog& log_;
  StartOutcome outcome_;
  std::optional<Bytes> peak_;
  bool found_ = false;
  std::vector<std::string_view> numbers_;
};

/// Removes the next line from `rest` and returns it.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

VllmLog read_vllm_log(std::string_view text, const std::string& place) {
  VllmLog log;
  LogReader reader{log};
  std::string lowered;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    lowered.resize(line.size());
    std::transform(line.begin(), line.end(), lowered.begin(), lower);
    reader.read({lowered, line, place, number});
  }
  reader.finish(place);
  return log;
}

}  // namespace kvsim
