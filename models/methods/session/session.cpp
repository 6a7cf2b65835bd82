#include "models/methods/session/session.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "models/units/check.hpp"

namespace kvsim {

CacheSession::CacheSession(const ComposedMethod& method, const SessionPlace& place,
                           std::vector<HeadVectors> heads)
    : method_{method.parts()}, place_{place} {
  KVSIM_CHECK(!(method_.rerotate || method_.rerotate_prompt) || place.rope != nullptr,
              "\"{}\" needs the rotary embedding", method_.name);
  KVSIM_CHECK(!heads.empty(), "a session of no heads");
  const bool paired =
      method_.share != nullptr && method_.share->starts_pair(place.layer, place.n_layers);
  if (paired) {
    sharer_ = method_.share->start(place, *method_.store, method_.recorded);
  }
  start_selectors(heads, method.selects_apart());
  const StoreRule& store = method_.store_of(place.layer);
  std::vector<std::unique_ptr<Reader>> readers(heads.size());
  if (method_.read) readers = method_.read->start_heads(place, heads.size());
  std::vector<std::unique_ptr<Merger>> mergers = method_.merge->start_heads(place, heads.size());
  heads_.reserve(heads.size());
  for (const HeadVectors& vectors : heads) {
    heads_.push_back(
        {.vectors = vectors,
         .entries = EntryTable{place.head_dim},
         .attention = {place.group, place.head_dim, place.scale},
         .merger = std::move(mergers[heads_.size()]),
         .store = !paired && store.rounds() ? store.start(place, method_.recorded) : nullptr,
         .reader = std::move(readers[heads_.size()]),
         .outcome = ReadOutcome{},
         .events = {},
         .bias = {},
         .how = InBlock::kSingly,
         .tile = {place.group, place.head_dim, place.scale},
         .outputs = {},
         .log_sums = {}});
  }
  for (Head& head : heads_) tables_.push_back(&head.entries);
}

void CacheSession::start_selectors(std::span<const HeadVectors> heads, bool apart) {
  leaving_.resize(apart ? heads.size() : 1);
  SessionPlace own = place_;
  std::vector<SessionPlace> places;
  for (std::size_t h = 0; h < leaving_.size(); ++h) {
    // Query heads with separate entries may share a KV head's rows.
    const bool next = h > 0 && heads[h].keys.data() != heads[h - 1].keys.data();
    own.first_head += next ? 1 : 0;
    own.first_query_head += h > 0 ? place_.group : 0;
    places.push_back(own);
  }
  selectors_ = method_.select->start_heads(places);
}

std::int64_t CacheSession::room() const {
  return allotted_.entries == std::numeric_limits<std::int64_t>::max()
             ? allotted_.entries
             : allotted_.entries - method_.merge->slots();
}

void CacheSession::learn(PromptScores& scores, std::optional<std::span<const std::int32_t>> alive) {
  KVSIM_CHECK(newest_ < 0, "learning after token {}", newest_);
  if (alive) {
    alive_.assign(alive->begin(), alive->end());
    nested_ = true;
    for (auto& selector : selectors_) selector->restrict_prompt(alive_);
  }
  if (selectors_.size() == 1) {
    selectors_.front()->learn_prompt(scores);
  } else {
    for (std::size_t h = 0; h < selectors_.size(); ++h) {
      PromptScores own = scores.of_head(h);
      selectors_[h]->learn_prompt(own);
    }
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].merger->learn_prompt(scores, h);
}

std::vector<HeadVerdict> CacheSession::verdicts() const {
  const auto prompt = static_cast<std::int32_t>(heads_.front().vectors.prompt);
  std::vector<HeadVerdict> all;
  for (const auto& selector : selectors_) {
    HeadVerdict& verdict = all.emplace_back();
    for (std::int32_t id = 0; id < prompt; ++id) {
      verdict.importance.push_back(selector->importance(id, prompt - 1, /*at_prefill=*/true));
      verdict.score.push_back(selector->score(id));
    }
    verdict.statistic = selector->statistic();
  }
  return all;
}

std::vector<std::int32_t> CacheSession::planned(const EntryBudget& allotted, std::size_t h) const {
  const auto prompt = static_cast<std::int32_t>(heads_.front().vectors.prompt);
  if (!method_.select->compresses_prompt()) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(prompt));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  EntryBudget free = allotted;
  if (free.entries != std::numeric_limits<std::int64_t>::max()) {
    if (free.entries >= prompt) {
      free.entries = prompt;
    } else {
      free.entries -= method_.merge->slots();
    }
  }
  return selectors_[of(h)]->plan(prompt, free);
}

