#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/role.hpp"

/// What architectures.jsonl, beside this file, says of a model. The line of its class is put together here: from the
/// lines that it refers to, and from the lines of its parts where config.json names others than the class has by
/// default.
namespace nibble {

/// The table, as cmake/embed.cmake compiles it in: JSON lines, the first of which names its version.
extern const std::string_view architectures_jsonl;

/// The version of transformers that the table was made from: "5.23.0".
[[nodiscard]] std::string architectures_version();

/// Why a parameter has its role.
enum class Why : std::uint8_t {
  linear,
  conv1d,
  embedding,
  expert,
  other,
  output_embeddings,
  last_parameter,
  kept_in_fp32,
  not_exactly_linear,
  shared_module,
  tied_weights,
  used_outside,  ///< its model uses the weight itself, as in F.linear(x, layer.weight); codes cannot replace it
};

/// In the words of the table: "linear layer".
[[nodiscard]] std::string text_of(Why why);

/// The modules or parameters of a name. `*` stands for any number between dots, `$` for the largest in the file.
struct RolePattern {
  std::string pattern;  ///< a module, or a parameter that is not a module's weight
  Role role = Role::unknown;
  Why why = Why::other;
};

/// A rename or merge of stored names. `from`, `unless` and `when` are regular expressions.
struct NameRule {
  std::string from;                   ///< the first match becomes `to`
  std::vector<std::string> to;        ///< several: one tensor becomes several parameters
  std::optional<std::string> unless;  ///< names that it leaves alone
  std::optional<std::string> when;    ///< applies only if the file has a name like this
  std::optional<std::string> scope;   ///< applies only to names below this module, base_model_prefix left out
};

struct ArchitectureLine {
  std::string prefix;                             ///< base_model_prefix
  std::string blocker;                            ///< why it cannot be loaded quantized; empty if it can
  std::vector<RolePattern> patterns;              ///< of a model whose embeddings are not tied
  std::vector<std::pair<std::string, Why>> tied;  ///< of a tied one: patterns that are kept, and why
  std::vector<NameRule> renames, merges;          ///< in the order in which loading applies them
  std::vector<std::string> fp32;         ///< expressions that find the parameters kept in fp32 in a model of fp16
  std::vector<std::string> fp32_strict;  ///< the same, in a model of fp16 or bf16
  bool has_other_parts = false;          ///< than the class has by default, or of unknown types
};

/// Nothing if the table lacks the class.
[[nodiscard]] std::optional<ArchitectureLine> find_architecture_line(const ModelClass& model);

}  // namespace nibble
