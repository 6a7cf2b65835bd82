#pragma once

// A launch as a file of a container platform.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/launch/launch.hpp"

namespace kvsim {

enum class ManifestKind : std::uint8_t { kCompose, kKubernetes, kLlmD, kDynamo };

/// "compose", "kubernetes", "llm-d" and "dynamo".
[[nodiscard]] std::span<const std::string_view> manifest_kinds();
/// One of these words. Errors: InputError "PLACE: expected …".
[[nodiscard]] ManifestKind read_manifest_kind(std::string_view word, std::string_view place);

/// The launch as YAML, with comments on what has to be filled in: a Compose file, Deployments and
/// Services, values of llm-d's chart llm-d-modelservice, or a DynamoGraphDeployment. `name`: of the
/// objects. Errors: InputError for an engine or a role that the platform does not start.
[[nodiscard]] std::string manifest_text(const Launch& launch, ManifestKind kind,
                                        const std::string& name);

}  // namespace kvsim
