#pragma once

#include <string>
#include <vector>

namespace kvsim {

using HeadTable = std::vector<std::vector<double>>;  // [layer][KV head]

/// Scores of heads as DuoAttention releases them (full_attention_heads.tsv): a line a layer, a
/// number a KV head between blanks; empty lines are passed over. Errors: InputError "PATH:LINE: …"
/// if the file cannot be read, a word is no finite number, or layers differ in their heads.
[[nodiscard]] HeadTable read_head_table(const std::string& path);

}  // namespace kvsim
