#include "sim/decoder/sessions.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {

MethodSessions::MethodSessions(const ComposedMethod& method, LayerBlock& block, std::uint64_t seed)
    : method_{method},
      n_layers_{block.count()},
      group_{block.layer(0).heads.front().group},
      head_dim_{block.layer(0).heads.front().head_dim} {
  for (DecisionUnit& unit : block.units(method)) {
    units_.push_back({std::move(unit), nullptr, 0});
    Unit& one = units_.back();
    one.session = std::make_unique<CacheSession>(method, block.place(one.heads, seed),
                                                 block.vectors(one.heads));
  }
  compress(block);
}

void MethodSessions::compress(LayerBlock& block) {
  const BudgetRule& budget = *method_.parts().budget;
  const bool nested = method_.parts().select->nested();
  std::vector<std::vector<HeadVerdict>> verdicts;
  std::vector<std::vector<EntryBudget>> allotted;
  std::vector<std::vector<std::int32_t>> alive;  // nested: by unit of the layer
  // Units are ordered by layer.
  for (std::size_t first = 0; first < units_.size();) {
    std::size_t end = first;
    while (end < units_.size() && units_[end].heads.layer == units_[first].heads.layer) ++end;
    const std::int32_t layer = units_[first].heads.layer;
    std::vector<HeadVerdict>& of_layer = verdicts.emplace_back();
    std::vector<std::vector<std::int32_t>> passed;
    for (std::size_t i = first; i < end; ++i) {
      CacheSession& session = *units_[i].session;
      PromptScores& scores = block.scores(units_[i].heads);
      if (alive.empty()) {
        session.learn(scores);
      } else {
        session.learn(scores, std::span<const std::int32_t>{alive[i - first]});
      }
      if (nested) {
        if (layer + 1 < n_layers_) {
          passed.push_back(session.planned({.entries = *budget.entries(layer + 1)}));
        }
      } else if (budget.scope() == BudgetScope::kModel) {
        auto found = session.verdicts();
        std::move(found.begin(), found.end(), std::back_inserter(of_layer));
      } else if (budget.scope() == BudgetScope::kLayer) {
        of_layer.push_back(session.verdicts().front());
      }
    }
    alive = std::move(passed);
    if (budget.scope() == BudgetScope::kLayer) {
      allotted.push_back(budget.allot_layer(layer, of_layer));
    } else if (budget.scope() != BudgetScope::kModel) {
      allotted.emplace_back(end - first, EntryBudget{.entries = *budget.entries(layer)});
    }
    first = end;
  }
  if (budget.scope() == BudgetScope::kModel) allotted = budget.allot_model(verdicts);
  std::size_t at = 0;
  for (std::size_t l = 0; at < units_.size(); ++l) {
    const std::int32_t layer = units_[at].heads.layer;
    for (std::size_t i = 0; at < units_.size() && units_[at].heads.layer == layer; ++i, ++at) {
      units_[at].session->prefill(block.scores(units_[at].heads), allotted[l][i]);
    }
  }
}

CacheBytes MethodSessions::bytes() const {
  CacheBytes all;
  for (const Unit& unit : units_) {
    for (std::size_t h = 0; h < unit.session->size(); ++h) all += unit.session->bytes(h);
  }
  return all;
}

void MethodSessions::begin_step() {
  for (Unit& unit : units_) unit.attended = 0;
}

void MethodSessions::attend(std::int32_t layer, std::span<float> out) {
  const auto d = static_cast<std::size_t>(head_dim_);
  for (Unit& unit : units_) {
    std::size_t count = 0;
    while (unit.attended + count < unit.heads.heads.size() &&
           unit.heads.heads[unit.attended + count].layer == layer) {
      ++count;
    }
    if (count == 0) continue;
    unit.session->step_heads(unit.attended, count);
    for (std::size_t h = unit.attended; h < unit.attended + count; ++h) {
      const DecisionUnit::StoredHead& head = unit.heads.heads[h];
      const auto first = static_cast<std::size_t>(head.kv_head * group_ + std::max(head.query, 0));
      const std::span<const double> rows = unit.session->output(h);
      std::transform(rows.begin(), rows.end(), out.begin() + static_cast<std::ptrdiff_t>(first * d),
                     [](double x) { return static_cast<float>(x); });
    }
    unit.attended += count;
  }
}

void MethodSessions::end_step() {
  for (Unit& unit : units_) {
    KVSIM_CHECK(unit.attended == unit.session->size(), "{} of {} heads attended", unit.attended,
                unit.session->size());
    unit.session->finish_step();
  }
}

}  // namespace kvsim
