// Converts a model directory to NF4, as `nibble convert IN OUT --to nf4` does.
//
//   example_convert_checkpoint IN OUT
//
// If you do not need to see the plan first, it is a single call: nibble::convert(in, out, recipe).

#include <iostream>
#include <nibble/nibble.hpp>
#include <utility>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: example_convert_checkpoint IN OUT\n";
    return 2;
  }
  try {
    nibble::Recipe recipe;
    recipe.to = "nf4";
    nibble::PlannedConversion conversion(argv[1], argv[2], recipe);  // reads only headers; nothing is written yet
    for (const nibble::PlannedTensor& tensor : conversion.plan().tensors)
      std::cout << tensor.info.name << ": " << tensor.codec.text() << " (" << tensor.reason << ")\n";

    nibble::Progress silent;
    const nibble::Report report = std::move(conversion).run(silent);
    std::cout << report.plan.source_bytes() << " bytes became " << report.plan.stored_bytes() << "\n";
  } catch (const nibble::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
