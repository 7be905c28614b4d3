// Compiled kernels as files of the state, by the digest of all that the compiler was given. Who
// finds a file broken takes it as none: what is read here may be anything.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "flow/digest.hpp"
#include "kernels/jit/compiler.hpp"

namespace flow::jit {

constexpr size_t kEntryMax = 4096;                  // bytes of a function's mangled name
constexpr size_t kImageMax = size_t{64} << 20;      // bytes of code
constexpr size_t kCachedMax = 1000;                 // files of a state
constexpr size_t kFileMax = kImageMax + (8 << 10);  // bytes of a file

/// The name of what `order` comes to, by the compiler of this version with these options.
Digest key_of(const Order& order, std::string_view compiler,
              const std::vector<std::string>& options);

std::string encode_image(const Digest& key, const Image& image);
/// Nothing where the bytes are not whole, or are those of another key.
std::optional<Image> decode_image(const Digest& key, std::string_view bytes);

class Cache {
 public:
  /// Files lie in `folder`, which need not be there, of a folder that is. "": there is no cache.
  explicit Cache(std::string folder) : folder_(std::move(folder)) {}

  std::optional<Image> find(const Digest& key) const;
  /// Whole or not at all, beside other processes that do the same. That a folder can't be written
  /// costs time alone, so it is no Error.
  void keep(const Digest& key, const Image& image) const;

 private:
  std::string path_of(const Digest& key) const;
  void drop_oldest() const;

  std::string folder_;
};

}  // namespace flow::jit