void CacheSession::prefill(PromptScores& scores, const EntryBudget& allotted) {
  const HeadVectors& first = heads_.front().vectors;
  const auto prompt = static_cast<std::int32_t>(first.prompt);
  KVSIM_CHECK(newest_ < 0 && prompt >= 1, "prefill of {} tokens after token {}", prompt, newest_);
  allotted_ = allotted;
  for (auto& selector : selectors_) selector->allow(allotted, room());
  for (Head& head : heads_) {
    head.entries.reserve(static_cast<std::int32_t>(
        std::min<std::int64_t>(first.tokens, std::max(allotted.entries, std::int64_t{0})) + 1));
  }
  if (method_.merge->prompt_one_by_one()) {
    prompt_one_by_one();
  } else {
    compress_prompt(allotted);
    if (method_.prefill) blend_prompt();
    if (method_.rerotate_prompt) rerotate_prompt();
    newest_ = prompt - 1;
  }
  prompt_entries_ = heads_.front().entries.size();
  if (sharer_) {
    sharer_->prompt_written(tables_, scores);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    if (head.store) head.store->prompt_written(head.entries, scores, h);
    if (head.reader) head.reader->prompt_written(head.entries, scores, h);
  }
  if (method_.prefill) attend_prompt();
  // Readers build their page data while the page is on the GPU, so the round trip is last.
  if (method_.tier) return_from_tier();
}

void CacheSession::compress_prompt(const EntryBudget& allotted) {
  const HeadVectors& first = heads_.front().vectors;
  const auto prompt = static_cast<std::int32_t>(first.prompt);
  const auto rows = static_cast<std::size_t>(first.prompt * first.head_dim);
  std::vector<std::vector<std::int32_t>> losers(selectors_.size());
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    std::vector<std::int32_t>& lost = losers[of(h)];
    if (h == 0 || of(h) == h) {
      kept_ = planned(allotted, h);
      std::vector<bool> keeps(static_cast<std::size_t>(prompt), false);
      for (const std::int32_t id : kept_) keeps[static_cast<std::size_t>(id)] = true;
      const auto lose = [&](std::int32_t id) {
        if (!keeps[static_cast<std::size_t>(id)]) lost.push_back(id);
      };
      if (nested_) {
        for (const std::int32_t id : alive_) lose(id);
      } else {
        for (std::int32_t id = 0; id < prompt; ++id) lose(id);
      }
    }
    Head& head = heads_[h];
    for (const std::int32_t id : kept_) {
      head.entries.append(id, head.vectors.key(id), head.vectors.value(id));
    }
    if (method_.merge->needs_layer() && !lost.empty()) {
      head.merger->consider(head.entries, lost, head.vectors.keys.first(rows));
    }
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    if (losers[of(h)].empty()) {
      head.merger->prompt_fits(head.entries);
    } else {
      head.merger->absorb_prompt(head.entries, *selectors_[of(h)], losers[of(h)],
                                 head.vectors.keys.first(rows), head.vectors.values.first(rows));
    }
  }
}

void CacheSession::prompt_one_by_one() {
  const auto prompt = static_cast<std::int32_t>(heads_.front().vectors.prompt);
  for (std::int32_t id = 0; id < prompt; ++id) {
    append(id);
    if (method_.merge->prompt_attends()) {
      for (Head& head : heads_) attend(head);
      learn_step(/*prompt_fed=*/true);
    }
    compress();
  }
}

