#include "sim/serve/engine/serve_timeline.hpp"

#include <algorithm>

namespace kvsim {
namespace {

template <class T>
void halve(std::vector<T>& all) {
  std::size_t to = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) all[to++] = all[i];
  all.resize(to);
}

}  // namespace

void ServeTimeline::add(const ServeSample& sample, std::int64_t taken) {
  if (taken > peak_taken_) {
    peak_taken_ = taken;
    peak_ = sample;
  }
  if ((seen_ - 1) % stride_ != 0) return;
  if (kept_.size() >= max_samples_) {
    halve(kept_);
    halve(iterations_);
    stride_ *= 2;
    if ((seen_ - 1) % stride_ != 0) return;
  }
  kept_.push_back(sample);
}

void ServeTimeline::add_iteration(const ServeIteration& iteration) {
  if (iterations_.size() < kept_.size()) iterations_.push_back(iteration);
}

void ServeTimeline::finish(const ServeSample& last) {
  last_ = last;
  finished_ = true;
}

std::vector<ServeSample> ServeTimeline::samples() const {
  std::vector<ServeSample> all = kept_;
  if (peak_taken_ >= 0) all.push_back(peak_);
  if (finished_) all.push_back(last_);
  std::stable_sort(all.begin(), all.end(),
                   [](const ServeSample& a, const ServeSample& b) { return a.at < b.at; });
  // Two samples at the same time are kept if they differ: at an end, before and after a request is
  // refused.
  const auto same = [](const ServeSample& a, const ServeSample& b) {
    return a.at == b.at && a.running == b.running && a.kv_blocks == b.kv_blocks;
  };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  std::int64_t tokens = 0, prompt = 0;
  for (ServeSample& s : all) {
    const std::int64_t so_far = s.tokens, prompt_so_far = s.prompt_tokens;
    s.tokens -= tokens;
    s.prompt_tokens -= prompt;
    tokens = so_far;
    prompt = prompt_so_far;
  }
  return all;
}

}  // namespace kvsim
