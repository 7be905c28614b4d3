#include "kernels/tensor/staging.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device.hpp"

namespace flow::tensors {
namespace {

// Large enough to run at the bus's speed, small enough that the first piece is soon on its way.
constexpr size_t kPieceBytes = size_t{2} << 20;

}  // namespace

// What fails here has failed before, or the process ends.
Staging::~Staging() {
  for (Piece& each : pieces_) {
    (void)finish(each);
    if (each.event != nullptr) (void)cuda::free_event(each.event);
    if (each.data != nullptr) (void)cuda::release_pinned(each.data);
  }
}

Status Staging::prepare() {
  for (Piece& each : pieces_) {
    if (each.event != nullptr) continue;
    if (each.data == nullptr) {
      auto data = cuda::allocate_pinned(kPieceBytes);
      FLOW_TRY(data);
      each.data = *data;
    }
    auto event = cuda::new_event();
    FLOW_TRY(event);
    each.event = *event;
  }
  return {};
}

Status Staging::finish(Piece& piece) {
  if (!piece.is_under_way) return {};
  FLOW_TRY(cuda::wait_for_event(piece.event));
  piece.is_under_way = false;
  return {};
}

Status Staging::to_device(char* to, const char* from, size_t bytes, void* stream) {
  FLOW_TRY(prepare());
  for (size_t at = 0, i = 0; at < bytes; at += kPieceBytes, i++) {
    // The one that has been under way longer: a small copy does not wait for the one before it.
    Piece& piece = pieces_[i % kPieces];
    size_t length = std::min(kPieceBytes, bytes - at);
    FLOW_TRY(finish(piece));
    std::memcpy(piece.data, from + at, length);
    FLOW_TRY(cuda::copy_to_device(to + at, piece.data, length, stream));
    FLOW_TRY(cuda::record_event(piece.event, stream));
    piece.is_under_way = true;
  }
  std::rotate(pieces_, pieces_ + 1, pieces_ + kPieces);
  return {};
}

Status Staging::to_host(char* to, const char* from, size_t bytes, void* stream) {
  FLOW_TRY(prepare());
  size_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
  auto length = [&](size_t i) { return std::min(kPieceBytes, bytes - i * kPieceBytes); };
  for (size_t i = 0; i <= count; i++) {
    if (i < count) {
      Piece& piece = pieces_[i % kPieces];
      FLOW_TRY(finish(piece));
      FLOW_TRY(cuda::copy_to_host(piece.data, from + i * kPieceBytes, length(i), stream));
      FLOW_TRY(cuda::record_event(piece.event, stream));
      piece.is_under_way = true;
    }
    if (i == 0) continue;
    Piece& before = pieces_[(i - 1) % kPieces];
    FLOW_TRY(finish(before));
    std::memcpy(to + (i - 1) * kPieceBytes, before.data, length(i - 1));
  }
  return {};
}

}  // namespace flow::tensors
