#include "formats/commit/swap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>

#include "core/files/directory.hpp"
#include "core/files/file.hpp"
#include "core/xxh3.hpp"
#include "formats/containers/container.hpp"
#include "formats/models/config.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::string_view journal_title = "nibble swap 1";
constexpr off_t max_journal_bytes = 64 << 20;  // 200,000 entries with the longest names

bool is_unknown_flag(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

// Never over an entry that is there. File systems that do not know the flag leave a look before the step.
bool move_entry(int from, int to, const char* name) noexcept {
  if (renameat2(from, name, to, name, RENAME_NOREPLACE) == 0) return true;
  if (!is_unknown_flag(errno)) return false;
  struct stat status {};
  if (fstatat(to, name, &status, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return false;
  }
  return renameat(from, name, to, name) == 0;
}

// A loader looks for these.
bool makes_a_model(const std::string& name) {
  const std::string single = "model" + std::string(written_container().extension);
  return name == config::file_name || name.ends_with(index_extension) || name.ends_with(single);
}

std::uint64_t inode_of(int directory, const std::string& name, std::string_view shown) {
  const auto status = status_of(directory, name, shown);
  return status ? std::uint64_t{status->st_ino} : 0;  // no entry has the number 0
}

// --- the journal as text: fields, each ended by a NUL because names are bytes. The title, the inode of the target, for
// every step its letter, both inodes and the name, and the checksum of all that.

constexpr std::string_view letters = "-=+|";  // by Action

std::string checksum_of(std::string_view text) { return xxh3(std::as_bytes(std::span(text))).hex(); }

std::string text_of(const Swap::Steps& steps, std::uint64_t target_inode) {
  std::string text = fmt::format("{}{}{}{}", journal_title, '\0', target_inode, '\0');
  for (const Swap::Step& step : steps)
    text += fmt::format("{} {} {} {}{}", letters[static_cast<std::size_t>(step.action)], step.old_inode, step.new_inode,
                        step.name, '\0');
  return text + checksum_of(text) + '\0';
}

// Cuts off what stands before the next `end`. Nothing, and no change, if there is none.
std::optional<std::string_view> cut_field(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view field = text.substr(0, at);
  text.remove_prefix(at + 1);
  return field;
}

bool parse_number(std::optional<std::string_view> text, std::uint64_t& number) {
  if (!text) return false;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  return error == std::errc() && end == text->data() + text->size();
}

std::optional<Swap::Step> parse_step(std::string_view field) {
  Swap::Step step;
  const auto letter = cut_field(field, ' ');
  if (!letter || letter->size() != 1 || letters.find((*letter)[0]) == std::string_view::npos) return std::nullopt;
  step.action = static_cast<Swap::Action>(letters.find((*letter)[0]));
  if (!parse_number(cut_field(field, ' '), step.old_inode) || !parse_number(cut_field(field, ' '), step.new_inode))
    return std::nullopt;
  step.name = field;
  const bool is_barrier = step.action == Swap::Action::barrier;
  if (is_barrier ? !step.name.empty() : !is_entry_name(step.name)) return std::nullopt;
  return step;
}

// Returns why the text does not count, if it does not.
std::string parse(std::string_view text, std::uint64_t target_inode, Swap::Steps& steps) {
  std::string_view rest = text;
  if (cut_field(rest, '\0') != journal_title) return "it is not a journal of this version";
  constexpr std::size_t checksum_bytes = 33;  // and a NUL
  if (rest.size() < checksum_bytes) return "it is not whole";
  const std::string_view body = text.substr(0, text.size() - checksum_bytes);
  if (text.substr(body.size()) != checksum_of(body) + '\0') return "its checksum is wrong";
  rest.remove_suffix(checksum_bytes);
  std::uint64_t inode = 0;
  if (!parse_number(cut_field(rest, '\0'), inode) || inode != target_inode) return "it is about another directory";
  while (const auto field = cut_field(rest, '\0')) {
    auto step = parse_step(*field);
    if (!step) return "it has a step that no run has written";
    steps.push_back(std::move(*step));
  }
  return {};
}

}  // namespace

// The directories of a swap, and what is done to them. `old` is none where nothing is taken out.
struct Swap::Folders {
  Folders(int target_directory, int work, std::string_view shown_name)
      : target(target_directory),
        fresh(open_directory(work, new_name)),
        old(open_directory(work, old_name)),
        shown(shown_name) {
    if (fresh.get() < 0) fail("cannot open the new entry");
  }

  int target;
  Descriptor fresh, old;
  std::string shown;

  [[noreturn]] void fail(std::string_view action) const {
    throw Error(Errc::io, printable(shown), fmt::format("{}: {}", action, std::strerror(errno)));
  }
  [[noreturn]] void fail(std::string_view action, const std::string& name) const {
    fail(fmt::format("cannot {} '{}'", action, printable(name)));
  }

  [[nodiscard]] std::uint64_t in_target(const Step& step) const { return inode_of(target, step.name, shown); }
  [[nodiscard]] std::uint64_t in_new(const Step& step) const { return inode_of(fresh.get(), step.name, shown); }
  [[nodiscard]] std::uint64_t in_old(const Step& step) const {
    return old.get() < 0 ? 0 : inode_of(old.get(), step.name, shown);
  }

  [[nodiscard]] bool flush() const noexcept {
    const std::array<int, 3> all{target, fresh.get(), old.get()};
    return std::all_of(all.begin(), all.end(), [](int directory) { return directory < 0 || fsync(directory) == 0; });
  }

  [[nodiscard]] bool is_done(const Step& step) const {
    if (step.action == Action::barrier) return false;
    return step.action == Action::take_out ? in_old(step) == step.old_inode : in_target(step) == step.new_inode;
  }

  [[noreturn]] void refuse(const Step& step) const {
    throw Error(Errc::output_exists, printable(shown),
                fmt::format("'{}' was changed meanwhile; nothing is replaced", printable(step.name)));
  }

  // Each step makes sure that it meets the entry that it is about, and looks at what it has moved: another may have
  // come in between.
  void take_out(const Step& step) const {
    const char* const name = step.name.c_str();
    if (in_target(step) != step.old_inode) refuse(step);
    if (!move_entry(target, old.get(), name)) fail("move aside", step.name);
    if (in_old(step) == step.old_inode) return;
    (void)move_entry(old.get(), target, name);
    refuse(step);
  }

  void put_in(const Step& step) const {
    if (in_new(step) != step.new_inode) refuse(step);
    if (move_entry(fresh.get(), target, step.name.c_str())) return;
    if (errno == EEXIST) refuse(step);
    fail("put in place", step.name);
  }

  void exchange(const Step& step) const {
    const char* const name = step.name.c_str();
    if (in_old(step) != step.old_inode) {
      if (in_target(step) != step.old_inode || in_new(step) != step.new_inode) refuse(step);
      if (renameat2(fresh.get(), name, target, name, RENAME_EXCHANGE) == 0) {
        if (in_new(step) == step.old_inode) return;
        (void)renameat2(fresh.get(), name, target, name, RENAME_EXCHANGE);
        refuse(step);
      }
      if (!is_unknown_flag(errno)) fail("replace", step.name);
      take_out(step);
    }
    put_in(step);
  }

  void carry_out(const Step& step) const {
    switch (step.action) {
      case Action::take_out:
        return take_out(step);
      case Action::exchange:
        return exchange(step);
      case Action::put_in:
        return put_in(step);
      case Action::barrier:
        if (!flush()) fail("cannot flush");
        return;
    }
  }

  // Takes back what was done of a step. False if that failed. Not for barriers.
  [[nodiscard]] bool undo(const Step& step) const noexcept {
    const char* const name = step.name.c_str();
    bool is_known = true;
    const auto inode = [&](int directory) -> std::uint64_t {
      struct stat status {};
      if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0) return status.st_ino;
      is_known = is_known && errno == ENOENT;
      return 0;
    };
    if (step.action == Action::exchange && inode(target) == step.new_inode && inode(fresh.get()) == step.old_inode)
      return renameat2(fresh.get(), name, target, name, RENAME_EXCHANGE) == 0;
    if (step.action != Action::take_out && inode(target) == step.new_inode && !move_entry(target, fresh.get(), name))
      return false;
    // Whatever was taken out goes back, also if it was not what the step is about.
    const bool may_be_out = step.action != Action::put_in && old.get() >= 0 && inode(old.get()) != 0;
    return is_known && (!may_be_out || move_entry(old.get(), target, name));
  }

  // The same for all of them, in the opposite order and with the same barriers, so that at no time there is a mixture.
  // False as well if the old entries are back but a power cut may still lose that.
  [[nodiscard]] bool undo(std::span<const Step> steps) const noexcept {
    bool is_flushed = true;
    for (std::size_t i = steps.size(); i-- > 0;) {
      if (steps[i].action == Action::barrier)
        is_flushed = flush() && is_flushed;
      else if (!undo(steps[i]))
        return false;
    }
    return flush() && is_flushed;
  }
};

