#include "tests/support/conversion.hpp"

#include "quant/jobs/convert/convert.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble::test {

Recipe recipe(const CodecSpec& to) {
  Recipe recipe;
  recipe.to = to;
  return recipe;
}

Recipe with_experts(const CodecSpec& to) {
  Recipe result = recipe(to);
  result.experts = to;
  result.allow_nibble_only = true;
  return result;
}

Converted converted(const MemoryReader& in, const Recipe& recipe) {
  MemoryWriter out;
  Progress progress;
  Converted result{{}, convert(in, make_plan(in, recipe), out, {}, progress).plan};
  for (const PlannedTensor& tensor : result.plan.tensors)
    for (auto& [part, plane] : stored_parts(*make_codec(tensor.codec), tensor.info)) {
      std::vector<std::byte> bytes = out.parts().at(part.name);
      result.reader.add(std::move(part), std::move(bytes));
    }
  return result;
}

Candidate checkpoint(const Reader& reader) { return {"checkpoint", &reader, std::nullopt}; }
Candidate plan(const Reader& in, const Recipe& recipe) { return {"plan", nullptr, make_plan(in, recipe)}; }

}  // namespace nibble::test
