#include "transports/collective/gang_seal.hpp"

#include <cstring>

namespace flow::collective {
namespace {

constexpr std::string_view kPurpose = "flow gang link, 2";

std::string hello_of(const RankIdentity& identity, int to) {
  RankHello hello;
  hello.encrypts = identity.encrypts ? 1 : 0;
  hello.from = identity.rank;
  hello.to = to;
  std::memcpy(hello.gang, identity.gang.bytes.data(), sizeof hello.gang);
  std::string nonce = random_bytes(sizeof hello.nonce);
  std::memcpy(hello.nonce, nonce.data(), sizeof hello.nonce);
  return std::string(bytes_of(hello));
}

Error changed_on_the_way() {
  return environment_error(
      "its data was changed, cut, repeated or dropped on the way, or is not from that rank");
}

}  // namespace

GangSeal::GangSeal(const RankIdentity& identity, int peer)
    : identity_(identity), connects_(peer >= 0), peer_(peer) {
  if (connects_) own_hello_ = hello_of(identity_, peer_);
}

Status GangSeal::receive_hello(std::string_view frame) {
  FLOW_CHECK(!has_hello());
  auto hello = read_head<RankHello>(frame);
  if (!hello || frame.size() != sizeof(RankHello) || hello->kind != FrameKind::hello ||
      hello->version != kGangLinkVersion || hello->encrypts > 1 || hello->to != identity_.rank ||
      hello->from < 0 || hello->from >= identity_.ranks || hello->from == identity_.rank ||
      (connects_ && hello->from != peer_) ||
      std::memcmp(hello->gang, identity_.gang.bytes.data(), sizeof hello->gang) != 0)
    return environment_error("it is not a rank of this gang");
  if (!connects_) peer_ = hello->from;
  peer_hello_ = frame;
  if (!connects_) own_hello_ = hello_of(identity_, peer_);
  make_keys(identity_.encrypts || hello->encrypts == 1);
  return {};
}

void GangSeal::make_keys(bool encrypts) {
  Key secret = keyed_hash(Key{}, {kPurpose, identity_.key});
  Key origin = keyed_hash(secret, {kPurpose, connects_ ? own_hello_ : peer_hello_,
                                   connects_ ? peer_hello_ : own_hello_});
  keys_ = link_keys(origin, connects_);
  sealer_.emplace(keys_->seal_out);
  if (encrypts) bulk_ = std::make_shared<BulkSeal>(keys_->bulk_out, keys_->bulk_in);
}

std::string GangSeal::proof() const {
  Proof proof;
  std::memcpy(proof.header, sealer_->header().data(), sizeof proof.header);
  Key digest = keyed_hash(keys_->proof_out, {sealer_->header()});
  std::memcpy(proof.digest, digest.bytes.data(), sizeof proof.digest);
  return std::string(bytes_of(proof));
}

Status GangSeal::receive_proof(std::string_view frame) {
  FLOW_CHECK(has_hello() && !is_proven());
  auto proof = read_head<Proof>(frame);
  if (!proof || frame.size() != sizeof(Proof) || proof->kind != FrameKind::proof)
    return environment_error("it is not a rank of this gang");
  std::string_view header(reinterpret_cast<const char*>(proof->header), sizeof proof->header);
  std::string_view digest(reinterpret_cast<const char*>(proof->digest), sizeof proof->digest);
  if (!secrets_equal(digest, keyed_hash(keys_->proof_in, {header}).view()))
    return environment_error("it does not hold the gang's key");
  opener_.emplace(keys_->seal_in, header);
  keys_.reset();
  return {};
}

std::string GangSeal::seal(std::string_view control, std::string_view bulk) {
  if (bulk.size() > kSealedBytes && bulk_ == nullptr) {
    FLOW_CHECK(control.size() == sizeof(FrameHead));
    std::string frame = sealer_->seal(static_cast<uint8_t>(FrameKind::with_bulk), control);
    return frame.append(bulk);
  }
  auto sealed = static_cast<uint8_t>(FrameKind::sealed);
  if (bulk.empty()) return sealer_->seal(sealed, control);
  return sealer_->seal(sealed, std::string(control).append(bulk));
}

Status GangSeal::open(std::string_view frame, UnsealedFrame& opened) {
  constexpr size_t kHeadBytes = 1 + sizeof(FrameHead) + kSealBytes;
  FLOW_CHECK(is_proven());
  auto kind = frame.empty() ? FrameKind::hello : static_cast<FrameKind>(frame[0]);
  bool has_bulk = kind == FrameKind::with_bulk;
  if ((kind != FrameKind::sealed && !has_bulk) || (has_bulk && bulk_ != nullptr))
    return changed_on_the_way();
  if (has_bulk && frame.size() < kHeadBytes) return changed_on_the_way();
  std::string_view sealed = has_bulk ? frame.substr(0, kHeadBytes) : frame;
  if (!opener_->open(sealed, opened.control)) return changed_on_the_way();
  opened.bulk = has_bulk ? frame.substr(kHeadBytes) : std::string_view();
  return {};
}

}  // namespace flow::collective
