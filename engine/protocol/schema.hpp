#pragma once
#include <cstdint>

namespace flow::cluster {

/// Version of the messages between processes of a cluster. The handshake compares it: both sides
/// must have the same.
constexpr uint32_t kMessagesSchema = 9;

}  // namespace flow::cluster
