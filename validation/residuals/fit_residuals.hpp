#pragma once

#include <string>
#include <vector>

#include "models/cost/residuals/residuals.hpp"

namespace kvsim {

/// One measured value of a service next to its prediction.
struct ResidualRow {
  ResidualKey key;
  std::string document;
  double log_ratio = 0;  // log(measured / predicted)
};

/// The classes of `rows`: one per key, and one of all stacks per metric, completeness and
/// queue.
///
/// The distribution of a class is a mixture: each of its documents has the weight 1, whatever its
/// number of rows, and the documents of the same metric and queue outside of the class have a
/// weight together, in documents: the one of kPooledWeights that gives the lowest interval score
/// over all classes with each document left out in turn. So a class with one document leans on the
/// pool, and one with ten has mostly its own. `low` and `high` are the 5 % and 95 % quantiles of
/// the mixture. Documents that have fewer than kLeastRows rows in a class count with rows /
/// kLeastRows. Errors: ContractError if `rows` is empty.
[[nodiscard]] std::vector<ResidualClass> fit_residuals(const std::vector<ResidualRow>& rows);

}  // namespace kvsim
