#pragma once

// Rows of the key table (keys.cpp): the object "requests" and its "arrivals".

#include <array>

#include "sim/scenario/fields/key_rows.hpp"

namespace kvsim::key_rows {

// traces/requests reads these; docs/requests.md explains them.
inline constexpr double kLargestCount = 2147483647;
inline constexpr KeyType kLength = of(Kind::kAnyObject);
inline constexpr std::array kRequestsKeys{
    points("file", path(), "", "a request trace, relative to the scenario file"),
    ScenarioKey{
        .name = "format", .type = name(), .default_text = "from its content", .help = "its layout"},
    one("skip_bad", integer(0, kLargestCount), "0",
        "malformed records that may be skipped; they are counted"),
    one("sort", boolean(), "false",
        "true: sort records by time; false: refuse records out of order"),
    one("chars_per_token", number(0.1, 1000), "",
        "ShareGPT without token counts: characters per token"),
    one("tokens_per_word", number(0.01, 1000), "",
        "ShareGPT without token counts: tokens per word"),
    one("arrivals", object("arrivals"), "",
        "arrivals of requests, or of the first requests of sessions"),
    one("count", integer(1, kLargestCount), "required of a generator", "requests of a generator"),
    one("prompt_tokens", kOutputTokens, "required of a generator",
        "prompt lengths: a number, or a distribution", kLength),
    one("output_tokens", kOutputTokens, "required of a generator",
        "output lengths: a number, or a distribution", kLength),
    one("lengths", of(Kind::kAnyObject), "",
        "instead of the two: prompts and outputs drawn together from a file of lengths"),
    one("stratified_lengths", boolean(), "false",
        "true: N requests have one length from each of N equal parts of the distributions, in "
        "random order"),
    one("sessions", of(Kind::kAnyObject), "", "conversations"),
    one("agents", of(Kind::kAnyObject), "",
        "instead of count and lengths: sessions of coding agents, with tool waits and sub-agents"),
    one("shared_prefix", of(Kind::kAnyObject), "", "prompts that begin with one of a few texts"),
    one("think", text(), "", "closed loop: the pause before a user's next request",
        of(Kind::kAnyObject)),
    one("prefix_block", integer(1, kLargestCount), "64", "tokens per id of a shared prefix"),
    one("spread", time(), "", "arrivals at equal times are spread over this time"),
    one("from", time(), "", "only arrivals from this time on"),
    one("until", time(), "", "only arrivals before this time"),
    points("limit", integer(1, kLargestCount), "", "only the first requests"),
    one("repeat", integer(1, 1'000'000), "1",
        "repetitions of the whole workload, one after another"),
    points("rate_scale", kScale, "1", "2: twice the requests per second"),
    points("prompt_scale", kScale, "1", "factor of prompt lengths"),
    points("output_scale", kScale, "1", "factor of output lengths"),
    one("max_prompt_tokens", kTokens, "", "longer prompts are cut"),
    one("max_output_tokens", kTokens, "", "longer outputs are cut"),
    one("declared_tokens", kTokens, "",
        "max_tokens of every request, at which outputs end; output: each declares its actual "
        "output length",
        name("output")),
    one("distinct_prompts", integer(1, 65'536), "",
        "request i sends text i mod N: its part in the prefix cache is not computed again"),
};
inline constexpr std::array kArrivalsKeys{
    one("kind", name("poisson, gamma, fixed, closed"), "required",
        "distribution of arrivals, or a closed loop"),
    points("rate", kScale, "", "requests per second"),
    points("cv", number(0.01, 30), "", "gamma: coefficient of variation of the gaps"),
    points("users", integer(1, kLargestCount), "",
           "closed: users, each of which sends a request when its last one has ended"),
    one("shared", boolean(), "false",
        "closed: users take the next request from a common list, as benchmark clients with a limit "
        "of requests in flight do; false: each has a separate list"),
    one("ramp", time(), "", "closed: time over which the users start"),
};

}  // namespace kvsim::key_rows