Swap::Step Swap::step(Action action, std::string name) const {
  const Folders folders(target_, work_, shown_);
  Step step{.action = action, .name = std::move(name)};
  if (action != Action::put_in) step.old_inode = folders.in_target(step);
  if (action != Action::take_out) step.new_inode = folders.in_new(step);
  return step;
}

Swap::Steps Swap::replace(const std::vector<std::string>& entries) const {
  const Folders folders(target_, work_, shown_);
  std::vector<std::string> out = entries;
  std::vector<std::string> in = list_directory(folders.fresh.get(), printable(shown_));
  std::stable_partition(out.begin(), out.end(), makes_a_model);
  std::stable_partition(in.begin(), in.end(), [](const std::string& name) { return !makes_a_model(name); });
  Steps steps;
  const auto add = [&](Action action, const std::vector<std::string>& names, bool models) {
    for (const std::string& name : names)
      if (makes_a_model(name) == models) steps.push_back(step(action, name));
    steps.push_back({});
  };
  add(Action::take_out, out, true);
  add(Action::take_out, out, false);
  add(Action::put_in, in, false);
  add(Action::put_in, in, true);
  return steps;
}

void Swap::write_journal(const Steps& steps) const {
  struct stat target {};
  if (fstat(target_, &target) != 0)
    throw Error(Errc::io, printable(shown_), fmt::format("cannot read its status: {}", std::strerror(errno)));
  (void)unlinkat(work_, journal_name, 0);  // one that does not count
  OutputFile file(work_, journal_name, printable(shown_) + ": journal", 0600);
  const std::string text = text_of(steps, target.st_ino);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.flush();
  file.close();
  if (fsync(work_) != 0 || fsync(target_) != 0)
    throw Error(Errc::io, printable(shown_), fmt::format("cannot flush: {}", std::strerror(errno)));
}

