#include "sim/report/catalogue/describe_capacity.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/llm/weight_format.hpp"
#include "models/units/units_format.hpp"
#include "sim/report/catalogue/describe_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

struct Answer {
  VllmGroups groups;
  VllmCapacity capacity;
};

Answer answer_of(const Llm& llm, const CapacityQuestion& question) {
  const VllmGroupSettings& settings = question.settings;
  const VllmGroups groups = vllm_groups(tensor_shard(llm, question.tensor_parallel), settings);
  return {groups, vllm_capacity(groups, question.available, settings.max_model_len)};
}

}  // namespace

ordered_json capacity_json(const Llm& llm, const CapacityQuestion& question) {
  const auto [groups, capacity] = answer_of(llm, question);
  ordered_json out{{"kv_memory_bytes", question.available.count()},
                   {"tensor_parallel", question.tensor_parallel},
                   {"kv_dtype", name_of(question.settings.kv_dtype)},
                   {"max_model_len", question.settings.max_model_len},
                   {"block_tokens", groups.block_tokens},
                   {"block_bytes", groups.block_id.count()},
                   {"num_blocks", capacity.blocks},
                   {"request_blocks", groups.request_blocks},
                   {"max_concurrency", capacity.concurrency},
                   {"capacity_tokens", capacity.tokens},
                   {"capacity_tokens_before_mid_2026", capacity.tokens_before},
                   {"groups", ordered_json::array()}};
  for (const VllmGroup& group : groups.groups) {
    out["groups"].push_back({{"kind", group.kind},
                             {"layers", group.layers},
                             {"padding", group.padding},
                             {"block_tokens", group.block_tokens},
                             {"request_blocks", group.request_blocks}});
  }
  return out;
}

std::string capacity_text(const Llm& llm, const CapacityQuestion& question, std::size_t width) {
  const auto [groups, capacity] = answer_of(llm, question);
  Facts facts;
  facts.add("cache memory",
            fmt::format("{} on each of {} GPUs, {}", question.available, question.tensor_parallel,
                        name_of(question.settings.kv_dtype)));
  for (const VllmGroup& group : groups.groups) {
    facts.add(
        "group",
        fmt::format("{} {} layers{}, blocks of {} tokens; {} per request", group.layers, group.kind,
                    group.padding > 0 ? fmt::format(" and {} empty", group.padding) : "",
                    with_commas(group.block_tokens), with_commas(group.request_blocks)));
  }
  facts.add("blocks",
            fmt::format("{} of {}; a request of {} tokens needs {}", with_commas(capacity.blocks),
                        groups.block_id, with_commas(question.settings.max_model_len),
                        with_commas(groups.request_blocks)));
  facts.add("GPU KV cache size",
            fmt::format("{} tokens ({} as vLLM counted before mid 2026)",
                        with_commas(capacity.tokens), with_commas(capacity.tokens_before)));
  facts.add("maximum concurrency", fmt::format("{:.2f} requests of {} tokens", capacity.concurrency,
                                               with_commas(question.settings.max_model_len)));
  return "\nvLLM's cache of " + llm.name + "\n" + facts.str(width);
}

}  // namespace kvsim
