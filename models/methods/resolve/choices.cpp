// The choices of every axis. A new choice needs one file and one line here.

#include "models/methods/resolve/choices.hpp"

#include <algorithm>

#include "models/methods/budget/budget.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/methods/prefill/prefill.hpp"
#include "models/methods/read/read.hpp"
#include "models/methods/select/select.hpp"
#include "models/methods/share/share.hpp"
#include "models/methods/store/store.hpp"
#include "models/methods/tier/tier.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::shared_ptr<const ShareRule> no_sharing(MethodResolver& /*resolving*/) { return nullptr; }
std::shared_ptr<const ReadRule> no_choice(MethodResolver& /*resolving*/) { return nullptr; }
std::shared_ptr<const PrefillRule> whole_prompt(MethodResolver& /*resolving*/) { return nullptr; }
std::shared_ptr<const TierRule> no_codec(MethodResolver& /*resolving*/) { return nullptr; }

AxisChoice share_none() {
  return {.axis = "share", .name = "none", .params = {}, .make = &no_sharing};
}
AxisChoice read_all() {
  return {.axis = "read", .name = "all", .params = {}, .make = &no_choice, .takes_budget = false};
}

AxisChoice prefill_full() {
  return {.axis = "prefill",
          .name = "full",
          .params = {},
          .make = &whole_prompt,
          .takes_budget = false};
}
AxisChoice tier_none() {
  return {.axis = "tier", .name = "none", .params = {}, .make = &no_codec, .takes_budget = false};
}

std::vector<AxisChoice> all_choices() {
  return {
      select_all(),
      select_recent(),
      select_separators(),
      select_accumulated(),
      select_window(),
      select_fusion(),
      select_last_row(),
      select_observed(),
      select_persistence(),
      select_pivotal(),
      select_gumbel(),
      select_logit_average(),
      select_key_runs(),
      select_knorm(),
      select_keydiff(),
      select_cur(),
      select_triattention(),
      select_leverage(),
      select_non_causal(),
      select_compactor(),
      select_qfilter(),
      select_capkv(),
      select_expected_attention(),
      select_lagkv(),
      select_random(),
      select_last_window(),
      select_critical(),
      select_chunked(),
      select_within_chunks(),
      select_block_wise(),
      select_periodic(),
      select_prefill_decoding(),
      select_finch(),
      select_recurrence(),
      select_r_kv(),
      select_lazy_layers(),
      select_streaming_heads(),
      select_oracle_future(),
      select_kvzip(),
      select_kvzip_plus(),
      select_kvzap(),
      select_dms(),
      select_dmc(),
      select_pyramid_infer(),

      budget_none(),
      budget_uniform(),
      budget_pyramid(),
      budget_cosine(),
      budget_first_full(),
      budget_global(),
      budget_threshold(),
      budget_nested(),
      budget_ada(),
      budget_lazy(),
      budget_duo(),
      budget_variance(),

      merge_drop(),
      merge_residual(),
      merge_accumulate(),
      merge_zip(),
      merge_cosine_ema(),
      merge_value_spread(),
      merge_value_blend(),
      merge_gaussian(),
      merge_low_rank(),

      share_none(),
      share_minicache(),

      read_all(),
      read_quest(),
      read_oracle_step(),
      read_shadowkv(),
      read_rocket(),
      read_pq(),
      read_dsa(),
      read_blocks(),
      read_arkvale(),
      read_infllm(),

      store_recorded(),
      store_fp32(),
      store_fp16(),
      store_bf16(),
      store_int8(),
      store_rtn(),
      store_fp8_token(),
      store_int8_token(),
      store_int4_rotated(),
      store_quarot(),
      store_rotatekv(),
      store_lmdeploy(),
      store_nvfp4(),
      store_mx16(),
      store_ultraquant(),
      store_turboquant(),
      store_kvarn(),
      store_oscar(),
      store_kvquant(),
      store_polar(),
      store_ds_mla(),
      store_fp8_e4m3(),
      store_fp8_e5m2(),
      store_smoothquant(),
      store_kivi(),
      store_hf_quantized(),
      store_gear(),
      store_think(),
      store_masked(),

      tier_none(),
      tier_nvfp4(),
      tier_cachegen(),
      tier_kvtc(),
      tier_ans(),

      prefill_full(),
      prefill_xattention(),
      prefill_minference(),
      prefill_flexprefill(),
      prefill_skip_softmax(),
      prefill_blend(),
  };
}

}  // namespace

namespace {

std::vector<AxisChoice>& choice_table() {
  static std::vector<AxisChoice> choices = all_choices();
  return choices;
}

}  // namespace

const std::vector<AxisChoice>& axis_choices() { return choice_table(); }

void register_choice(AxisChoice choice) {
  const std::vector<AxisChoice>& known = choice_table();
  KVSIM_CHECK(std::any_of(known.begin(), known.end(),
                          [&](const AxisChoice& each) { return each.axis == choice.axis; }),
              "choice {} on an axis that does not exist: {}", choice.name, choice.axis);
  KVSIM_CHECK(std::none_of(known.begin(), known.end(),
                           [&](const AxisChoice& each) {
                             return each.axis == choice.axis && each.name == choice.name;
                           }),
              "axis {} has a choice {} already", choice.axis, choice.name);
  choice_table().push_back(std::move(choice));
}

}  // namespace kvsim
