#include "quant/jobs/convert/finished.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

namespace nibble {
namespace {

using Cbor = nlohmann::json;

// The records are CBOR: it holds every double exactly, and bytes.
Cbor cbor_of(const Findings& found) {
  return {found.nan,       found.inf,       found.overflow,       found.overflow_fp32,
          found.underflow, found.subnormal, found.first_nonfinite};
}

Findings findings_of(const Cbor& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5), json.at(6)};
}

Cbor cbor_of(const ErrorSums& error) { return {error.count, error.square, error.product, error.reference, error.test}; }

ErrorSums sums_of(const Cbor& json) { return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)}; }

Cbor cbor_of(const std::vector<Xxh3>& hashes) {
  Cbor::binary_t::container_type bytes(hashes.size() * sizeof(Xxh3));
  if (!hashes.empty()) std::memcpy(bytes.data(), hashes.data(), bytes.size());
  return Cbor::binary(std::move(bytes));
}

std::vector<Xxh3> hashes_of(const Cbor& json) {
  const Cbor::binary_t& bytes = json.get_binary();
  std::vector<Xxh3> hashes(bytes.size() / sizeof(Xxh3));
  if (!hashes.empty()) std::memcpy(hashes.data(), bytes.data(), hashes.size() * sizeof(Xxh3));
  return hashes;
}

}  // namespace

std::string record_of(const Finished& finished) {
  Cbor json;
  if (const auto* const kept = std::get_if<KeptTensor>(&finished)) {
    json = {kept->tensor, cbor_of(kept->findings)};
  } else {
    const auto& tensor = std::get<FinishedTensor>(finished);
    Cbor hashes = Cbor::array();
    for (const std::vector<Xxh3>& part : tensor.hashes) hashes.push_back(cbor_of(part));
    json = {tensor.tensor, cbor_of(tensor.findings), cbor_of(tensor.error), tensor.sqnr_db,
            tensor.entry,  std::move(hashes)};
  }
  std::string record;
  Cbor::to_cbor(json, record);
  return record;
}

std::optional<Finished> finished_of(std::string_view record) {
  try {
    const Cbor json = Cbor::from_cbor(record);
    if (json.size() == 2) return KeptTensor{json.at(0), findings_of(json.at(1))};
    FinishedTensor tensor{json.at(0), findings_of(json.at(1)), sums_of(json.at(2)), json.at(3), json.at(4)};
    for (const Cbor& part : json.at(5)) tensor.hashes.push_back(hashes_of(part));
    return tensor;
  } catch (const Cbor::exception&) {
    return std::nullopt;
  }
}

}  // namespace nibble
