// Compiled kernels as files of the state directory, by the digest of all input of the compiler. A
// damaged file counts as missing: its content is untrusted.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "flow/digest.hpp"
#include "kernels/jit/compiler.hpp"

namespace flow::jit {

constexpr size_t kEntryMax = 4096;                  // bytes of a function's mangled name
constexpr size_t kImageMax = size_t{64} << 20;      // bytes of code
constexpr size_t kCachedMax = 1000;                 // files per state
constexpr size_t kFileMax = kImageMax + (8 << 10);  // bytes of a file

/// The key of the result of `order`, by a compiler of this version with these options.
Digest key_of(const CompileRequest& order, std::string_view compiler,
              const std::vector<std::string>& options);

std::string encode_image(const Digest& key, const KernelImage& image);
/// Empty if the bytes are damaged, or belong to another key.
std::optional<KernelImage> decode_image(const Digest& key, std::string_view bytes);

class Cache {
 public:
  /// Files are in `folder`, which need not exist, but its parent must. "": no cache.
  explicit Cache(std::string folder) : folder_(std::move(folder)) {}

  std::optional<KernelImage> find(const Digest& key) const;
  /// Atomic, also with concurrent processes. If the folder cannot be written, only time is lost, so
  /// that is not an Error.
  void keep(const Digest& key, const KernelImage& image) const;

 private:
  std::string path_of(const Digest& key) const;
  void drop_oldest() const;

  std::string folder_;
};

/// The code from the cache, or compiled and stored there.
Result<CompileResult> compile_cached(const CompileRequest& order, const Cache& cache);

}  // namespace flow::jit
