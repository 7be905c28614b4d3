#include "engine/cluster/session/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cluster/session/byte_reader.hpp"

namespace flow::cluster {

namespace {

constexpr std::string_view kMagic = "flowlink";
constexpr std::string_view kPurpose = "flow session keys, 1";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 1 + kSealHeaderBytes + kKeyBytes;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-' || c == '+';
}

Error no_handshake(std::string_view seen) {
  return environment_error(fmt::format(
      "{} is not a greeting of flow: is another program at that address, or an older flow?", seen));
}

std::string range(uint16_t min, uint16_t max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
}

/// Whether processes of the second role connect to processes of the first.
bool leads(Role first, Role second) {
  return (first == Role::head && second == Role::worker) ||
         (first == Role::head && second == Role::client) ||
         (first == Role::worker && second == Role::peer);
}

std::string encode(const SessionHello& greeting) {
  std::string out(1, static_cast<char>(FrameType::hello));
  out += kMagic;
  put_number(out, greeting.protocol_min);
  put_number(out, greeting.protocol_max);
  put_text(out, greeting.version);
  // The layout up to here is the same in all versions.
  put_number(out, greeting.schema);
  put_number(out, static_cast<uint8_t>(greeting.role));
  put_number(out, static_cast<uint8_t>(greeting.has_secret));
  put_number(out, greeting.epoch);
  put_text(out, greeting.name);
  out += greeting.nonce;
  out += greeting.key;
  return out;
}

}  // namespace

const char* role_name(Role role) {
  constexpr const char* kNames[] = {"head", "worker", "peer", "client"};
  return kNames[static_cast<int>(role) - 1];
}

bool is_process_name(std::string_view name) {
  return !name.empty() && name.size() <= kProcessNameBytesMax &&
         std::all_of(name.begin(), name.end(), is_plain);
}

Handshake::Handshake(SessionHello ours, std::shared_ptr<const Secret> secret)
    : ours_(std::move(ours)), secret_(std::move(secret)) {
  FLOW_CHECK(is_process_name(ours_.name) && ours_.version.size() <= kVersionBytesMax);
  exchange_.emplace();
  ours_.has_secret = secret_ != nullptr;
  ours_.nonce = random_bytes(kNonceBytes);
  ours_.key = exchange_->offered();
  hello_ = encode(ours_);
}

Result<SessionHello> Handshake::accept_hello(std::string_view frame) {
  FLOW_CHECK(!keys_);
  auto theirs = read_hello(frame);
  if (!theirs.ok()) return theirs;
  FLOW_TRY(check(*theirs));
  if (!make_keys(frame, *theirs))
    return environment_error("the key that it offers for this session is not a valid key");
  return theirs;
}

Result<SessionHello> Handshake::read_hello(std::string_view frame) {
  ByteReader in(frame);
  if (in.number<uint8_t>() != static_cast<uint8_t>(FrameType::hello) ||
      in.take(kMagic.size()) != kMagic)
    return no_handshake("the first frame");
  SessionHello theirs;
  theirs.protocol_min = in.number<uint16_t>();
  theirs.protocol_max = in.number<uint16_t>();
  theirs.version = in.text();
  bool is_plain_version = std::all_of(theirs.version.begin(), theirs.version.end(), is_plain);
  if (in.failed() || !is_plain_version || theirs.version.size() > kVersionBytesMax)
    return no_handshake("the first frame");
  FLOW_TRY(agree_on_version(theirs));
  theirs.schema = in.number<uint32_t>();
  theirs.role = static_cast<Role>(in.number<uint8_t>());
  uint8_t has_secret = in.number<uint8_t>();
  theirs.has_secret = has_secret != 0;
  theirs.epoch = in.number<uint64_t>();
  theirs.name = in.text();
  theirs.nonce = in.take(kNonceBytes);
  theirs.key = in.take(kKeyBytes);
  // A later version that also supports this one may append fields.
  if (in.failed() || has_secret > 1 || !is_process_name(theirs.name) || theirs.role < Role::head ||
      theirs.role > Role::client)
    return no_handshake("the first frame");
  return theirs;
}