void CacheSession::append(std::int32_t id) {
  for (Head& head : heads_) {
    head.entries.append(id, head.vectors.key(id), head.vectors.value(id));
  }
  newest_ = id;
}

void CacheSession::step() {
  step_heads(0, heads_.size());
  finish_step();
}

void CacheSession::step_heads(std::size_t first, std::size_t count) {
  const bool early = method_.select->leaves_before_attend();
  KVSIM_CHECK(first + count <= heads_.size() && (!early || count == heads_.size()),
              "heads {} to {} of {}", first, first + count, heads_.size());
  if (first == 0) {
    ++newest_;
    compressed_ = false;
  }
  for (std::size_t h = first; h < first + count; ++h) {
    Head& head = heads_[h];
    head.entries.append(newest_, head.vectors.key(newest_), head.vectors.value(newest_));
    head.events = {.attended = 0,
                   .read = -1,
                   .left = 0,
                   .merged = 0,
                   .prompt = static_cast<double>(prompt_entries_),
                   .stored = -1,
                   .shared = sharer_ ? 1.0 : 0.0,
                   .refreshed = 0};
    if (head.store) head.store->appended(head.entries, head.entries.size() - 1);
    if (head.reader) head.reader->appended(head.entries, head.entries.size() - 1);
  }
  if (early) compress();
  for (std::size_t h = first; h < first + count; ++h) {
    Head& head = heads_[h];
    if (sharer_) {
      head.events.stored = static_cast<double>(sharer_->read_bytes(tables_, h).count());
    } else if (head.store) {
      head.events.stored = static_cast<double>(head.store->kv_bytes(head.entries).count());
    }
    attend(head);
    if (block_steps_ > 0 && block_is_read_ && head.how == InBlock::kSingly) keep_output(h);
  }
}

void CacheSession::finish_step() {
  if (method_.learns_steps) learn_step(/*prompt_fed=*/false);
  if (!method_.select->leaves_before_attend()) compress();
  if (sharer_) sharer_->stepped(tables_);
  for (Head& head : heads_) {
    if (head.store) head.store->stepped(head.entries);
  }
  ++steps_;
  if (block_steps_ > 0 && ++block_at_ == block_steps_) finish_block();
  const std::int64_t period = method_.merge->refresh_period();
  if (period > 0 && steps_ % period == 0) refresh();
}

CacheSession::InBlock CacheSession::in_block(const Head& head) const {
  if (head.reader || method_.rerotate || method_.merge->extends_output()) return InBlock::kSingly;
  const bool plain = !method_.learns_steps && !method_.merge->merges() &&
                     !method_.select->hides_entries() && !head.entries.any_merged();
  return plain ? InBlock::kPlain : InBlock::kScored;
}

std::int64_t CacheSession::start_block(std::int64_t max, bool read) {
  KVSIM_CHECK(block_steps_ == 0 && newest_ >= 0 && max >= 1, "a block of {} steps after token {}",
              max, newest_);
  const std::int64_t period = method_.merge->refresh_period();
  if (period > 0) max = std::min(max, period - steps_ % period);
  for (Head& head : heads_) {
    head.how = in_block(head);
    if (!read && head.how == InBlock::kPlain) head.how = InBlock::kUnread;
    max = std::min(max, head.tile.steps(head.entries.size(), head.how != InBlock::kScored));
  }
  block_steps_ = max;
  block_is_read_ = read;
  block_at_ = 0;
  for_heads([&](Head& head) {
    head.outputs.clear();
    head.log_sums.clear();
    if (!in_tile(head.how)) return;
    head.tile.start(head.vectors, newest_ + 1, max, head.how == InBlock::kPlain, head.entries);
  });
  return max;
}

void CacheSession::for_heads(const std::function<void(Head&)>& action) {
  if (run_) {
    run_(heads_.size(), [&](std::size_t h) { action(heads_[h]); });
  } else {
    for (Head& head : heads_) action(head);
  }
}

