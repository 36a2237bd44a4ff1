#pragma once

#include <oneapi/tbb/parallel_pipeline.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/handover.hpp"

namespace nibble {

/// Processes the weights of one tensor after another, batch by batch. A Batch has `tensor`, a pointer, and `first` and
/// `weights`, the range of its weights; what a stage adds to it stays for the next stage until the slot is reused. A
/// tensor has `elements` and `batch_weights`.
template <class Batch> struct Stages {
  std::function<void()> check;                           ///< before every batch, in order; throws to stop the pipeline
  std::function<decltype(Batch::tensor)()> next_tensor;  ///< in order; null: there is none
  std::function<void(Batch&)> work;                      ///< on all threads
  std::function<void(Batch&)> account;                   ///< in order, for one batch at a time
};

/// Runs
///
///   cut (serial) -> work (parallel) -> account (serial, in order)
///
/// with at most `tokens` batches at a time, on the threads of the caller's oneTBB arena. A tensor without weights is
/// one empty batch.
template <class Batch> void run_pipeline(std::size_t tokens, const Stages<Batch>& stages) {
  struct Slot {
    Batch batch;
    Handover handover;  // last, so that it ends first
  };
  // A ring: because the last stage is in order, the batches in flight are the latest ones, so a slot is free again when
  // its turn comes.
  std::vector<Slot> ring(tokens);
  Handover cutting;
  Handover accounting;
  cutting.give();
  accounting.give();
  std::size_t turn = 0;
  decltype(Batch::tensor) tensor = nullptr;
  std::uint64_t first = 0;
  const auto cut = [&](tbb::flow_control& control) -> Slot* {
    const Turn turn_to_cut(cutting);
    stages.check();
    if (tensor == nullptr) tensor = stages.next_tensor();
    if (tensor == nullptr) {
      control.stop();
      return nullptr;
    }
    Slot& slot = ring[turn++ % ring.size()];
    const Turn turn_with_batch(slot.handover);
    slot.batch.tensor = tensor;
    slot.batch.first = first;
    slot.batch.weights = std::min(tensor->batch_weights, tensor->elements - first);
    first += slot.batch.weights;
    if (first == tensor->elements) tensor = nullptr, first = 0;
    return &slot;
  };
  const auto work = [&](Slot* slot) {
    const Turn turn_with_batch(slot->handover);
    stages.work(slot->batch);
    return slot;
  };
  const auto account = [&](Slot* slot) {
    const Turn turn_to_account(accounting);
    const Turn turn_with_batch(slot->handover);
    stages.account(slot->batch);
  };
  tbb::parallel_pipeline(tokens, tbb::make_filter<void, Slot*>(tbb::filter_mode::serial_in_order, cut) &
                                     tbb::make_filter<Slot*, Slot*>(tbb::filter_mode::parallel, work) &
                                     tbb::make_filter<Slot*, void>(tbb::filter_mode::serial_in_order, account));
  cutting.take();
  accounting.take();
}

}  // namespace nibble
