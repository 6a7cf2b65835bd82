#pragma once

#include <cstdint>
#include <memory>

#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// Returns the properties of a model that a method's parameters may depend on.
[[nodiscard]] MethodContext method_site(const Llm& llm, Dtype kv_dtype);

/// A method for batches of any prompt length. If a prompt is too short for the method, the full
/// cache is kept.
class MethodByPrompt {
 public:
  /// `law`: not null for a method whose size depends on data.
  MethodByPrompt(MethodSpec method, const Llm& llm, Dtype kv_dtype,
                 std::shared_ptr<const MeasuredLaw> law = nullptr);

  [[nodiscard]] std::shared_ptr<const Method> at(std::int64_t prompt) const;
  /// False for prompts that are too short for it.
  [[nodiscard]] bool resolves(std::int64_t prompt) const;

 private:
  MethodSpec method_;
  MethodContext site_;
  std::shared_ptr<const MeasuredLaw> law_;
};

}  // namespace kvsim
