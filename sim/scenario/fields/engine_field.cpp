#include "sim/scenario/fields/engine_field.hpp"

#include <string_view>
#include <type_traits>
#include <variant>

#include "models/units/check.hpp"
#include "sim/scenario/fields/key_value.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kEngine = "engine";

template <class T>
T read_value(const Field& value, std::string_view key) {
  if constexpr (std::is_same_v<T, bool>) {
    if (scenario_key(kEngine, key).type.kind == KeyType::Kind::kName) {
      return read_name_index(value, kEngine, key) == 1;
    }
    return value.boolean();
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(read_integer(value, kEngine, key));
  } else if constexpr (std::is_same_v<T, double>) {
    return read_number(value, kEngine, key);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return read_size(value, kEngine, key);
  } else if constexpr (std::is_same_v<T, Seconds>) {
    return read_time(value, kEngine, key);
  } else if constexpr (std::is_same_v<T, Dtype>) {
    (void)read_name_index(value, kEngine, key);  // rejects an unknown name
    return *parse_dtype(value.string());
  } else {
    return read_bandwidth(value, kEngine, key);
  }
}

/// Sets the setting of `key`, a key of the engine, to `value`.
void read_setting(const ScenarioKey& key, const Field& value, StackOptions& options) {
  std::visit(
      [&]<class Member>(Member member) {
        if constexpr (std::is_same_v<Member, std::monostate>) {
          KVSIM_CHECK(false, "/engine/{} sets nothing", key.name);
        } else {
          using T = typename std::remove_reference_t<decltype(options.*member)>::value_type;
          options.*member = read_value<T>(value, key.name);
        }
      },
      key.sets);
}

}  // namespace

StackOptions read_engine(const Field& field) {
  const KeyReader engine{field, kEngine};
  StackOptions options;
  for (const ScenarioKey& key : scenario_object(kEngine).keys) {
    const auto value = engine.find(key.name);
    if (!value) continue;
    if (key.name == "max_model_len" && value->is_string()) {
      if (value->string() != "workload") value->expected("tokens, or \"workload\"");
      options.longest_request = true;
    } else {
      read_setting(key, *value, options);
    }
  }
  return options;
}

}  // namespace kvsim
