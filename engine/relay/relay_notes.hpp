// What the two ends of a pipe tell each other beside its bytes. A relay begins each pipe with what
// it carries: the connection of a replica to its front, or a connection to a replica's server for
// which the front has asked. The front asks for one over the replica's pipe, where the relay also
// says that the server does not accept connections.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flow {

struct RelayNote {
  enum class Kind : char { replica = 'r', wanted = 'w', server = 's', refused = 'x' };
  Kind kind = Kind::replica;
  uint64_t number = 0;  // of the wanted connection: chosen by the front, unique in it
  uint16_t port = 0;    // of the server, on the worker's loopback address; of `wanted` only

  std::string encode() const;
  /// Nothing if the text is no note.
  static std::optional<RelayNote> parse(std::string_view text);
  bool operator==(const RelayNote&) const = default;
};

}  // namespace flow