void CacheSession::keep_output(std::size_t h) {
  Head& head = heads_[h];
  const std::span<const double> out = output(h);
  head.outputs.insert(head.outputs.end(), out.begin(), out.end());
  for (std::int32_t g = 0; g < place_.group; ++g) head.log_sums.push_back(log_sum(h, g));
}

void CacheSession::finish_block() {
  for_heads([&](Head& head) {
    if (in_tile(head.how)) head.tile.finish(head.entries, block_is_read_);
  });
  block_steps_ = 0;
}

std::span<const double> CacheSession::block_output(std::size_t h, std::int64_t i) const {
  const Head& head = heads_[h];
  KVSIM_CHECK(block_is_read_, "step {} of a block that is not read", i);
  if (in_tile(head.how)) return head.tile.output(i);
  const auto row = static_cast<std::size_t>(place_.group * place_.head_dim);
  return std::span{head.outputs}.subspan(static_cast<std::size_t>(i) * row, row);
}

double CacheSession::block_log_sum(std::size_t h, std::int64_t i, std::int32_t g) const {
  const Head& head = heads_[h];
  return in_tile(head.how) ? head.tile.log_sum(i, g)
                           : head.log_sums[static_cast<std::size_t>(i * place_.group + g)];
}

void CacheSession::refresh() {
  KVSIM_CHECK(heads_.size() == 1 && !sharer_, "a refresh of {} heads at once", heads_.size());
  Head& head = heads_.front();
  selectors_.front()->report(retired_);
  head.merger->report(retired_);
  const auto tokens = static_cast<std::int64_t>(newest_) + 1;
  head.events.refreshed = static_cast<double>(tokens);
  head.vectors.prompt = tokens;
  head.entries = EntryTable{place_.head_dim};
  start_selectors({&head.vectors, 1}, /*apart=*/false);
  head.merger = method_.merge->start(place_);
  if (head.store) head.store = method_.store_of(place_.layer).start(place_, method_.recorded);
  newest_ = -1;
  PromptScores scores{head.vectors};
  learn(scores);
  prefill(scores, allotted_);
}

void CacheSession::learn_step(bool prompt_fed) {
  std::vector<HeadStep> steps;
  steps.reserve(heads_.size());
  const auto d = static_cast<std::size_t>(place_.head_dim);
  const auto group = static_cast<std::size_t>(place_.group);
  q_.resize(heads_.size() * group * d);
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    float* q = q_.data() + h * group * d;
    for (std::size_t g = 0; g < group; ++g) {
      std::copy_n(heads_[h].vectors.query(static_cast<std::int32_t>(g), newest_).data(), d,
                  q + g * d);
    }
    steps.push_back({heads_[h].entries, heads_[h].attention, {q, group * d}, heads_[h].bias});
  }
  const bool selects = !prompt_fed && method_.select->needs().decode_rows;
  if (selectors_.size() > 1) {  // each selector observes only its head
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const StepView own = view_of(std::span{steps}.subspan(h, 1), heads_[h].attention.group_sum());
      if (selects) selectors_[h]->observe(own);
      if (method_.merge->needs().decode_rows) heads_[h].merger->observe(own, 0);
    }
    return;
  }
  std::span<const double> sum = heads_.front().attention.group_sum();
  if (heads_.size() > 1) {
    group_sum_.assign(sum.begin(), sum.end());
    for (std::size_t h = 1; h < heads_.size(); ++h) {
      const auto more = heads_[h].attention.group_sum();
      KVSIM_CHECK(more.size() == group_sum_.size(), "heads of {} and {} entries", group_sum_.size(),
                  more.size());
      for (std::size_t e = 0; e < more.size(); ++e) group_sum_[e] += more[e];
    }
    sum = group_sum_;
  }
  const StepView view = view_of(steps, sum);
  // The prompt's scores are final before it is fed.
  if (selects) selectors_.front()->observe(view);
  if (method_.merge->needs().decode_rows) {
    for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].merger->observe(view, h);
  }
}

