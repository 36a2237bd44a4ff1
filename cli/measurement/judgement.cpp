#include "cli/measurement/judgement.hpp"

#include <cmath>

namespace nibble::cli {

bool is_broken(const MeasuredWeights& tensor, const MeasuredError& error) {
  return error.stats.lost > 0 || error.stats.nan + error.stats.inf > tensor.stats.nan + tensor.stats.inf;
}

Judgement judge(const MeasuredWeights& tensor, const MeasuredError& error) {
  if (is_broken(tensor, error)) return Judgement::broken;
  if (!has_error(tensor, error)) return Judgement::expected;
  const double db = error.stats.sqnr_db();
  if (!std::isfinite(db)) return Judgement::broken;
  // What is exact for every other type rounds fp64.
  const bool rounds = tensor.info.dtype == DType::f64 && std::isinf(error.normal_sqnr_db);
  if (std::isnan(error.normal_sqnr_db) || rounds) return Judgement::unknown;
  return db >= error.normal_sqnr_db - expected_margin_db ? Judgement::expected : Judgement::worse;
}

}  // namespace nibble::cli
