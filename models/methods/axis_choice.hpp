#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {

class MethodResolver;

/// Creates a rule from resolved parameters. Errors: InputError through MethodResolver::refuse.
using MakeSelect = std::shared_ptr<const SelectRule> (*)(MethodResolver&);
using MakeBudget = std::shared_ptr<const BudgetRule> (*)(MethodResolver&);
using MakeMerge = std::shared_ptr<const MergeRule> (*)(MethodResolver&);
using MakeShare = std::shared_ptr<const ShareRule> (*)(MethodResolver&);
using MakeRead = std::shared_ptr<const ReadRule> (*)(MethodResolver&);
using MakeTier = std::shared_ptr<const TierRule> (*)(MethodResolver&);
using MakePrefill = std::shared_ptr<const PrefillRule> (*)(MethodResolver&);
using MakeStore = std::shared_ptr<const StoreRule> (*)(MethodResolver&);

/// An axis choice as listed in the catalogue.
struct AxisChoice {
  std::string_view axis;  // "select", "budget", "merge", "share", "read", "store", "tier",
                          // "prefill"
  std::string_view name;
  std::vector<ParamInfo> params;
  /// May return nullptr for share, read, tier and prefill (the neutral choices), but not for the
  /// other axes.
  std::variant<MakeSelect, MakeBudget, MakeMerge, MakeShare, MakeRead, MakeStore, MakeTier,
               MakePrefill>
      make;
  /// select: whether the choice takes a budget of entries; false for selectors that drop nothing or
  /// drop only by a threshold. read: whether it has a separate budget.
  bool takes_budget = true;
  /// merge: returns the number of reserved entries if `beyond_tail` entries are not in the tail;
  /// nullptr: none.
  std::int64_t (*slots)(MethodResolver&, std::int64_t beyond_tail) = nullptr;
};

/// A method being resolved from its specification to the rules of its axes. Makers run in the order
/// store, share, select, budget, merge, read, tier, prefill: each maker can read the results of the
/// earlier ones.
class MethodResolver {
 public:
  virtual ~MethodResolver() = default;

  [[noreturn]] virtual void refuse(const std::string& why) const = 0;
  [[nodiscard]] virtual const std::string& method() const = 0;
  [[nodiscard]] virtual std::int64_t prompt() const = 0;  // tokens
  [[nodiscard]] virtual const MethodContext& site() const = 0;
  /// Layers of the model. Errors: refuses if unknown.
  [[nodiscard]] virtual std::int32_t n_layers() const = 0;
  /// The choice on an axis.
  [[nodiscard]] virtual const std::string& choice(const std::string& axis) const = 0;
  [[nodiscard]] virtual const StoreRule& store() const = 0;

  // Parameters as resolved so far. Reading a parameter that no choice of the method declares is a
  // ContractError. `given`: whether the user set it, as opposed to a preset or default.
  [[nodiscard]] virtual double number(const std::string& name) const = 0;
  [[nodiscard]] virtual std::int64_t integer(const std::string& name) const = 0;
  [[nodiscard]] virtual const std::string& word(const std::string& name) const = 0;
  [[nodiscard]] virtual bool flag(const std::string& name) const = 0;
  [[nodiscard]] virtual bool given(std::string_view name) const = 0;
  /// Records a resolved value for reports: a solved window, a count from a fraction.
  virtual void resolve(const std::string& name, const ParamValue& value) = 0;

  /// The requested budget; nullopt: none.
  [[nodiscard]] virtual const std::optional<Budget>& budget() const = 0;
  /// Entries per stored head within `budget` for this prompt. A budget is a share of the full
  /// cache's bytes, so a smaller format or separate entries per query head change the result.
  [[nodiscard]] virtual std::int64_t entries_of(const Budget& budget) const = 0;
  /// The requested budget in entries; otherwise the preset's default share (or `fallback`) in
  /// entries.
  [[nodiscard]] virtual std::int64_t budget_entries(double fallback) const = 0;
  /// The mean budget of a stored head in entries: set by select, read by budget and merge.
  [[nodiscard]] virtual std::int64_t entries() const = 0;
  virtual void set_entries(std::int64_t entries) = 0;
  /// Slots that the merge choice reserves (0 for most).
  virtual std::int64_t reserve_slots(std::int64_t beyond_tail) = 0;
  [[nodiscard]] virtual std::int64_t slots() const = 0;
};

// Helpers for declaring the parameters of choices.
inline constexpr double kManyEntries = 1e9;
[[nodiscard]] ParamInfo number_param(std::string name, std::string symbol, double value, double low,
                                     double high, std::string range, std::string help,
                                     std::string source, std::vector<std::string> aliases = {});
[[nodiscard]] ParamInfo integer_param(std::string name, std::string symbol, std::int64_t value,
                                      double low, double high, std::string range, std::string help,
                                      std::string source, std::vector<std::string> aliases = {});
/// The first word is the default.
[[nodiscard]] ParamInfo word_param(std::string name, std::vector<std::string> words,
                                   std::string help, std::string source);
[[nodiscard]] ParamInfo flag_param(std::string name, bool value, std::string help,
                                   std::string source);
/// Any text; empty by default.
[[nodiscard]] ParamInfo text_param(std::string name, std::string range, std::string help,
                                   std::string source);
/// A file path; empty by default.
[[nodiscard]] ParamInfo path_param(std::string name, std::string help, std::string source);

}  // namespace kvsim
