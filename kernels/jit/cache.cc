// Format of a file: a word with the format's version, the key, whether it is PTX, the entry, the
// code, and a SHA-256 of all of it. Lengths are 8 bytes, little-endian.
#include "kernels/jit/cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "engine/base/files.hpp"

namespace flow::jit {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMagic = "flow-kernel\1";
constexpr size_t kDigestSize = 32, kLengthSize = 8;

void put_text(std::string& out, std::string_view text) {
  for (size_t i = 0; i < kLengthSize; i++)
    out.push_back(static_cast<char>(static_cast<uint64_t>(text.size()) >> 8 * i));
  out += text;
}

bool take(std::string_view& rest, size_t size, std::string_view& out) {
  if (rest.size() < size) return false;
  out = rest.substr(0, size);
  rest.remove_prefix(size);
  return true;
}

bool take_text(std::string_view& rest, size_t size_max, std::string_view& out) {
  std::string_view raw;
  if (!take(rest, kLengthSize, raw)) return false;
  uint64_t size = 0;
  for (size_t i = 0; i < kLengthSize; i++)
    size |= uint64_t{static_cast<unsigned char>(raw[i])} << 8 * i;
  return size <= size_max && take(rest, static_cast<size_t>(size), out);
}

}  // namespace

Digest key_of(const CompileRequest& order, std::string_view compiler,
              const std::vector<std::string>& options) {
  std::string all(kMagic);
  put_text(all, compiler);
  put_text(all, order.name);
  put_text(all, order.text);
  for (const std::string& option : options) put_text(all, option);
  for (const auto& [name, text] : order.headers) {
    put_text(all, name);
    put_text(all, text);
  }
  return sha256(all);
}

std::string encode_image(const Digest& key, const KernelImage& image) {
  std::string out(kMagic);
  out += key.view();
  out.push_back(image.is_ptx ? 1 : 0);
  put_text(out, image.entry);
  put_text(out, image.bytes);
  out += sha256(out).view();
  return out;
}

std::optional<KernelImage> decode_image(const Digest& key, std::string_view bytes) {
  std::string_view magic, own_key, kind, entry, code, sum;
  std::string_view rest = bytes;
  bool whole = bytes.size() <= kFileMax && take(rest, kMagic.size(), magic) && magic == kMagic &&
               take(rest, kDigestSize, own_key) && own_key == key.view() && take(rest, 1, kind) &&
               (kind[0] == 0 || kind[0] == 1) && take_text(rest, kEntryMax, entry) &&
               take_text(rest, kImageMax, code) && take(rest, kDigestSize, sum) && rest.empty();
  if (!whole || entry.empty() || entry.find('\0') != std::string_view::npos || code.empty())
    return std::nullopt;
  if (sha256(bytes.substr(0, bytes.size() - kDigestSize)).view() != sum) return std::nullopt;
  return KernelImage{kind[0] == 1, std::string(entry), std::string(code)};
}

std::string Cache::path_of(const Digest& key) const { return folder_ + "/" + key.hex(); }

std::optional<KernelImage> Cache::find(const Digest& key) const {
  std::error_code failed;
  // Only regular files, as keep() writes them: no FIFO that blocks, no symbolic link.
  if (folder_.empty() || !fs::is_regular_file(fs::symlink_status(path_of(key), failed)))
    return std::nullopt;
  auto bytes = read_file(path_of(key), kFileMax);
  if (!bytes.ok()) return std::nullopt;
  std::optional<KernelImage> image = decode_image(key, *bytes);
  // The least recently used files are dropped first.
  if (image) ::utimensat(AT_FDCWD, path_of(key).c_str(), nullptr, 0);
  return image;
}

void Cache::keep(const Digest& key, const KernelImage& image) const {
  if (folder_.empty() || image.entry.size() > kEntryMax || image.bytes.size() > kImageMax) return;
  ::mkdir(folder_.c_str(), 0700);  // in the state directory, which exists
  drop_oldest();
  std::string bytes = encode_image(key, image);
  std::error_code failed;
  auto there = fs::symlink_status(path_of(key), failed);
  if (fs::exists(there) && !fs::is_regular_file(there)) fs::remove(path_of(key), failed);
  // Not synced: an incomplete file after a crash is detected by its digest.
  (void)replace_file(path_of(key), {bytes}, false);
}

void Cache::drop_oldest() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code failed;
  for (fs::directory_iterator walk(folder_, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code each;
    auto time = walk->last_write_time(each);
    if (!each) files.emplace_back(time, walk->path());
  }
  if (files.size() < kCachedMax) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i <= files.size() - kCachedMax; i++) fs::remove(files[i].second, failed);
}

Result<CompileResult> compile_cached(const CompileRequest& order, const Cache& cache) {
  auto compiler = Compiler::get();
  if (!compiler.ok()) return compiler.error();
  auto options = (*compiler)->options_of(order);
  if (!options.ok()) return options.error();
  Digest key = key_of(order, (*compiler)->version(), *options);
  if (std::optional<KernelImage> found = cache.find(key))
    return CompileResult{true, std::move(*found), ""};
  auto output = (*compiler)->compile(order);
  if (output.ok() && output->ok) cache.keep(key, output->image);
  return output;
}

}  // namespace flow::jit
