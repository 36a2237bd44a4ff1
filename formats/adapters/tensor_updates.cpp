// The shapes of factors, and what they say about the tensor that they change.

#include "formats/adapters/tensor_updates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/refuse.hpp"
#include "formats/adapters/base_names.hpp"
#include "formats/equal_tensors.hpp"
#include "formats/models/weight_name.hpp"

namespace nibble {
namespace {

// A tensor of the base as matrices [rows, columns] of its experts.
struct MatrixShape {
  std::uint64_t experts = 1, rows = 0, columns = 0;
  [[nodiscard]] bool is(std::uint64_t r, std::uint64_t c) const { return rows == r && columns == c; }
};

// What the shapes of A and B say.
struct FactorShape {
  std::uint64_t rank = 0, in = 0, out = 0;  // rank of all experts together
};

bool is_weight_of(const std::vector<std::string>& modules, std::string_view parameter) {
  return parameter.ends_with(weight_suffix) &&
         std::ranges::find(modules, without_weight_suffix(parameter)) != modules.end();
}

class UpdatePlanner {
 public:
  UpdatePlanner(const Adapter& adapter, const AdapterBase& base)
      : adapter_(adapter), tensors_(adapter.weights().tensors()), base_(base), names_(base.tensors, base.roles) {}

  std::vector<TensorUpdate> plan() {
    for (const auto& [name, tensor] : adapter_.replacements()) add_replacement(name, tensor);
    for (const auto& [name, module] : adapter_.modules()) {
      if (!module.low_rank.empty()) add_low_rank(name, module);
      if (module.tokens) add_tokens(name, *module.tokens);
    }
    std::vector<TensorUpdate> updates;
    updates.reserve(updates_.size());
    for (const auto& [tensor, update] : updates_) updates.push_back(update);
    return updates;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse_tensor(std::size_t tensor, fmt::format_string<Args...> text, Args&&... args) const {
    refuse(adapter_.weights().label_of(tensor), "tensor '{}': {}", printable(tensors_.name(tensor)),
           fmt::format(text, std::forward<Args>(args)...));
  }

  [[nodiscard]] std::string described(std::size_t tensor) const {
    return fmt::format("'{}' of {} is {}", printable(base_.tensors.name(tensor)), base_.label,
                       to_string(base_.tensors[tensor].shape));
  }

  // Says that the base has no such parameter, or several.
  [[noreturn]] void refuse_missing(std::size_t tensor, const std::string& parameter) const {
    if (const auto all = names_.find_all(parameter); all.size() > 1)
      refuse_tensor(tensor, "{} has several tensors that may be '{}': '{}' and '{}'", base_.label, printable(parameter),
                    printable(base_.tensors.name(all[0])), printable(base_.tensors.name(all[1])));
    refuse_tensor(tensor, "{} has no tensor '{}'{}", base_.label, printable(parameter),
                  base_.tied && (base_.guessed || base_.is_tied_output(parameter))
                      ? ": its output layer may be tied to its embeddings"
                      : "");
  }

  [[nodiscard]] std::size_t find(std::size_t tensor, const std::string& parameter) const {
    const auto found = names_.find(parameter);
    if (!found) refuse_missing(tensor, parameter);
    return *found;
  }

  TensorUpdate& update(std::size_t tensor) {
    TensorUpdate& update = updates_[tensor];
    update.tensor = tensor;
    return update;
  }

  // The same, of a base tensor that `tensor` changes.
  TensorUpdate& change(std::size_t target, std::size_t tensor) {
    if (const DType dtype = base_.tensors.dtype(target); !is_weight_type(dtype))
      refuse_tensor(tensor, "'{}' of {} is of type {}, which cannot be updated", printable(base_.tensors.name(target)),
                    base_.label, traits(dtype).name);
    return update(target);
  }

  // Two names of an adapter may stand for one tensor of the base.
  void check_first(std::optional<std::size_t> before, std::size_t target, std::size_t tensor) const {
    if (before)
      refuse_tensor(tensor, "changes '{}' of {}, and so does '{}'", printable(base_.tensors.name(target)), base_.label,
                    printable(tensors_.name(*before)));
  }

  // ---- replacements, rows and biases

  void add_replacement(const std::string& name, std::size_t tensor) {
    const bool may_be_tied = base_.tied && (base_.is_tied_output(name) || base_.is_embedding(name));
    if (may_be_tied && !names_.find(name) && repeats_embeddings(tensor)) return;
    const std::size_t target = find(tensor, name);
    const TensorInfo ours = tensors_[tensor], theirs = base_.tensors[target];
    if (ours.shape != theirs.shape) refuse_tensor(tensor, "is {}, but {}", to_string(ours.shape), described(target));
    if (ours.dtype != theirs.dtype && !(is_weight_type(ours.dtype) && is_weight_type(theirs.dtype)))
      refuse_tensor(tensor, "is of type {}, but '{}' of {} is of type {}", traits(ours.dtype).name,
                    printable(theirs.name), base_.label, traits(theirs.dtype).name);
    check_first(update(target).replacement, target, tensor);
    update(target).replacement = tensor;
  }

  // Of layers that stay tied, an adapter may have the weight twice.
  [[nodiscard]] bool repeats_embeddings(std::size_t tensor) const {
    return std::ranges::any_of(adapter_.replacements(), [&](const auto& other) {
      const auto target = names_.find(other.first);
      return target && names_.role(*target) == Role::embedding && are_equal(adapter_.weights(), tensor, other.second);
    });
  }

  void add_tokens(const std::string& module, std::size_t tensor) {
    const AdapterConfig::TrainableTokens* rows = nullptr;
    for (const auto& tokens : adapter_.config().trainable_tokens()) {
      if (!tokens.module.empty() && module != tokens.module && !module.ends_with("." + tokens.module)) continue;
      if (rows != nullptr && rows->rows != tokens.rows)
        refuse_tensor(tensor, "trainable_token_indices of '{}' and of '{}' in {} are different, and both are for '{}'",
                      printable(rows->module), printable(tokens.module), AdapterConfig::file_name, printable(module));
      rows = &tokens;
    }
    if (rows == nullptr)
      refuse_tensor(tensor, "{} has no trainable_token_indices for '{}'", AdapterConfig::file_name, printable(module));
    const std::size_t target = find(tensor, module + std::string(weight_suffix));
    const Shape ours = tensors_[tensor].shape, theirs = base_.tensors[target].shape;
    if (ours.size() != 2 || theirs.size() != 2 || ours[1] != theirs[1])
      refuse_tensor(tensor, "is {}, but {}", to_string(ours), described(target));
    if (ours[0] != rows->rows.size()) refuse_tensor(tensor, "has {} rows for {} tokens", ours[0], rows->rows.size());
    if (const auto last = std::ranges::max_element(rows->rows); last != rows->rows.end() && *last >= theirs[0])
      refuse_tensor(tensor, "changes token {}, but {}", *last, described(target));
    TensorUpdate& of_tensor = change(target, tensor);
    check_first(of_tensor.tokens, target, tensor);
    of_tensor.tokens = tensor;
    of_tensor.token_rows = rows->rows;
  }

  void add_bias(const std::string& module, std::size_t tensor, double scale) {
    const std::string parameter = module + ".bias";
    const auto target = names_.find(parameter);
    if (!target) refuse_missing(tensor, parameter);
    if (tensors_[tensor].shape != base_.tensors[*target].shape)
      refuse_tensor(tensor, "is {}, but {}", to_string(tensors_[tensor].shape), described(*target));
    TensorUpdate& of_tensor = change(*target, tensor);
    of_tensor.bias = tensor;
    of_tensor.bias_scale = scale;
  }

  // ---- factors

  // The parameters of a module that target_parameters names; nothing else says which one a factor belongs to.
  [[nodiscard]] std::vector<std::string> parameters_of(const std::string& module) const {
    std::vector<std::string> parameters;
    for (const std::string& target : adapter_.config().target_parameters()) {
      const std::string parameter = module + "." + target.substr(target.rfind('.') + 1);
      const bool is_named = parameter == target || parameter.ends_with("." + target);
      if (is_named && (names_.find(parameter) || !names_.find_experts(parameter).empty()) &&
          std::ranges::find(parameters, parameter) == parameters.end())
        parameters.push_back(parameter);
    }
    return parameters;
  }

  void add_low_rank(const std::string& module, const Adapter::Module& of_module) {
    const std::vector<std::string> parameters = parameters_of(module);
    if (!parameters.empty()) return add_parameters(module, parameters, of_module);
    for (const auto& [depth, factors] : of_module.low_rank) {
      if (depth != of_module.low_rank.begin()->first || of_module.low_rank.size() > 1)
        refuse_tensor(*factors.a, "is one of several updates of '{}', which target_parameters does not name",
                      printable(module));
      std::string parameter = module + std::string(weight_suffix);
      // torch's attention has the weights of its three projections in one matrix.
      if (const std::string attention = module + ".in_proj_weight"; !names_.find(parameter) && names_.find(attention)) {
        if (factors.magnitude)
          refuse_tensor(*factors.magnitude, "is of DoRA, which peft does not have for the matrix '{}'",
                        printable(attention));
        parameter = attention;
      }
      add_factors(find(*factors.a, parameter), factors, module);
      if (factors.b_bias) add_bias(module, *factors.b_bias, scale(*factors.b_bias, module));
    }
  }

  // Several parameters of one module: the order in which their wrappers are nested is that of the module's parameters,
  // which the file does not tell. Their shapes do.
  void add_parameters(const std::string& module, const std::vector<std::string>& parameters,
                      const Adapter::Module& of_module) {
    std::vector<std::size_t> order(parameters.size()), right;
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t first = *of_module.low_rank.begin()->second.a;
    if (order.size() != of_module.low_rank.size())
      refuse_tensor(first, "'{}' has {} updates, but target_parameters names {} of its parameters", printable(module),
                    of_module.low_rank.size(), order.size());
    constexpr std::size_t max_parameters = 6;  // of which there are 720 orders
    if (order.size() > max_parameters)
      refuse_tensor(first, "'{}' has {} updates, at most {} can be told apart", printable(module), order.size(),
                    max_parameters);
    do {
      auto parameter = order.begin();
      const auto fits = [&](const auto& entry) { return fit(parameters[*parameter++], entry.second); };
      if (!std::ranges::all_of(of_module.low_rank, fits)) continue;
      if (!right.empty())
        refuse_tensor(first, "the shapes of the updates of '{}' do not tell which parameter each belongs to",
                      printable(module));
      right = order;
    } while (std::ranges::next_permutation(order).found);
    if (right.empty())
      refuse_tensor(first, "the shapes of the updates of '{}' fit none of its parameters in {}", printable(module),
                    base_.label);
    auto parameter = right.begin();
    for (const auto& [depth, factors] : of_module.low_rank) add_parameter(parameters[*parameter++], factors);
  }

  [[nodiscard]] bool fit(const std::string& parameter, const Adapter::LowRank& factors) const {
    const FactorShape shape = factor_shape(factors);
    const MatrixShape matrix = matrix_shape(parameter);
    return shape.rank == adapter_.config().rank(parameter) * matrix.experts &&
           (matrix.is(shape.out, shape.in) || matrix.is(shape.in, shape.out));
  }

  [[nodiscard]] MatrixShape matrix_shape(const std::string& parameter) const {
    if (const auto target = names_.find(parameter)) {
      const auto sides = base_.tensors.shape(*target);
      if (sides.size() == 2) return {1, sides[0], sides[1]};
      return sides.size() == 3 ? MatrixShape{sides[0], sides[1], sides[2]} : MatrixShape{};
    }
    MatrixShape shape;
    for (const ExpertMatrix& matrix : names_.find_experts(parameter)) {
      const auto sides = base_.tensors.shape(matrix.tensor);
      if (matrix.expert == 0) shape.rows += sides[0];
      shape.columns = sides[1];
      shape.experts = matrix.expert + 1;
    }
    return shape;
  }

  void add_parameter(const std::string& parameter, const Adapter::LowRank& factors) {
    if (const auto target = names_.find(parameter)) return add_factors(*target, factors, parameter);
    add_experts(names_.find_experts(parameter), factors, parameter);
  }

  [[nodiscard]] double scale(std::size_t tensor, const std::string& name) const {
    const double scale = adapter_.config().scale(name);
    if (!std::isfinite(static_cast<float>(scale)))
      refuse_tensor(tensor, "its scale is {}, which fp32 cannot hold", scale);
    return scale;
  }

  // The factors as matrices; those of convolutions have kernels of 1 in B.
  [[nodiscard]] FactorShape factor_shape(const Adapter::LowRank& factors) const {
    const Shape a = tensors_[*factors.a].shape, b = tensors_[*factors.b].shape;
    const auto fits = [&] { return a.size() >= 2 && a.size() == b.size() && a[0] == b[1]; };
    if (!fits() || std::any_of(b.begin() + 2, b.end(), [](std::uint64_t size) { return size != 1; }))
      refuse_tensor(*factors.a, "is {}, which does not fit '{}', which is {}", to_string(a),
                    printable(tensors_.name(*factors.b)), to_string(b));
    const std::uint64_t in = element_count(std::span(a).subspan(1));
    if (a[0] == 0 || in == 0 || b[0] == 0) refuse_tensor(*factors.a, "is {}: it is empty", to_string(a));
    return {a[0], in, b[0]};
  }

  // DoRA's magnitudes are those of the rows of one matrix.
  void check_no_magnitude(const Adapter::LowRank& factors, const std::string& name) const {
    if (factors.magnitude)
      refuse_tensor(*factors.magnitude, "is of DoRA, which cannot be merged into the experts '{}'", printable(name));
  }

  [[nodiscard]] LowRankUpdate low_rank(const Adapter::LowRank& factors, const FactorShape& shape, std::uint64_t experts,
                                       const std::string& name) const {
    LowRankUpdate update;
    update.a = *factors.a;
    update.b = *factors.b;
    update.magnitude = factors.magnitude;
    update.experts = experts;
    update.rank = adapter_.config().rank(name);
    update.scale = scale(*factors.a, name);
    if (shape.rank % experts != 0 || shape.rank / experts != update.rank)
      refuse_tensor(*factors.a, "has {} rows, but r is {}{} in {}", shape.rank, update.rank,
                    experts == 1 ? "" : fmt::format(" for each of {} experts", experts), AdapterConfig::file_name);
    if (factors.magnitude && tensors_[*factors.magnitude].elements() != shape.out)
      refuse_tensor(*factors.magnitude, "is {}, not one number for each of {} rows of '{}'",
                    to_string(tensors_[*factors.magnitude].shape), shape.out, printable(tensors_.name(*factors.b)));
    return update;
  }

  void add_factors(std::size_t target, const Adapter::LowRank& factors, const std::string& name) {
    const FactorShape shape = factor_shape(factors);
    const Shape a = tensors_[*factors.a].shape, w = base_.tensors[target].shape;
    const auto mismatch = [&] {
      refuse_tensor(*factors.a, "is {} and '{}' is {}: that is for a matrix {} x {}, but {}", to_string(a),
                    printable(tensors_.name(*factors.b)), to_string(tensors_[*factors.b].shape), shape.out, shape.in,
                    described(target));
    };
    MatrixShape matrix;
    if (a.size() > 2 && a.size() == w.size() && std::equal(a.begin() + 1, a.end(), w.begin() + 1))
      matrix = {1, w[0], shape.in};
    else if (a.size() == 2 && (w.size() == 2 || w.size() == 3))
      matrix = {w.size() == 3 ? w[0] : 1, w[w.size() - 2], w.back()};
    const bool straight = matrix.is(shape.out, shape.in), across = matrix.is(shape.in, shape.out);
    if ((!straight && !across) || matrix.experts == 0) mismatch();
    if (matrix.experts > 1) check_no_magnitude(factors, name);
    LowRankUpdate result = low_rank(factors, shape, matrix.experts, name);
    result.transposed = straight && across ? is_transposed(target, factors, name) : across;
    if (factors.embedding ? !result.transposed : result.transposed && !may_be_transposed(target, a)) mismatch();
    TensorUpdate& of_tensor = change(target, *factors.a);
    if (of_tensor.low_rank) check_first(of_tensor.low_rank->a, target, *factors.a);
    of_tensor.low_rank = result;
  }

  // A guess does not tell a linear layer from a Conv1D.
  [[nodiscard]] Role known_role(std::size_t target) const {
    return base_.guessed ? Role::unknown : names_.role(target);
  }

  // Linear layers and convolutions store [out, in].
  [[nodiscard]] bool may_be_transposed(std::size_t target, const Shape& a) const {
    const Role role = known_role(target);
    const bool is_linear = role == Role::linear || role == Role::output_embeddings || role == Role::kept;
    return a.size() == 2 && !is_linear;
  }

  // Whether a square tensor is stored as [in, out].
  [[nodiscard]] bool is_transposed(std::size_t target, const Adapter::LowRank& factors, const std::string& name) const {
    if (factors.embedding) return true;
    if (tensors_[*factors.a].shape.size() > 2) return false;
    const std::size_t dimensions = base_.tensors.shape(target).size();
    if (dimensions == 2 && known_role(target) == Role::conv1d)
      return base_.turned_conv1d.empty() || !base_.turned_conv1d[target];
    if (dimensions == 2) return known_role(target) == Role::unknown && adapter_.config().fan_in_fan_out();
    // The experts of one module are all stored in the same way, and gate and up together are not square.
    const auto gate_up = names_.find(name.substr(0, name.rfind('.') + 1) + "gate_up_proj");
    const auto sides = gate_up ? base_.tensors.shape(*gate_up) : std::span<const std::uint64_t>();
    if (sides.size() != 3 || sides[1] == sides[2])
      refuse_tensor(*factors.a, "{}: its shape does not tell whether it is transposed", described(target));
    return sides[2] > sides[1];
  }

  // Experts that the base stores one by one, and the model in memory as one parameter.
  void add_experts(const std::vector<ExpertMatrix>& matrices, const Adapter::LowRank& factors,
                   const std::string& parameter) {
    const FactorShape shape = factor_shape(factors);
    const std::uint64_t experts = matrices.back().expert + 1;
    check_no_magnitude(factors, parameter);
    LowRankUpdate result = low_rank(factors, shape, experts, parameter);
    std::uint64_t next_expert = 0, out = 0;
    const auto end_expert = [&] {
      if (out != shape.out)
        refuse_tensor(*factors.b, "has {} rows, but expert {} of '{}' in {} has {}", shape.out, next_expert,
                      printable(parameter), base_.label, out);
      ++next_expert;
      out = 0;
    };
    for (const ExpertMatrix& matrix : matrices) {
      if (matrix.expert != next_expert) end_expert();
      const auto sides = base_.tensors.shape(matrix.tensor);
      if (matrix.expert != next_expert || sides[1] != shape.in)
        refuse_tensor(*factors.a, "has {} columns, but {}", shape.in, described(matrix.tensor));
      result.expert = matrix.expert;
      result.first_out = out;
      out += sides[0];
      change(matrix.tensor, *factors.a).low_rank = result;
    }
    end_expert();
  }

  const Adapter& adapter_;
  const TensorList& tensors_;
  const AdapterBase& base_;
  BaseNames names_;
  std::map<std::size_t, TensorUpdate> updates_;
};

}  // namespace

bool AdapterBase::is_tied_output(std::string_view parameter) const { return is_weight_of(layers.tied, parameter); }

bool AdapterBase::is_embedding(std::string_view parameter) const { return is_weight_of(layers.embeddings, parameter); }

std::vector<TensorUpdate> plan_updates(const Adapter& adapter, const AdapterBase& base) {
  return UpdatePlanner(adapter, base).plan();
}

}  // namespace nibble
