// Checkpoints on their way to disk: safetensors shards inside a transaction, and for a directory all that makes it
// a model: index, configuration, manifest, and whatever else the source directory holds.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "formats/config.hpp"
#include "formats/file.hpp"
#include "formats/json.hpp"
#include "formats/names.hpp"
#include "formats/refuse.hpp"
#include "formats/safetensors.hpp"
#include "formats/scratch.hpp"
#include "formats/transaction.hpp"
#include "formats/write_behind.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* config_name = "config.json";
constexpr const char* diffusers_stem = "diffusion_pytorch_model";  // its loader looks for that name
constexpr const char* manifest_file = "nibble.json";
constexpr std::uint64_t copy_block = 1 << 20;

// Weights of any container: the converted ones replace them.
constexpr std::array<std::string_view, 13> weight_suffixes{".safetensors", ".bin",    ".pt",        ".pth", ".ckpt",
                                                           ".gguf",        ".h5",     ".msgpack",   ".ot",  ".onnx",
                                                           ".onnx_data",   ".tflite", ".index.json"};
// In folders, modules of their own have weights of the first two kinds (sentence-transformers' Dense layers).
constexpr std::size_t weight_suffixes_of_folders = 2;

bool is_carried_over(const std::string& name, bool top) {
  if (name.starts_with('.')) return false;
  if (top && (name == config_name || name == manifest_file)) return false;
  return std::none_of(weight_suffixes.begin() + (top ? 0 : weight_suffixes_of_folders), weight_suffixes.end(),
                      [&](std::string_view suffix) { return name.ends_with(suffix); });
}

void write_file(int directory, const std::string& name, const std::string& label, std::string_view text) {
  OutputFile file(directory, name, label);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.flush();
  file.close();
}

// Copies what a directory holds beside weights. Links become what they point to; one that leads back to a folder
// above it is left out, as are broken ones.
class CarryOver {
 public:
  explicit CarryOver(std::string label) : label_(std::move(label)) {}

  void run(const Directory& from, int to) { copy_directory(from.fd(), to, ""); }

  // What run() would copy.
  std::uint64_t bytes(const Directory& from) {
    bytes_ = 0;
    copy_directory(from.fd(), nowhere, "");
    return bytes_;
  }

 private:
  static constexpr int nowhere = -1;                   // instead of a directory: count only
  static constexpr std::size_t most_folders = 10'000;  // links can make more of them than there are

  using Place = std::pair<dev_t, ino_t>;

  [[noreturn]] void fail(const std::string& path, std::string_view action) const {
    throw Error(Errc::io, fmt::format("{}/{}: {}: {}", label_, printable(path), action, std::strerror(errno)));
  }