StepView CacheSession::view_of(std::span<const HeadStep> steps,
                               std::span<const double> group_sum) const {
  return {.newest = newest_,
          .ids = steps.front().entries.ids(),
          .group_sum = group_sum,
          .heads = steps};
}

void CacheSession::compress() {
  compressed_ = false;
  for (std::size_t s = 0; s < selectors_.size(); ++s) {
    leaving_[s].clear();
    selectors_[s]->leaving(heads_[s].entries, newest_, room(), leaving_[s]);
    compressed_ = compressed_ || !leaving_[s].empty();
  }
  if (!compressed_) return;
  if (sharer_) sharer_->leaving(leaving_.front());
  if (method_.merge->needs_layer()) {
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      heads_[h].merger->consider(heads_[h].entries, leaving_[of(h)], {});
    }
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) let_go(h, leaving_[of(h)]);
}

void CacheSession::let_go(std::size_t h, std::span<const std::int32_t> ids) {
  Head& head = heads_[h];
  if (head.store) {
    for (const std::int32_t id : ids) head.store->leaving(head.entries, id);
  }
  const std::int32_t before = head.entries.size();
  const std::int32_t merged = head.merger->absorb(head.entries, *selectors_[of(h)], ids);
  head.events.left += static_cast<double>(before - head.entries.size());
  head.events.merged += merged;
  if (!head.store) return;
  if (merged > 0) rewrite_merged(head);
  for (const std::int32_t id : head.merger->touched()) {
    head.store->rewritten(head.entries, head.entries.slot_of(id));
  }
}

void CacheSession::rewrite_merged(Head& head) {
  for (std::int32_t slot = 0; slot < head.entries.size(); ++slot) {
    if (head.entries.is_merged(slot)) head.store->rewritten(head.entries, slot);
  }
}

void CacheSession::attend(Head& head) {
  const auto d = static_cast<std::size_t>(place_.head_dim);
  const auto group = static_cast<std::size_t>(place_.group);
  q_.resize(std::max(q_.size(), group * d));
  for (std::size_t g = 0; g < group; ++g) {
    std::copy_n(head.vectors.query(static_cast<std::int32_t>(g), newest_).data(), d,
                q_.data() + g * d);
  }
  const std::span<const float> q{q_.data(), group * d};
  head.events.attended = head.entries.size();
  const InBlock how = block_steps_ > 0 ? head.how : InBlock::kSingly;
  if (how == InBlock::kUnread) return;
  if (how == InBlock::kPlain) {
    head.tile.see(block_at_, head.entries);
    return;
  }
  if (head.reader) {
    head.reader->attend(q, head.entries, head.outcome);
    head.events.read = head.outcome.entries_read;
    return;
  }
  head.bias.clear();
  if (head.entries.any_merged()) {
    for (std::int32_t slot = 0; slot < head.entries.size(); ++slot) {
      head.bias.push_back(
          head.entries.is_merged(slot)
              ? method_.merge->bias(head.entries.count(slot), head.entries.weight(slot))
              : 0.0);
    }
  }
  if (method_.select->hides_entries()) {
    const auto n = static_cast<std::size_t>(head.entries.size());
    std::vector<double>& bias = head.bias;  // extended to one bias per query head
    bias.resize(n, 0.0);
    for (std::size_t g = 1; g < group; ++g) {
      for (std::size_t slot = 0; slot < n; ++slot) bias.push_back(bias[slot]);
    }
    selectors_[of(static_cast<std::size_t>(&head - heads_.data()))]->hide(head.entries, bias);
  }
  if (how == InBlock::kScored) {
    head.tile.fill(block_at_, head.entries, head.attention);
    head.attention.weigh(head.bias);
    if (block_is_read_) head.tile.keep(block_at_, head.entries, head.attention);
  } else if (method_.rerotate) {
    attend_rerotated(head);
  } else {
    head.attention.run(q, head.entries.keys(), head.entries.values(), head.bias);
  }
  if (method_.merge->extends_output()) {
    const auto out = head.attention.output();
    head.outcome.out.assign(out.begin(), out.end());
    head.outcome.log_sums.resize(group);
    for (std::size_t g = 0; g < group; ++g) {
      head.outcome.log_sums[g] = head.attention.log_sum(static_cast<std::int32_t>(g));
    }
    head.merger->extend_output(q, head.outcome.out, head.outcome.log_sums);
  }
}

