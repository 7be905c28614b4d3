#include "engine/client/preface.hpp"

#include <fmt/format.h>

#include "flow/flow.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

/// The version that a first frame names; 0 if it names none.
int64_t protocol_version(const Value& frame) {
  const Value* version = frame.find("version");
  if (version != nullptr && version->kind() == Value::Kind::integer) return version->as_integer();
  return frame.find("frame") != nullptr ? 1 : 0;  // replies of version 1 do not name it
}

std::string version_text(int64_t protocol, const std::string& build) {
  constexpr size_t kBuildMax = 64;  // bytes; a peer may send anything
  if (protocol == 0) return "another version";
  return build.empty() || build.size() > kBuildMax
             ? fmt::format("version {}", protocol)
             : fmt::format("version {} (flow {})", protocol, build);
}

std::string own_version_text() { return version_text(kClientProtocolVersion, version()); }

std::string peer_version_text(std::string_view frame) {
  auto value = decode_value(frame);
  if (!value.ok()) return version_text(0, "");
  const Value* build = value->find("flow");
  bool has_build = build != nullptr && build->kind() == Value::Kind::string;
  return version_text(protocol_version(*value), has_build ? build->as_string() : "");
}

/// For the process that speaks `own`.
std::string mismatch_text(const std::string& other, const std::string& own) {
  return fmt::format(
      "the process at the other end uses {} of the client protocol, and this one uses {}: use the "
      "same build of flow for both",
      other, own);
}

}  // namespace

std::string encode_preface(std::string_view peer_preface) {
  const std::string message = mismatch_text(own_version_text(), peer_version_text(peer_preface));
  return encode_value(Value::map({{"version", int64_t{kClientProtocolVersion}},
                                  {"flow", version()},
                                  // For version 1, which reads an error reply:
                                  {"frame", "error"},
                                  {"kind", int64_t{static_cast<uint8_t>(ErrorKind::environment)}},
                                  {"message", message}}));
}

Status check_preface(std::string_view frame) {
  auto value = decode_value(frame);
  if (value.ok() && protocol_version(*value) == kClientProtocolVersion) return {};
  return environment_error(mismatch_text(peer_version_text(frame), own_version_text()));
}

}  // namespace flow