Status Handshake::agree_on_version(const SessionHello& theirs) {
  uint16_t protocol = std::min(ours_.protocol_max, theirs.protocol_max);
  if (protocol >= ours_.protocol_min && protocol >= theirs.protocol_min) {
    protocol_ = protocol;
    return {};
  }
  const SessionHello& older = ours_.protocol_max < theirs.protocol_max ? ours_ : theirs;
  return environment_error(
      fmt::format("it is flow {} with version {} of the protocol; this is flow {} with version {}. "
                  "Install the same flow on both; {} is the older",
                  theirs.version, range(theirs.protocol_min, theirs.protocol_max), ours_.version,
                  range(ours_.protocol_min, ours_.protocol_max), older.version));
}

Status Handshake::check(const SessionHello& theirs) const {
  if (theirs.nonce == ours_.nonce || theirs.key == ours_.key)
    return environment_error(
        "this process received its own greeting: something on the way sends back what it receives");
  if (theirs.role == ours_.role)
    return environment_error(fmt::format("it is a {} and this is a {} too: a worker joins a head",
                                         role_name(theirs.role), role_name(ours_.role)));
  if (!leads(ours_.role, theirs.role) && !leads(theirs.role, ours_.role))
    return environment_error(fmt::format(
        "it is a {} and this is a {}: workers and clients connect to a head, and peers to a worker",
        role_name(theirs.role), role_name(ours_.role)));
  if (theirs.has_secret != ours_.has_secret)
    return environment_error(
        fmt::format("it has {} secret and this has {}: give both the same file with --secret-file",
                    theirs.has_secret ? "a" : "no", ours_.has_secret ? "one" : "none"));
  if (theirs.schema != ours_.schema)
    return environment_error(
        fmt::format("it is flow {} with messages of schema {}; this is flow {} with schema {}. "
                    "Install the same flow on both",
                    theirs.version, theirs.schema, ours_.version, ours_.schema));
  // Results of a worker of another version would be cached under the same keys. A head checks the
  // versions of its clients itself.
  bool is_client = theirs.role == Role::client || ours_.role == Role::client;
  if (!is_client && theirs.version != ours_.version)
    return environment_error(fmt::format(
        "this {} is flow {} and the {} there is flow {}: install the same version on both",
        role_name(ours_.role), ours_.version, role_name(theirs.role), theirs.version));
  return {};
}

bool Handshake::make_keys(std::string_view their_hello, const SessionHello& theirs) {
  Key shared;
  bool agreed = exchange_->agree(theirs.key, shared);
  exchange_.reset();
  if (!agreed) return false;
  bool is_first = leads(ours_.role, theirs.role);
  std::string_view of_first = is_first ? hello_ : their_hello;
  std::string_view of_second = is_first ? their_hello : hello_;
  Key origin = keyed_hash(secret_ != nullptr ? *secret_ : Key{},
                          {kPurpose, of_first, of_second, shared.view()});
  secret_ = nullptr;
  keys_ = link_keys(origin, is_first);
  return true;
}

std::string Handshake::proof(std::string_view header) const {
  std::string frame(1, static_cast<char>(FrameType::proof));
  frame += header;
  frame += keyed_hash(keys_->proof_out, {header}).view();
  return frame;
}

Result<std::string> Handshake::accept_proof(std::string_view frame) const {
  if (frame.size() != kProofBytes || frame[0] != static_cast<char>(FrameType::proof))
    return no_handshake("the frame after its greeting");
  std::string header(frame.substr(1, kSealHeaderBytes));
  if (!secrets_equal(frame.substr(1 + kSealHeaderBytes),
                     keyed_hash(keys_->proof_in, {header}).view()))
    return environment_error(
        ours_.has_secret
            ? "it did not prove that it knows the cluster's secret: its --secret-file differs from "
              "this one's, or the traffic is changed on the way"
            : "its proof does not match its greeting: the traffic was changed on the way");
  return header;
}

}  // namespace flow::cluster
