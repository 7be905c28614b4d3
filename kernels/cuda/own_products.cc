#include "kernels/cuda/own_products.hpp"

#include <utility>

namespace flow::cuda {
namespace {

thread_local ProductWarnings* current = nullptr;

}  // namespace

ProductWarnings::ProductWarnings(Sink sink) : sink_(std::move(sink)), outer_(current) {
  current = this;
}

ProductWarnings::~ProductWarnings() { current = outer_; }

void note_own_product(double operations, const std::function<std::string()>& why) {
  if (operations < kLargeProduct || current == nullptr || current->has_warned_) return;
  current->has_warned_ = true;
  current->sink_(
      "a large matrix product is done by flow's own kernel, which is many times slower "
      "than cuBLASLt, above all in f16 and bf16: " +
      why());
}

void warn_attempt(const std::string& text) {
  if (current != nullptr) current->sink_(text);
}

}  // namespace flow::cuda
