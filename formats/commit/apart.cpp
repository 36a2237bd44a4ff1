#include "formats/commit/apart.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <span>
#include <string>
#include <system_error>

#include "core/files/file.hpp"
#include "formats/commit/transaction.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const Identity&) const = default;
};

Identity identity_of(const struct stat& status) { return {status.st_dev, status.st_ino}; }

// The identity of what a path leads to; nothing if it does not exist or may not be accessed.
std::optional<Identity> identify(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return identity_of(status);
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// Whether a folder is this one or inside it.
bool is_in(const fs::path& folder, const std::optional<Identity>& outer) {
  if (!outer) return false;
  Descriptor here(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::optional<Identity> last;
  while (here.get() >= 0) {
    struct stat status {};
    if (fstat(here.get(), &status) != 0) return false;
    const Identity identity = identity_of(status);
    if (identity == outer) return true;
    if (identity == last) return false;  // the root is its own parent
    last = identity;
    here = Descriptor(openat(here.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  return false;
}

// The folder that really contains a file, after following links; for a folder, the folder itself.
fs::path real_folder(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return folder_of(path);
  return fs::is_directory(real, error) ? real : folder_of(real);
}

// Calls f(path) for every file that belongs to a checkpoint.
template <class F> void for_each_file(const Reader& source, F&& f) {
  if (!source.is_directory()) return f(source.path());
  for (const std::string& name : source.files()) f(source.path() / name);
  for (const std::string& name : source.other_files()) f(source.path() / name);
}

std::string shown(const fs::path& path) { return printable(path.string()); }

}  // namespace

void check_no_input(const fs::path& file, const Reader& source) {
  const auto identity = identify(file);
  if (!identity) return;
  for_each_file(source, [&](const fs::path& input) {
    if (identify(input) == identity)
      throw Error(Errc::usage, shown(file), fmt::format("is part of the input '{}'", shown(source.path())));
  });
}

void check_apart(const fs::path& out_as_given, const Reader& source, std::span<const std::string> links) {
  const auto refuse = [&](std::string_view fact) {
    throw Error(Errc::usage, shown(out_as_given), fmt::format("{} '{}'", fact, shown(source.path())));
  };
  constexpr std::string_view same = "the output is the input";
  std::string text = out_as_given.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  const fs::path out(text);
  const auto to = identify(out);
  if (!source.is_directory()) {
    if (to && to == identify(source.path())) refuse(same);
    const fs::path manifest = out.string() + Transaction::manifest_suffix;
    if (const auto beside = identify(manifest); beside && beside == identify(source.path()))
      throw Error(Errc::usage, shown(manifest), "the manifest beside the output would replace the input");
    return;
  }
  const auto from = identify(source.path());
  if (to && to == from) refuse(same);
  if (is_in(folder_of(out), from)) refuse("the output is inside the input");
  if (is_in(source.path(), to)) refuse("the output contains the input");
  const auto check_link = [&](const fs::path& input) {
    std::error_code error;
    if (fs::is_symlink(input, error) && is_in(real_folder(input), to))
      refuse("the output contains files that are linked from the input");
  };
  for_each_file(source, check_link);
  for (const std::string& link : links) check_link(source.path() / link);
}

}  // namespace nibble
