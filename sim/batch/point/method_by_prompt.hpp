#pragma once

#include <cstdint>
#include <memory>

#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/methods/settle/measured.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// What a method's parameters may depend on in a model.
[[nodiscard]] MethodSite method_site(const Llm& llm, Dtype kv_dtype);

/// A method over batches of any prompt; prompts that are too short for it are held whole.
class MethodByPrompt {
 public:
  /// `law`: not null for a method whose size depends on data.
  MethodByPrompt(MethodSpec method, const Llm& llm, Dtype kv_dtype,
                 std::shared_ptr<const MeasuredLaw> law = nullptr);

  [[nodiscard]] SettledMethod at(std::int64_t prompt) const;
  /// False for prompts that are too short for it.
  [[nodiscard]] bool settles(std::int64_t prompt) const;

 private:
  MethodSpec method_;
  MethodSite site_;
  std::shared_ptr<const MeasuredLaw> law_;
};

}  // namespace kvsim
