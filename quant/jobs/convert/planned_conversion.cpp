// Open, plan, make the writer, convert: what every caller of convert() would do.

#include <utility>

#include "formats/commit/output_name.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/quantizers/device.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {
namespace {

// Starting a device takes a while, however small the conversion, so the CPU does small conversions.
constexpr std::uint64_t min_for_device = 256 << 20;

std::unique_ptr<Device> open_device(DeviceChoice choice, const Plan& plan) {
  if (choice == DeviceChoice::cpu) return nullptr;
  const Codings codings(plan.recipe);
  std::uint64_t bytes = 0;  // of the weights that it could encode
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.quantized && codings[tensor.codec].quantizer->uses_device(tensor.info)) bytes += tensor.info.bytes();
  if (choice == DeviceChoice::automatic && bytes < min_for_device) return nullptr;
  return Device::open(choice);
}

std::filesystem::path checked(std::filesystem::path out, const Reader& in) {
  check_output_name(out, in);
  return out;
}

}  // namespace

struct PlannedConversion::State {
  State(const std::filesystem::path& from, std::filesystem::path to, const Recipe& recipe,
        const ConversionOptions& chosen)
      : options(chosen),
        in(open_input(from, recipe.intake, options.resources.max_memory)),
        out(checked(std::move(to), *in)),
        stored(*in, schemes_of(recipe.intake)),
        plan(make_plan(stored, recipe)) {
    weigh();
  }

  State(std::unique_ptr<const Reader> from, std::filesystem::path to, const Recipe& recipe,
        const ConversionOptions& chosen)
      : options(chosen),
        in(std::move(from)),
        out(checked(std::move(to), *in)),
        stored(*in, {}),
        plan(make_plan(stored, recipe)) {
    weigh();
  }

  // Before anything is written or told of the plan.
  void weigh() {
    weighing = Weighing(*in, plan, options.resources.max_memory);
    for (const std::string& warning : weighing.warnings()) plan.warnings.emplace_back(warning);
  }

  const Resources& resources() {
    if (options.resources.device == nullptr && !std::exchange(is_device_open, true)) {
      device = open_device(options.device, plan);
      options.resources.device = device.get();
    }
    return options.resources;
  }
  ConversionMemory memory() { return conversion_memory(plan, resources(), weighing.memory()); }
  CreateOptions create_options() {
    return {.shards = plan.shard_ends.size(),
            .bytes = plan.stored_bytes() + memory().spilled_bytes,
            .overwrite = options.overwrite,
            .resume = options.resume,
            .memory = chunk_memory(resources().device)};
  }

  ConversionOptions options;
  std::unique_ptr<const Reader> in;
  std::filesystem::path out;
  StoredWeights stored;
  Plan plan;
  Weighing weighing;
  std::unique_ptr<Device> device;
  bool is_device_open = false;
};

PlannedConversion::PlannedConversion(const std::filesystem::path& in, std::filesystem::path out, const Recipe& recipe,
                                     const ConversionOptions& options)
    : state_(std::make_unique<State>(in, std::move(out), recipe, options)) {}
PlannedConversion::PlannedConversion(std::unique_ptr<const Reader> in, std::filesystem::path out, const Recipe& recipe,
                                     const ConversionOptions& options)
    : state_(std::make_unique<State>(std::move(in), std::move(out), recipe, options)) {}
PlannedConversion::PlannedConversion(PlannedConversion&&) noexcept = default;
PlannedConversion& PlannedConversion::operator=(PlannedConversion&&) noexcept = default;
PlannedConversion::~PlannedConversion() = default;

const Reader& PlannedConversion::input() const noexcept { return *state_->in; }
const Plan& PlannedConversion::plan() const noexcept { return state_->plan; }
Device* PlannedConversion::device() const { return state_->resources().device; }
ConversionMemory PlannedConversion::memory() const { return state_->memory(); }

void PlannedConversion::check_output() const {
  nibble::check_output(state_->out, *state_->in, state_->create_options());
}

Report PlannedConversion::run(Progress& progress) && {
  const std::unique_ptr<Writer> out = create_checkpoint(state_->out, *state_->in, state_->create_options());
  state_->weighing = {};  // convert() has its own
  Report report = convert(state_->stored, std::move(state_->plan), *out, state_->resources(), progress);
  report.remains = out->remains();
  return report;
}

Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options, Progress& progress) {
  return PlannedConversion(in, out, recipe, options).run(progress);
}

Report convert(const std::filesystem::path& in, const std::filesystem::path& out, const Recipe& recipe,
               const ConversionOptions& options) {
  Progress silent;
  return convert(in, out, recipe, options, silent);
}

}  // namespace nibble
