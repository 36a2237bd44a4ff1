#include "quant/jobs/plan/part_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "formats/containers/part_list.hpp"
#include "nibble/error.hpp"
#include "quant/stream/shard_parts.hpp"

namespace nibble {

void check_part_names(const Reader& in, const PlannedTensors& tensors, const Codings& codings) {
  // Tensors that are cast or kept have the names of the input, which are unique.
  if (std::none_of(tensors.begin(), tensors.end(), [](const PlannedTensor& tensor) { return tensor.quantized; }))
    return;
  const ShardParts parts(tensors, 0, tensors.size(), codings);
  const auto twice = find_duplicate(parts);
  if (!twice) return;
  const auto source_of = [&](std::size_t part) { return tensors[parts.tensor_of(part)].source; };
  const auto [first, second] = *twice;
  const PartList::Name name = parts.name(second);
  throw Error(
      Errc::bad_input, in.label_of(source_of(second)),
      fmt::format("tensors '{}' and '{}' would both be stored with a part named '{}'",
                  printable(in.tensors().name(source_of(first))), printable(in.tensors().name(source_of(second))),
                  printable(std::string(name.stem).append(name.rest))));
}

}  // namespace nibble
