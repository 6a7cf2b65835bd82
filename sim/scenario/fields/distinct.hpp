#pragma once

// Field::one_or_more() rejects equal values of a list; this rejects different spellings of one
// value.

#include <map>
#include <string>
#include <utility>

#include "models/json/field.hpp"

namespace kvsim {

/// The values of a list read so far. All spellings of a value have the same `Key`.
template <class Key = std::string>
class DistinctValues {
 public:
  /// Errors: InputError if a value with that key was added before.
  void add(Key key, const Field& item) {
    const auto [first, is_new] = seen_.try_emplace(std::move(key), item);
    if (!is_new) item.repeats(first->second);
  }

 private:
  std::map<Key, Field> seen_;
};

}  // namespace kvsim