  void copy_directory(int from, int to, const std::string& path) {
    // Through a path-only descriptor nothing can be listed.
    const Descriptor here(openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat status {};
    if (here.get() < 0 || fstat(here.get(), &status) != 0) fail(path, "cannot open in the input");
    const Place place{status.st_dev, status.st_ino};
    if (std::find(above_.begin(), above_.end(), place) != above_.end()) return;
    above_.push_back(place);
    for (const std::string& name : list_directory(here.get())) {
      if (!is_carried_over(name, path.empty())) continue;
      if (fstatat(here.get(), name.c_str(), &status, 0) != 0) continue;
      if (S_ISDIR(status.st_mode)) copy_subdirectory(here.get(), to, name, path);
      if (S_ISREG(status.st_mode)) copy_file(here.get(), to, name, path);
    }
    above_.pop_back();
  }

  void copy_subdirectory(int from, int to, const std::string& name, const std::string& path) {
    if (++folders_ > 2 * most_folders)  // counted, then copied
      refuse(printable(path + name), "is one of more than {} folders to carry over", most_folders);
    const Descriptor inner(openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (inner.get() < 0) fail(path + name, "cannot open in the input");
    if (to == nowhere) return copy_directory(inner.get(), nowhere, path + name + "/");
    if (mkdirat(to, name.c_str(), 0777) != 0) fail(path + name, "cannot create");
    const Descriptor made(openat(to, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (made.get() < 0) fail(path + name, "cannot open");
    copy_directory(inner.get(), made.get(), path + name + "/");
    if (list_directory(made.get()).empty()) unlinkat(to, name.c_str(), AT_REMOVEDIR);  // it held only weights
    if (fsync(made.get()) != 0) fail(path + name, "cannot flush");
  }

  void copy_file(int from, int to, const std::string& name, const std::string& path) {
    const InputFile in(from, name, printable(path + name));
    bytes_ += in.size();
    if (to == nowhere) return;
    struct stat status {};
    if (fstatat(from, name.c_str(), &status, 0) != 0) fail(path + name, "cannot read its mode");
    OutputFile out(to, name, label_ + "/" + printable(path + name));
    std::vector<std::byte> block(std::min(in.size(), copy_block));
    for (std::uint64_t offset = 0; offset < in.size(); offset += block.size()) {
      const std::span part = std::span(block).first(std::min<std::uint64_t>(block.size(), in.size() - offset));
      in.read(offset, part);
      out.write_at(offset, part);
    }
    if (fchmodat(to, name.c_str(), status.st_mode & 0777, 0) != 0) fail(path + name, "cannot set its mode");
    out.flush();
    out.close();
  }

  std::string label_;
  std::vector<Place> above_;  // the folders from the top to the one in work
  std::size_t folders_ = 0;
  std::uint64_t bytes_ = 0;
};

// What files and directories have in common: shards, one after the other, in a transaction.
class ShardWriter : public Writer {
 public:
  ShardWriter(const std::filesystem::path& path, Transaction::Kind kind, const CreateOptions& options,
              std::uint64_t other_bytes)
      : Writer(options.memory),
        transaction_(path, kind, options.overwrite),
        label_(printable(path.string())),
        shards_(options.shards) {
    const std::uint64_t need = options.bytes + std::min(other_bytes, UINT64_MAX - options.bytes);
    if (const std::uint64_t free = transaction_.free_bytes(); free < need)
      throw Error(Errc::no_space,
                  fmt::format("{}: the output takes {} bytes, the disk has {} free", label_, need, free));
  }

  void begin(std::size_t index, const PartList& parts) override {
    const std::string name = staged_name(index);
    behind_.reset();
    file_.reset();
    unlinkat(transaction_.directory(), name.c_str(), 0);
    offsets_ = {};  // not two of them at a time: one may take 5 MB
    safetensors::Layout layout = safetensors::lay_out(parts);
    file_.emplace(transaction_.directory(), name, label_);
    file_->reserve(layout.file_bytes);
    safetensors::write_header(parts, layout, [&](std::uint64_t offset, std::string_view piece) {
      file_->write_at(offset, std::as_bytes(std::span(piece)));
    });
    data_bytes_.resize(std::max(data_bytes_.size(), index + 1));
    data_bytes_[index] = layout.file_bytes - layout.header_bytes;
    offsets_ = std::move(layout.offsets);
    behind_.emplace(*file_, transaction_.directory(), name, most_behind);
  }

  void write(std::size_t part, std::uint64_t offset, std::span<const std::byte> bytes) override {
    file_->write_at(offsets_[part] + offset, bytes);
  }

  Buffers::Loan lend(std::size_t part, std::uint64_t offset, std::size_t size) override {
    behind_->wake();
    return buffers_.lend(size, offsets_[part] + offset, behind_->way());
  }

  void write_behind(std::size_t part, std::uint64_t offset, Buffers::Loan bytes) override {
    behind_->write(offsets_[part] + offset, std::move(bytes));
  }

  void end() override {
    behind_->drain();
    behind_.reset();
    file_->flush();
    file_->close();
    file_.reset();
    offsets_ = {};
  }

  void write_manifest(std::uint64_t offset, std::string_view text) override {
    if (!manifest_) manifest_.emplace(transaction_.directory(), std::string(manifest_name()), label_);
    manifest_->truncate(offset);
    manifest_->write_at(offset, std::as_bytes(std::span(text)));
  }

  std::unique_ptr<Scratch> make_scratch() override { return make_file_scratch(transaction_.directory(), label_); }

 protected:
  // A file's name in the transaction's directory.
  [[nodiscard]] virtual std::string staged_name(std::size_t index) const = 0;
  [[nodiscard]] virtual std::string_view manifest_name() const = 0;

  void end_manifest() {
    if (!manifest_) write_manifest(0, "");
    manifest_->flush();
    manifest_->close();
  }

  Transaction transaction_;
  std::string label_;
  std::size_t shards_;
  std::vector<std::uint64_t> data_bytes_;  // of each shard

 private:
  std::vector<std::uint64_t> offsets_;  // of the parts of the shard in work
  std::optional<OutputFile> file_;
  std::optional<WriteBehind> behind_;
  std::optional<OutputFile> manifest_;
};

class FileWriter final : public ShardWriter {
 public:
  FileWriter(const std::filesystem::path& path, const CreateOptions& options)
      : ShardWriter(path, Transaction::Kind::file, options, 0) {}

  // A file alone: its name is its user's, and no part of what is written.
  [[nodiscard]] std::string shard_name(std::size_t /*index*/) const override { return {}; }

  void commit(const Finish& /*finish*/) override {
    end_manifest();
    transaction_.commit();
  }

 private:
  [[nodiscard]] std::string staged_name(std::size_t /*index*/) const override { return Transaction::staged_file; }
  [[nodiscard]] std::string_view manifest_name() const override { return Transaction::staged_manifest; }
};

class DirectoryWriter final : public ShardWriter {
 public:
  DirectoryWriter(const std::filesystem::path& path, const Reader& source, const CreateOptions& options)
      : ShardWriter(path, Transaction::Kind::directory, options,
                    CarryOver(printable(path.string())).bytes(Directory(source.path()))),
        source_(source),
        stem_(!source.files().empty() && source.files().front().starts_with(diffusers_stem) ? diffusers_stem
                                                                                            : "model") {}

  [[nodiscard]] std::string shard_name(std::size_t index) const override {
    return shards_ == 1 ? stem_ + ".safetensors"
                        : fmt::format("{}-{:05}-of-{:05}.safetensors", stem_, index + 1, shards_);
  }

  void commit(const Finish& finish) override {
    const int directory = transaction_.directory();
    const Directory from(source_.path());
    CarryOver(label_).run(from, directory);
    end_manifest();
    if (shards_ > 1) write_index(finish);
    if (from.has(config_name)) write_file(directory, config_name, label_, patched_config(from, finish));
    transaction_.commit();
  }

 private:
  [[nodiscard]] std::string staged_name(std::size_t index) const override { return shard_name(index); }
  [[nodiscard]] std::string_view manifest_name() const override { return manifest_file; }

  // Sorted by name, indented by two, as transformers writes it. In pieces: it names every part.
  void write_index(const Finish& finish) {
    struct Entry {
      std::uint32_t shard, part;
    };
    std::vector<Entry> entries;
    for (std::size_t shard = 0; shard < finish.shards.size(); ++shard)
      for (std::size_t part = 0; part < finish.shards[shard]->size(); ++part)
        entries.push_back({static_cast<std::uint32_t>(shard), static_cast<std::uint32_t>(part)});
    const auto name = [&](const Entry& entry) { return finish.shards[entry.shard]->name(entry.part); };
    std::sort(entries.begin(), entries.end(),
              [&](const Entry& a, const Entry& b) { return is_before(name(a), name(b)); });

    std::uint64_t parameters = 0;
    for (const TensorInfo& tensor : source_.tensors()) parameters += tensor.elements();
    const std::uint64_t bytes = std::accumulate(data_bytes_.begin(), data_bytes_.end(), std::uint64_t{0});
    OutputFile file(transaction_.directory(), stem_ + ".safetensors.index.json", label_);
    std::uint64_t written = 0;
    std::string text = fmt::format(
        "{{\n  \"metadata\": {{\n    \"total_parameters\": {},\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{",
        parameters, bytes);
    std::string quoted;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      quoted.assign(name(entries[i]).stem).append(name(entries[i]).rest);
      text += i == 0 ? "\n    " : ",\n    ";
      json::append_quoted(text, quoted);
      text.append(": \"").append(shard_name(entries[i].shard)).append("\"");
      if (text.size() < copy_block) continue;
      file.write_at(written, std::as_bytes(std::span(text)));
      written += text.size();
      text.clear();
    }
    text += entries.empty() ? "}\n}\n" : "\n  }\n}\n";
    file.write_at(written, std::as_bytes(std::span(text)));
    file.flush();
    file.close();
  }

  static std::string patched_config(const Directory& from, const Finish& finish) {
    const InputFile file(from.fd(), config_name, config_name);
    std::vector<config::Edit> edits;
    if (!finish.dtype.empty())
      for (const char* const key : {"dtype", "torch_dtype"}) edits.push_back({key, '"' + finish.dtype + '"'});
    if (!finish.quantization_config.empty()) edits.push_back({"quantization_config", finish.quantization_config});
    return config::patch(file.read_text(config::max_bytes), edits, config_name);
  }

  const Reader& source_;
  std::string stem_;
};

bool is_in(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// The output must not be the input, hold it, or lie in it: replacing one would destroy the other. Nor may it hold
// what the input's links lead to.
void check_apart(const std::filesystem::path& out, const Reader& source) {
  std::error_code unresolved;
  const auto to = std::filesystem::weakly_canonical(out, unresolved);
  const auto from = std::filesystem::weakly_canonical(source.path(), unresolved);
  const auto refuse_it = [&] {
    throw Error(Errc::usage, fmt::format("{}: output and input '{}' lie in each other", printable(out.string()),
                                         printable(source.path().string())));
  };
  if (is_in(to, from) || is_in(from, to)) refuse_it();
  if (std::filesystem::is_directory(from)) {
    for (const std::string& file : source.files())
      if (is_in(std::filesystem::weakly_canonical(from / file, unresolved), to)) refuse_it();
    if (is_in(std::filesystem::weakly_canonical(from / config_name, unresolved), to)) refuse_it();
  }
  if (std::filesystem::equivalent(to, from, unresolved)) refuse_it();
}

}  // namespace

std::unique_ptr<Writer> create_checkpoint(const std::filesystem::path& path, const Reader& source,
                                          const CreateOptions& options) {
  check_apart(path, source);
  if (std::filesystem::is_directory(source.path())) return std::make_unique<DirectoryWriter>(path, source, options);
  if (options.shards != 1)
    throw Error(Errc::usage, fmt::format("{}: a file cannot hold {} shards", printable(path.string()), options.shards));
  return std::make_unique<FileWriter>(path, options);
}

}  // namespace nibble
