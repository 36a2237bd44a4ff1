#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace nibble::test {

/// How a process dies while it changes directories.
///
/// It dies right before one of the calls that create, rename, remove or flush entries. A file system may write changes
/// that nobody has flushed in any order, so some of them are lost then: none (the process was killed); or all of them,
/// all but one, or one of them (the power was cut). A change is safe once one of its directories was flushed. Where
/// changes are lost, files that were never flushed are empty.
struct Crash {
  std::size_t call = 0;  ///< the process dies before this call, from 1 on, or at its end; 0: it lives
  std::size_t loss = 0;  ///< 0: nothing; 1: all n changes that are not flushed; 2 + i: all but i; 2 + n + i: i alone

  std::string before{};  ///< or before the first such call: its name, and the end of its path ("rename new/file")
  std::vector<std::string> failing{};  ///< calls that fail once with EIO, told in the same way
  bool can_exchange = true;            ///< whether the file system knows RENAME_EXCHANGE
};

enum class Fate {
  finished,
  failed,   ///< with an Error
  crashed,  ///< as it was meant to
  ended,    ///< the same, when all was done
  no_more,  ///< there are fewer unflushed changes than `loss` asks for
};

/// Runs `work` in a process of its own. What is lost goes to the directory `lost`, which is on the same file system.
/// Flushing is recorded and not done, because no test cuts the power of the machine.
[[nodiscard]] Fate run_and_crash(const Crash& crash, const std::filesystem::path& lost,
                                 const std::function<void()>& work);

/// Tries all crashes of `work`: at every call, with every loss. `prepare` comes before each, `check` after it, with a
/// text that names the crash, and whether all was done before it. Returns how many there were.
std::size_t try_crashes(const Crash& kind, const std::function<void()>& prepare, const std::function<void()>& work,
                        const std::function<void(const std::string&, bool)>& check, const std::filesystem::path& lost);

}  // namespace nibble::test