void CacheSession::attend_rerotated(Head& head) {
  // Every key moves to its rank in the cache, and the query to the position of the last key.
  const auto d = static_cast<std::size_t>(place_.head_dim);
  const auto n = static_cast<std::size_t>(head.entries.size());
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&head](std::int32_t a, std::int32_t b) {
    return head.entries.id(a) < head.entries.id(b);
  });
  rotated_keys_.assign(head.entries.keys().begin(), head.entries.keys().end());
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::int32_t slot = order[rank];
    place_.rope->rotate(std::span{rotated_keys_}.subspan(static_cast<std::size_t>(slot) * d, d),
                        static_cast<std::int64_t>(rank) - head.entries.id(slot));
  }
  rotated_q_.assign(q_.begin(), q_.begin() + place_.group * place_.head_dim);
  for (std::int32_t g = 0; g < place_.group; ++g) {
    place_.rope->rotate(std::span{rotated_q_}.subspan(static_cast<std::size_t>(g) * d, d),
                        static_cast<std::int64_t>(n) - 1 - newest_);
  }
  head.attention.run(rotated_q_, rotated_keys_, head.entries.values(), head.bias);
}

std::span<const double> CacheSession::output(std::size_t h) const {
  const Head& head = heads_[h];
  return head.reader || method_.merge->extends_output() ? std::span<const double>{head.outcome.out}
                                                        : head.attention.output();
}

double CacheSession::log_sum(std::size_t h, std::int32_t g) const {
  const Head& head = heads_[h];
  return head.reader || method_.merge->extends_output()
             ? head.outcome.log_sums[static_cast<std::size_t>(g)]
             : head.attention.log_sum(g);
}

CacheBytes CacheSession::bytes(std::size_t h) const {
  const Head& head = heads_[h];
  const std::int64_t held = head.entries.size();
  const HeadShape shape{.group = place_.group,
                        .head_dim = place_.head_dim,
                        .recorded = method_.recorded,
                        .stored = method_.store_of(place_.layer).dtype(method_.recorded)};
  CacheBytes all;
  if (sharer_) {
    all = sharer_->cache_bytes(tables_, h);
  } else {
    const Bytes kv = head.store
                         ? head.store->kv_bytes(head.entries)
                         : method_.store_of(place_.layer)
                               .kv_bytes(prompt_entries_, held, place_.head_dim, method_.recorded);
    all.kv = kv;
    if (method_.read) {
      all = method_.read->cache_bytes(place_.layer, kv, head.vectors.prompt, held, shape);
    }
  }
  // Data that a selector carries for several heads together is counted with the first head.
  if ((h == 0 || (!method_.select->shared_by_layer() && !sharer_)) &&
      !method_.budget->keeps_whole(place_.layer)) {
    all.side += method_.select->side_bytes(held, shape);
  }
  all.host += method_.merge->host_bytes(newest_ + 1, shape);
  all.side += method_.merge->side_bytes(held, shape) + method_.budget->side_bytes_per_head();
  return all;
}

Counts CacheSession::counts() const {
  Counts counts = retired_;
  for (const auto& selector : selectors_) selector->report(counts);
  if (sharer_) sharer_->report(counts);
  for (const Head& head : heads_) {
    head.merger->report(counts);
    if (head.store) head.store->report(counts);
    if (head.reader) head.reader->report(counts);
  }
  return counts;
}

std::vector<std::vector<std::int32_t>> CacheSession::kept(std::size_t h) const {
  const EntryTable& entries = heads_[h].entries;
  std::vector<std::vector<std::int32_t>> all;
  for (std::int32_t slot = 0; slot < entries.size(); ++slot) all.push_back(entries.members(slot));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace kvsim
