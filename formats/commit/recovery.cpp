#include "formats/commit/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "core/files/directory.hpp"
#include "formats/commit/replaceable.hpp"
#include "formats/commit/swap.hpp"
#include "formats/commit/work_log.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// A directory that cannot be read counts as not empty.
bool has_entries(int at, const char* name) {
  if (!may_exist(at, name)) return false;
  const Descriptor directory = open_directory(at, name);
  return directory.get() < 0 || !list_directory(directory.get(), name).empty();
}

// Whatever the journal says, it may only name what this run may replace.
void judge_journal(const Target& target, const WorkDirectory& work, const Swap::Journal& journal) {
  const std::string shown = work.shown() + "/" + Swap::journal_name;
  if (!target.options().overwrite) target.refuse_unfinished();
  const auto refuse_name = [&](const Swap::Step& step) {
    target.refuse_existing(
        shown, fmt::format("names '{}', which nibble may not replace: remove it first", printable(step.name)));
  };
  for (const Swap::Step& step : journal.steps)
    if (step.action != Swap::Action::barrier && !target.may_be_replaced(step.name)) refuse_name(step);
  if (!target.is_inside()) return;
  // What has left the target counts only as far as the journal tells of it.
  std::vector<std::string> entries = target.entries_of(work.root());
  if (const Descriptor old = open_directory(work.fd(), Swap::old_name); old.get() >= 0)
    for (const Swap::Step& step : journal.steps)
      if (step.action != Swap::Action::barrier)
        if (const auto status = status_of(old.get(), step.name, printable(target.shown()));
            status && status->st_ino == step.old_inode)
          entries.push_back(step.name);
  target.judge_entries(entries);
  std::set<std::string_view> coming;
  for (const Swap::Step& step : journal.steps)
    if (step.action == Swap::Action::put_in) coming.insert(step.name);
  for (const Swap::Step& step : journal.steps)
    if (step.action == Swap::Action::take_out && !is_model_file(step.name) && !coming.contains(step.name))
      refuse_name(step);
}

void finish_swap(const Target& target, const WorkDirectory& work, const Swap& swap, const Swap::Journal& journal) {
  judge_journal(target, work, journal);
  try {
    // A killed run may not have come to this. Of a directory, judge_journal() has looked at what left it, too.
    swap.finish(journal.steps, [&] {
      if (target.kind() == Target::Kind::file) target.judge_replaced(work.fd());
    });
  } catch (const Error& error) {
    if (error.code() != Errc::output_exists) throw;
    throw Error(Errc::output_exists, printable(target.shown()),
                fmt::format("an interrupted run replaced a part of it, and it was changed since: the rest of the old "
                            "output is in {}/{}, the rest of the new one in {}/{}; move them away first",
                            printable(work.shown()), Swap::old_name, printable(work.shown()), Swap::new_name));
  }
}

}  // namespace

void judge_remains(const Target& target, int work, const std::string& shown) {
  constexpr std::array<std::string_view, 7> ours{
      Swap::journal_name,        Swap::done_name, Swap::new_name, Swap::old_name, WorkDirectory::exchanged_name,
      WorkDirectory::trash_name, WorkLog::name};
  for (const std::string& entry : list_directory(work, printable(shown)))
    if (std::find(ours.begin(), ours.end(), entry) == ours.end() && !entry.starts_with(removed_prefix))
      target.refuse_existing(
          shown, fmt::format("contains '{}', which nibble did not create: move it away first", printable(entry)));
}

std::string recover(const Target& target, const WorkDirectory& work) {
  const int at = work.fd();
  std::string warning;
  const bool done = target.has_entry(at, Swap::done_name);
  const Swap swap(target.is_inside() ? work.root() : target.parent(), at, target.shown());
  Swap::Journal journal = done ? Swap::Journal{} : swap.journal();
  if (target.kind() == Target::Kind::directory && !target.is_inside() && journal.problem.empty())
    journal.problem = "no run writes one here";
  if (journal.is_there && journal.problem.empty()) {
    finish_swap(target, work, swap, journal);
  } else if (!done && has_entries(at, Swap::old_name)) {
    target.refuse_existing(work.shown() + "/" + Swap::old_name,
                           "contains the output that an interrupted run replaced: move it away first");
  } else if (journal.is_there) {
    warning = fmt::format("{}/{} is ignored: {}", printable(work.shown()), Swap::journal_name, journal.problem);
  }
  if (target.has_entry(at, WorkDirectory::exchanged_name)) {
    const Descriptor back = open_directory(at, WorkDirectory::exchanged_name);
    if (back.get() < 0) target.fail("cannot open the output that an interrupted run replaced");
    if (const auto entries = list_directory(back.get(), printable(target.shown()));
        !entries.empty() && !is_model(entries))
      target.refuse_existing(work.shown() + "/" + WorkDirectory::exchanged_name,
                             "contains the output that an interrupted run replaced: move it away first");
  }
  return warning;
}

// A commit moves what was built out of `new`. What is in `new` afterwards may be the old output.
bool may_resume(const WorkDirectory& work) noexcept {
  for (const char* const committed : {Swap::done_name, WorkDirectory::exchanged_name, WorkDirectory::trash_name})
    if (may_exist(work.fd(), committed)) return false;
  return may_exist(work.fd(), Swap::new_name) && may_exist(work.fd(), WorkLog::name);
}

}  // namespace nibble
