#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Replaces entries of one directory by others that are complete, step by step, so that whatever stops it can be
/// finished or undone. Nothing is removed: what leaves the target lies in `old` afterwards, or in `new` where two
/// entries were exchanged.
///
/// `new` and `old` are directories inside a work directory on the target's file system. Before the first step, all of
/// them are written to a journal in the work directory, with the inodes of the entries: by these a step can be seen to
/// have been done. A journal counts only if it is whole, belongs to the user who runs, and is about this very target:
/// somebody else may have prepared the directory.
///
/// The journal, `new` and `old` are on the disk before the first step, and every step is before the journal ends.
/// Undoing goes back by the same barriers, and the journal stays until its result is on the disk. So this holds after a
/// power cut, too (tests/formats/commit/crash_test.cpp).
class Swap {
 public:
  static constexpr const char* journal_name = ".journal";
  static constexpr const char* done_name = ".done";  ///< of the journal after the last step: `old` is no longer needed
  static constexpr const char* new_name = "new";
  static constexpr const char* old_name = "old";

  enum class Action : std::uint8_t {
    take_out,  ///< target/NAME becomes old/NAME
    exchange,  ///< target/NAME and new/NAME are exchanged
    put_in,    ///< new/NAME becomes target/NAME
    barrier,   ///< what is before it is on the disk before anything after it
  };
  struct Step {
    Action action = Action::barrier;
    std::string name{};
    std::uint64_t old_inode = 0;  ///< of the entry that leaves the target
    std::uint64_t new_inode = 0;  ///< of the one that comes in
    bool operator==(const Step&) const = default;
  };
  using Steps = std::vector<Step>;

  /// Both are open directories and stay open. `shown` is the output as its user wrote it, for messages.
  Swap(int target, int work, std::string_view shown) : target_(target), work_(work), shown_(shown) {}

  /// One step, with the inodes as they are. Throws Error(io).
  [[nodiscard]] Step step(Action action, std::string name) const;

  /// The steps by which the entries of `new` replace these entries of the target. What makes a loader take a directory
  /// for a model (index, configuration, a single weight file) leaves first and comes last: at no time is there a
  /// mixture that one would load. Throws Error(io).
  [[nodiscard]] Steps replace(const std::vector<std::string>& entries) const;

  /// Carries out the steps; `old` must exist if something is taken out. If one fails, or `judge`, which looks at what
  /// has left the target, then all of them are undone. Throws Error(output_exists) if an entry is not what the steps
  /// are about, Error(io), and what `judge` throws.
  void run(const Steps& steps, const std::function<void()>& judge = {}) const;

  /// What the journal of a run that was stopped says.
  struct Journal {
    bool is_there = false;
    std::string problem{};  ///< why it does not count; empty if it does
    Steps steps{};
  };
  /// Throws Error(io) if that cannot be told.
  [[nodiscard]] Journal journal() const;

  /// Carries out those steps of a journal that are left; `judge` comes before the journal ends. Throws as run(), but
  /// undoes nothing.
  void finish(const Steps& steps, const std::function<void()>& judge = {}) const;

 private:
  struct Folders;
  void write_journal(const Steps& steps) const;
  void end() const;

  int target_, work_;
  std::string shown_;
};

}  // namespace nibble