void Swap::run(const Steps& steps, const std::function<void()>& judge) const {
  const Folders folders(target_, work_, shown_);
  std::size_t begun = 0;
  try {
    write_journal(steps);
    while (begun < steps.size()) folders.carry_out(steps[begun++]);
    if (judge) judge();
    end();
  } catch (...) {
    if (begun == 0 || folders.undo(std::span(steps).first(begun))) {
      (void)unlinkat(work_, journal_name, 0);
      (void)fsync(work_);  // before anything that it names is removed
    }
    throw;
  }
}

Swap::Journal Swap::journal() const {
  const Descriptor file(openat(work_, journal_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return {};
  Journal found{.is_there = true};
  struct stat status {};
  struct stat target {};
  const auto fail = [&] {
    throw Error(Errc::io, printable(shown_),
                fmt::format("cannot read the journal of an interrupted run: {}", std::strerror(errno)));
  };
  if (file.get() < 0 && errno != ELOOP && errno != ENXIO) fail();
  if (fstat(target_, &target) != 0 || (file.get() >= 0 && fstat(file.get(), &status) != 0)) fail();
  found.problem = file.get() < 0 ? "it is not a regular file" : why_not_ours(status);
  if (!found.problem.empty()) return found;
  if (status.st_size > max_journal_bytes) {
    found.problem = "it is too long";
  } else {
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    if (read_all(file.get(), 0, std::as_writable_bytes(std::span(text))).bytes < text.size()) fail();
    found.problem = parse(text, target.st_ino, found.steps);
  }
  return found;
}

void Swap::finish(const Steps& steps, const std::function<void()>& judge) const {
  const Folders folders(target_, work_, shown_);
  for (const Step& step : steps)
    if (!folders.is_done(step)) folders.carry_out(step);
  if (judge) judge();
  end();
}

void Swap::end() const {
  const bool renamed = renameat(work_, journal_name, work_, done_name) == 0;
  if (renamed && fsync(work_) == 0) return;
  const int error = errno;
  if (renamed) (void)renameat(work_, done_name, work_, journal_name);  // it is needed if undoing fails, too
  throw Error(Errc::io, printable(shown_),
              fmt::format("cannot mark its journal as finished: {}", std::strerror(error)));
}

}  // namespace nibble
