// Converts a model directory to NF4, as `nibble convert IN OUT --to nf4` does.
//
//   example_convert_checkpoint IN OUT

#include <iostream>
#include <nibble/nibble.hpp>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: example_convert_checkpoint IN OUT\n";
    return 2;
  }
  try {
    const auto in = nibble::open_checkpoint(argv[1]);

    nibble::Recipe recipe;
    recipe.to = "nf4";
    nibble::Plan plan = nibble::make_plan(*in, recipe);  // from headers alone: nothing is read or written yet
    for (const nibble::PlannedTensor& tensor : plan.tensors)
      std::cout << tensor.info.name << ": " << tensor.codec.text() << " (" << tensor.reason << ")\n";

    const auto out =
        nibble::create_checkpoint(argv[2], *in, {.shards = plan.shard_ends.size(), .bytes = plan.stored_bytes()});
    nibble::Progress silent;
    const nibble::Report report = nibble::convert(*in, std::move(plan), *out, {}, silent);
    std::cout << report.plan.source_bytes() << " bytes became " << report.plan.stored_bytes() << "\n";
  } catch (const nibble::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
