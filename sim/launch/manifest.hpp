#pragma once

// Converts a launch to a file of a container platform.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/launch/launch.hpp"

namespace kvsim {

enum class ManifestKind : std::uint8_t { kCompose, kKubernetes, kLlmD, kDynamo };

/// "compose", "kubernetes", "llm-d" and "dynamo".
[[nodiscard]] std::span<const std::string_view> manifest_kinds();
/// Parses one of these words. Errors: InputError "PLACE: expected …".
[[nodiscard]] ManifestKind read_manifest_kind(std::string_view word, std::string_view place);

/// The launch as YAML, with comments on values to fill in: a Compose file, Deployments and
/// Services, values of llm-d's chart llm-d-modelservice, or a DynamoGraphDeployment. `name`: name
/// of the objects. Errors: InputError for an engine or a role that the platform does not support.
[[nodiscard]] std::string manifest_text(const Launch& launch, ManifestKind kind,
                                        const std::string& name);

}  // namespace kvsim
