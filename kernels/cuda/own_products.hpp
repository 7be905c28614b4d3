// Warnings of kernels for the log of the attempt, such as one when a large product is not done by
// cuBLASLt: it takes many times as long.
#pragma once
#include <functional>
#include <string>

namespace flow::cuda {

constexpr double kLargeProduct = 1e9;  // multiplications and additions

/// While it lives, the calling thread's first large product that flow's own tiles do is reported to
/// the sink, such as a script's log, and so are the texts of warn_attempt(). Scopes nest.
class ProductWarnings {
 public:
  using Sink = std::function<void(const std::string&)>;
  explicit ProductWarnings(Sink sink);
  ~ProductWarnings();
  ProductWarnings(const ProductWarnings&) = delete;
  ProductWarnings& operator=(const ProductWarnings&) = delete;

 private:
  friend void note_own_product(double, const std::function<std::string()>&);
  friend void warn_attempt(const std::string&);
  Sink sink_;
  bool has_warned_ = false;
  ProductWarnings* const outer_;
};

/// flow's own tiles do a product of so many operations; `why` says why cuBLASLt does not.
void note_own_product(double operations, const std::function<std::string()>& why);

/// To the sink of the calling thread, if it has one.
void warn_attempt(const std::string& text);

}  // namespace flow::cuda
