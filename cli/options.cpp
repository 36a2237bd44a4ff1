#include "cli/options.hpp"

#include "cli/sizes.hpp"

namespace nibble::cli {

Resources ResourceOptions::resources() const {
  return {.threads = threads, .max_memory = parse_size("--max-memory", max_memory)};
}

void add_max_memory(CLI::App& command, ResourceOptions& options) {
  command.add_option("--max-memory", options.max_memory, "Peak memory; chunks are planned within it")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(resources_group);
}

void add_threads(CLI::App& command, ResourceOptions& options) {
  command.add_option("--threads", options.threads, "[the processors this process may use]")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("N")
      ->group(resources_group);
}

void add_progress(CLI::App& command, std::string& style) {
  style = "auto";
  command.add_option("--progress", style, "Shown on stderr: auto, bar, plain, json or none")
      ->capture_default_str()
      ->type_name("STYLE")
      ->group(output_group);
}

CLI::Option* add_json(CLI::App& command, bool& json) {
  return command.add_flag("--json", json, "Print one JSON object on stdout");
}

CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                            const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

}  // namespace nibble::cli
