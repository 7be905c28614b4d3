#include "engine/relay/relay_notes.hpp"

#include "engine/cluster/session/byte_reader.hpp"

namespace flow {

std::string RelayNote::encode() const {
  std::string text(1, static_cast<char>(kind));
  if (kind != Kind::replica) cluster::put_number(text, number);
  if (kind == Kind::wanted) cluster::put_number(text, port);
  return text;
}

std::optional<RelayNote> RelayNote::parse(std::string_view text) {
  cluster::ByteReader in(text);
  RelayNote note{static_cast<Kind>(in.number<uint8_t>())};
  bool is_known = note.kind == Kind::replica || note.kind == Kind::wanted ||
                  note.kind == Kind::server || note.kind == Kind::refused;
  if (!is_known) return std::nullopt;
  if (note.kind != Kind::replica) note.number = in.number<uint64_t>();
  if (note.kind == Kind::wanted) note.port = in.number<uint16_t>();
  if (in.failed() || !in.is_empty() || (note.kind == Kind::wanted && note.port == 0))
    return std::nullopt;
  return note;
}

}  // namespace flow
