// Checkpoints on their way to disk: safetensors shards inside a transaction, and for a directory all that makes it
// a model: index, configuration, manifest, and whatever else the source directory holds.

#include "formats/commit/writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/files/file.hpp"
#include "core/files/file_scratch.hpp"
#include "core/json.hpp"
#include "core/refuse.hpp"
#include "core/text/size_text.hpp"
#include "formats/commit/apart.hpp"
#include "formats/commit/carry_over.hpp"
#include "formats/commit/replaceable.hpp"
#include "formats/commit/transaction.hpp"
#include "formats/commit/write_behind.hpp"
#include "formats/containers/container.hpp"
#include "formats/containers/safetensors.hpp"
#include "formats/models/config.hpp"
#include "formats/models/names.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* diffusers_stem = "diffusion_pytorch_model";  // its loader looks for that name
constexpr std::uint64_t index_piece = 1 << 20;

// The first few names.
std::string list_of(std::span<const std::string> names) {
  constexpr std::size_t shown = 5;
  std::string text;
  for (const std::string& name : names.first(std::min(shown, names.size())))
    text += (text.empty() ? "" : ", ") + printable(name);
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

// What CreateOptions::overwrite may replace.
bool is_weight_file(int file) {
  std::array<std::byte, 16> head{};
  const Transfer got = read_all(file, 0, head);
  return sniffs_of_weights(std::span(head).first(got.bytes));
}

void write_file(int directory, const std::string& name, const std::string& label, std::string_view text) {
  OutputFile file(directory, name, label);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.flush();
  file.close();
}

void check_room(const std::string& label, std::uint64_t shards, std::uint64_t others, std::uint64_t free) {
  if (const std::uint64_t need = shards + std::min(others, UINT64_MAX - shards); free < need)
    throw Error(Errc::no_space, label,
                fmt::format("the output takes {}, the disk has {} free", size_both(need), size_both(free)));
}

// The names of the files that make an output directory a model.
class OutputFiles {
 public:
  OutputFiles(const Reader& source, std::size_t shards)
      : stem_(!source.files().empty() && source.files().front().starts_with(diffusers_stem) ? diffusers_stem : "model"),
        shards_(shards) {}

  [[nodiscard]] std::string shard(std::size_t index) const {
    const std::string_view extension = written_container().extension;
    return shards_ == 1 ? fmt::format("{}{}", stem_, extension)
                        : fmt::format("{}-{:05}-of-{:05}{}", stem_, index + 1, shards_, extension);
  }
  [[nodiscard]] std::string index() const {
    return fmt::format("{}{}{}", stem_, written_container().extension, index_extension);
  }

  [[nodiscard]] bool contains(const std::string& name) const {
    if (name == config::file_name || name == manifest_file) return true;
    if (shards_ > 1 && name == index()) return true;
    if (!name.starts_with(stem_) || !name.ends_with(written_container().extension)) return false;
    for (std::size_t i = 0; i < shards_; ++i)
      if (name == shard(i)) return true;
    return false;
  }

 private:
  std::string stem_;
  std::size_t shards_;
};

CarryOver make_carry_over(const std::filesystem::path& path, const Reader& source, std::size_t shards) {
  return {escaped(source.path().native()), printable(path.string()), source.files(), source.other_files(),
          [files = OutputFiles(source, shards)](const std::string& name) { return files.contains(name); }};
}

// What will be carried over.
struct Others {
  CarryOver carry_over;
  std::uint64_t bytes;
};

// Looks at it before anything is written.
Others check_others(const std::filesystem::path& path, const Reader& source, const CreateOptions& options) {
  CarryOver others = make_carry_over(path, source, options.shards);
  const std::uint64_t bytes = others.measure(Directory(source.path()));
  check_apart(path, source, others.links());
  return {std::move(others), bytes};
}

Transaction::Options transaction_options(const CreateOptions& options, const Others* others) {
  Transaction::Options result{.overwrite = options.overwrite, .may_replace = is_weight_file, .resume = options.resume};
  if (others != nullptr) result.paths = others->carry_over.paths();
  return result;
}

// What files and directories have in common: shards, one after the other, in a transaction.
class ShardWriter : public Writer {
 public:
  ShardWriter(const std::filesystem::path& path, Transaction::Kind kind, const CreateOptions& options,
              const Others* others)
      : Writer(options.memory),
        transaction_(path, kind, transaction_options(options, others)),
        label_(printable(path.string())),
        shards_(options.shards),
        flush_interval_(options.flush_interval) {
    check_room(label_, options.bytes, others != nullptr ? others->bytes : 0, transaction_.free_bytes());
  }

  void begin(std::size_t index, const PartList& parts) override {
    const std::string name = staged_name(index);
    behind_.reset();
    file_.reset();
    unlinkat(transaction_.directory(), name.c_str(), 0);
    offsets_ = {};  // one list at a time: it may take 5 MB
    safetensors::Layout layout = safetensors::lay_out(parts);
    file_.emplace(transaction_.directory(), name, label_);
    file_->reserve(layout.file_bytes);
    safetensors::write_header(parts, layout, [&](std::uint64_t offset, std::string_view piece) {
      file_->write_at(offset, std::as_bytes(std::span(piece)));
    });
    accept(index, std::move(layout));
  }

  WorkLog* begin_log(std::string_view head,
                     const std::function<std::string(std::string_view head)>& difference) override {
    if (const WorkLog* const found = transaction_.found_log()) {
      if (const std::string why = difference(found->head()); !why.empty())
        throw Error(Errc::output_exists, label_, fmt::format("the interrupted run cannot be resumed: {}", why),
                    Remedy::Kind::begin_again);
      log_ = transaction_.take_over([this](const std::string& entry) {
        for (std::size_t shard = 0; shard < shards_; ++shard)
          if (entry == staged_name(shard)) return true;
        return false;
      });
    } else {
      log_ = transaction_.begin_log(head);
    }
    return &*log_;
  }

  bool reopen(std::size_t index, const PartList& parts) override {
    offsets_ = {};
    safetensors::Layout layout = safetensors::lay_out(parts);
    file_ = OutputFile::reopen(transaction_.directory(), staged_name(index), label_, layout.file_bytes);
    bool same = file_.has_value();
    std::vector<std::byte> found;
    safetensors::write_header(parts, layout, [&](std::uint64_t offset, std::string_view piece) {
      found.resize(piece.size());
      same = same && file_->read_at(offset, found) && std::ranges::equal(found, std::as_bytes(std::span(piece)));
    });
    if (same) accept(index, std::move(layout));
    return same;
  }

  bool read(std::size_t part, std::uint64_t offset, std::span<std::byte> out) override {
    return file_->read_at(offsets_[part] + offset, out);
  }

  void flush_log() override {
    const auto now = std::chrono::steady_clock::now();
    if (now - flushed_ < flush_interval_) return;
    if (behind_) behind_->drain();
    if (file_) file_->flush();
    log_->flush();
    transaction_.flush_names();
    flushed_ = std::chrono::steady_clock::now();
  }

  std::string keep() override {
    try {
      if (behind_) behind_->drain();
      if (log_) log_->write();
    } catch (const Error&) {  // what did not reach the disk does not count when it is read back
    }
    return transaction_.keep();
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
    if (!manifest_) manifest_.emplace(transaction_.directory(), manifest_name(), label_);
    manifest_->truncate(offset);
    manifest_->write_at(offset, std::as_bytes(std::span(text)));
  }

  std::unique_ptr<Scratch> make_scratch() override { return make_file_scratch(transaction_.work_directory(), label_); }

  void commit() override { transaction_.commit(); }

  std::vector<std::string> warnings() const override { return transaction_.warnings(); }
  std::string remains() const override { return transaction_.remains(); }

 protected:
  // The current shard has this layout.
  void accept(std::size_t index, safetensors::Layout layout) {
    data_bytes_.resize(std::max(data_bytes_.size(), index + 1));
    data_bytes_[index] = layout.file_bytes - layout.header_bytes;
    offsets_ = std::move(layout.offsets);
    behind_.emplace(*file_, transaction_.directory(), staged_name(index), max_behind);
  }

  // A file's name in the transaction's directory.
  [[nodiscard]] virtual std::string staged_name(std::size_t index) const = 0;
  [[nodiscard]] virtual std::string manifest_name() const = 0;

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
  std::vector<std::uint64_t> offsets_;  // of the parts of the current shard
  std::optional<OutputFile> file_;
  std::optional<WriteBehind> behind_;
  std::optional<OutputFile> manifest_;
  std::optional<WorkLog> log_;
  std::chrono::milliseconds flush_interval_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();  // the log
};

class FileWriter final : public ShardWriter {
 public:
  FileWriter(const std::filesystem::path& path, const CreateOptions& options)
      : ShardWriter(path, Transaction::Kind::file, options, nullptr) {}

  // A single file: the user chose its name, and no part of the output contains it.
  [[nodiscard]] std::string shard_name(std::size_t /*index*/) const override { return {}; }

  void complete(const Finish& /*finish*/) override { end_manifest(); }

 private:
  [[nodiscard]] std::string staged_name(std::size_t /*index*/) const override { return transaction_.name(); }
  [[nodiscard]] std::string manifest_name() const override { return transaction_.manifest_name(); }
};

class DirectoryWriter final : public ShardWriter {
 public:
  DirectoryWriter(const std::filesystem::path& path, const Reader& source, const CreateOptions& options)
      : DirectoryWriter(path, source, options, check_others(path, source, options)) {}

  [[nodiscard]] std::string shard_name(std::size_t index) const override { return files_.shard(index); }

  void complete(const Finish& finish) override {
    const int directory = transaction_.directory();
    const Directory from(source_.path());
    carry_over_.copy(from, directory);
    end_manifest();
    if (shards_ > 1) write_index(finish);
    if (from.has(config::file_name)) write_file(directory, config::file_name, label_, patched_config(from, finish));
  }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> all = ShardWriter::warnings();
    const auto& [links, special, weights, adapter] = carry_over_.left_out();
    if (!links.empty()) all.push_back(fmt::format("links that lead nowhere are not carried over: {}", list_of(links)));
    if (!special.empty())
      all.push_back(fmt::format("pipes, sockets and devices are not carried over: {}", list_of(special)));
    if (!weights.empty())
      all.push_back(fmt::format("weights that were not converted are not carried over: {}", list_of(weights)));
    if (!adapter.empty())
      all.push_back(fmt::format("an adapter beside the model is not carried over: {}", list_of(adapter)));
    return all;
  }

 private:
  DirectoryWriter(const std::filesystem::path& path, const Reader& source, const CreateOptions& options, Others others)
      : ShardWriter(path, Transaction::Kind::directory, options, &others),
        source_(source),
        files_(source, options.shards),
        carry_over_(std::move(others.carry_over)) {}

  [[nodiscard]] std::string staged_name(std::size_t index) const override { return shard_name(index); }
  [[nodiscard]] std::string manifest_name() const override { return manifest_file; }

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

    const std::uint64_t bytes = std::accumulate(data_bytes_.begin(), data_bytes_.end(), std::uint64_t{0});
    OutputFile file(transaction_.directory(), files_.index(), label_);
    std::uint64_t written = 0;
    std::string text = fmt::format(
        "{{\n  \"metadata\": {{\n    \"total_parameters\": {},\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{",
        finish.parameters, bytes);
    std::string quoted;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      quoted.assign(name(entries[i]).stem).append(name(entries[i]).rest);
      text += i == 0 ? "\n    " : ",\n    ";
      json::append_quoted(text, quoted);
      text.append(": \"").append(shard_name(entries[i].shard)).append("\"");
      if (text.size() < index_piece) continue;
      file.write_at(written, std::as_bytes(std::span(text)));
      written += text.size();
      text.clear();
    }
    text += entries.empty() ? "}\n}\n" : "\n  }\n}\n";
    file.write_at(written, std::as_bytes(std::span(text)));
    file.flush();
    file.close();
  }

  [[nodiscard]] std::string patched_config(const Directory& from, const Finish& finish) const {
    const InputFile file(from.fd(), config::file_name, escaped((source_.path() / config::file_name).native()));
    std::vector<config::Edit> edits;
    if (!finish.dtype.empty())
      for (const char* const key : {"dtype", "torch_dtype"}) edits.push_back({key, '"' + finish.dtype + '"'});
    if (finish.was_decoded)
      for (const std::string_view key : config::quantization_keys)
        if (key != config::quantization_keys[0] || finish.quantization_config.empty())
          edits.push_back({std::string(key), {}});
    if (!finish.quantization_config.empty())
      edits.push_back({std::string(config::quantization_keys[0]), finish.quantization_config});
    std::string text = file.read_text(config::max_bytes);
    if (finish.unties) text = config::untie(std::move(text), file.label());
    return config::patch(std::move(text), edits, file.label());
  }

  const Reader& source_;
  OutputFiles files_;
  CarryOver carry_over_;
};

}  // namespace

void check_output(const std::filesystem::path& path, const Reader& source, const CreateOptions& options) {
  check_apart(path, source);
  const bool is_directory = std::filesystem::is_directory(source.path());
  const auto others = is_directory ? std::optional(check_others(path, source, options)) : std::nullopt;
  const auto kind = is_directory ? Transaction::Kind::directory : Transaction::Kind::file;
  check_room(printable(path.string()), options.bytes, others ? others->bytes : 0,
             Transaction::check(path, kind, transaction_options(options, others ? &*others : nullptr)));
}

std::unique_ptr<Writer> create_checkpoint(const std::filesystem::path& path, const Reader& source,
                                          const CreateOptions& options) {
  check_apart(path, source);
  if (std::filesystem::is_directory(source.path())) return std::make_unique<DirectoryWriter>(path, source, options);
  if (options.shards != 1)
    throw Error(Errc::usage, printable(path.string()), fmt::format("a file cannot hold {} shards", options.shards));
  return std::make_unique<FileWriter>(path, options);
}

}  // namespace nibble
