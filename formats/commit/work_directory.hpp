#pragma once

#include <string>
#include <string_view>

#include "core/files/file.hpp"

namespace nibble {

/// The hidden directory in which an output is built: only its owner can enter it, it is locked while it is open, and it
/// is removed at the end. The lock is flock() on the directory itself, which dies with its process.
///
/// An existing one was left by a killed run, or prepared by somebody else: it is used only if it belongs to the user
/// who runs nibble and nobody else can write it, and its contents stay until clear().
class WorkDirectory {
 public:
  /// Names in it, beside those of a Swap: of an old output that an exchange has moved here and that is not judged yet,
  /// and of one that may be removed.
  static constexpr const char* exchanged_name = "exchanged";
  static constexpr const char* trash_name = "trash";

  /// `name` in the open directory `root`. Throws Error(output_exists) if another process holds the lock, or if an entry
  /// of that name is not ours; Error(io). `shown` is the output, `folder` the folder that `name` is in, for messages.
  WorkDirectory(Descriptor root, std::string name, std::string_view shown, std::string_view folder);
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  ~WorkDirectory();  ///< remove(), if it was cleared, taken over or made here, and not kept

  /// Throws what the constructor would, as far as that can be told without creating anything and without keeping a
  /// lock. Returns the entry of that name, if there is one.
  [[nodiscard]] static Descriptor check(int root, const std::string& name, std::string_view shown,
                                        std::string_view folder);

  /// What messages call the directory.
  [[nodiscard]] static std::string path_of(std::string_view folder, std::string_view name);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] int root() const noexcept { return root_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& shown() const noexcept { return shown_; }  ///< its path, for messages

  /// Removes what is in it. Throws Error(io) if something stays.
  void clear();

  /// It stays on disk: the next run needs what is in it.
  void keep() noexcept { removes_ = false; }
  /// It is removed at the end, though its contents were not cleared.
  void take_over() noexcept { removes_ = true; }

  /// Whether it belongs to this user and nobody else can enter it, as when it was made. Throws Error(io).
  [[nodiscard]] bool is_private() const;

  /// Moves it to another folder. False if that failed: errno says why.
  [[nodiscard]] bool move(Descriptor root, const char* name, std::string_view folder);

  /// Removes it with all its contents, as far as possible. Allocates no memory. False if something is left.
  bool remove() noexcept;

 private:
  [[nodiscard]] Descriptor make(std::string_view output);
  void lock(std::string_view output);

  Descriptor root_, fd_;
  std::string name_, shown_;
  bool removes_ = false;
};

}  // namespace nibble
