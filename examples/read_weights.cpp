// Reads the weights of a checkpoint as numbers, whether they are plain or quantized by any tool that nibble knows.
//
//   example_read_weights CHECKPOINT          lists the tensors, as they were before they were quantized
//   example_read_weights CHECKPOINT TENSOR   describes the weights of one tensor

#include <iostream>
#include <nibble/nibble.hpp>
#include <nibble/xtensor.hpp>

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: example_read_weights CHECKPOINT [TENSOR]\n";
    return 2;
  }
  try {
    const auto in = nibble::open_checkpoint(argv[1], {.accept_quantized = true});
    if (argc == 2) {
      const nibble::WeightReader tensors(*in);
      for (std::size_t i = 0; i < tensors.size(); ++i)
        std::cout << tensors[i].name << ' ' << nibble::to_string(tensors[i].shape) << '\n';
      return 0;
    }
    const nibble::Weights weights = nibble::weights(*in, argv[2]);
    const auto tensor = nibble::as_xtensor(weights);  // an expression over weights.values, without a copy
    std::cout << nibble::to_string(weights.shape) << ", mean " << xt::mean(tensor)() << ", largest magnitude "
              << xt::amax(xt::abs(tensor))() << '\n';
  } catch (const nibble::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
