#include "transports/collective/gang_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/hmac.hpp"
#include "engine/base/ids.hpp"

namespace flow::collective {
namespace {

constexpr size_t kStrangersMax = 256;  // who have not proven themselves yet

std::string hello_of(const Identity& identity, int to) {
  Hello hello;
  hello.from = identity.rank;
  hello.to = to;
  std::memcpy(hello.gang, identity.gang.bytes.data(), sizeof hello.gang);
  uint64_t nonce[2] = {random_u64(), random_u64()};
  static_assert(sizeof nonce == sizeof hello.nonce);
  std::memcpy(hello.nonce, nonce, sizeof nonce);
  return std::string(bytes_of(hello));
}

}  // namespace

GangLink::GangLink(const Identity& identity, int peer, LetIn let_in)
    : identity_(identity), connects_(peer >= 0), peer_(peer), let_in_(std::move(let_in)) {
  if (connects_) ours_ = hello_of(identity_, peer_);
}

void GangLink::attach(std::shared_ptr<Link> link) {
  {
    std::lock_guard lock(pointer_);
    if (is_gone_) return;
    link_ = std::move(link);
  }
  if (connects_) send(ours_);
}

void GangLink::send(std::string frame) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(pointer_);
    link = link_;
  }
  if (link) link->send(std::move(frame));
}

std::shared_ptr<Link> GangLink::link() const {
  std::lock_guard lock(pointer_);
  return is_proven_ ? link_ : nullptr;
}

void GangLink::close(int64_t flush_ms) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(pointer_);
    link = link_;
  }
  if (link) link->close(flush_ms);
}

bool GangLink::is_gone() const {
  std::lock_guard lock(pointer_);
  return is_gone_;
}

void GangLink::refuse(const std::string& why) {
  {
    std::lock_guard lock(telling_);
    if (why_.message.empty()) why_ = environment_error(why);
  }
  close(0);
}

/// Both HELLOs are in it, and who says it: none fits another link, or the other side.
std::string GangLink::proof_of(int rank) const {
  std::string said = "flow gang 1\n" + std::to_string(rank) + "\n";
  said += connects_ ? ours_ + theirs_ : theirs_ + ours_;
  Proof proof;
  std::memcpy(proof.digest, hmac_sha256(identity_.key, said).bytes.data(), sizeof proof.digest);
  return std::string(bytes_of(proof));
}

void GangLink::on_hello(std::string_view frame) {
  auto hello = read_head<Hello>(frame);
  if (!hello || frame.size() != sizeof(Hello) || hello->kind != FrameKind::hello ||
      hello->version != kWireVersion || hello->to != identity_.rank || hello->from < 0 ||
      hello->from >= identity_.ranks || (connects_ && hello->from != peer_) ||
      std::memcmp(hello->gang, identity_.gang.bytes.data(), sizeof hello->gang) != 0)
    return refuse("it is no rank of this gang");
  peer_ = hello->from;
  theirs_ = frame;
  if (!connects_) {
    ours_ = hello_of(identity_, peer_);
    send(ours_);
  }
  send(proof_of(identity_.rank));
}

void GangLink::on_proof(std::string_view frame) {
  if (!is_same_secretly(frame, proof_of(peer_))) return refuse("it does not hold the gang's key");
  {
    std::lock_guard lock(pointer_);
    is_proven_ = true;
  }
  if (let_in_ && !let_in_(peer_, shared_from_this()))
    return refuse("there is a link to this rank already");
  std::lock_guard lock(telling_);
  if (user_ != nullptr) user_->on_proven(peer_);
}

void GangLink::on_frame(std::string_view frame) {
  if (theirs_.empty()) return on_hello(frame);
  bool is_proven = link() != nullptr;
  if (!is_proven) return on_proof(frame);
  std::lock_guard lock(telling_);
  if (user_ != nullptr) return user_->on_frame(peer_, frame);
  early_.emplace_back(frame);
}

void GangLink::on_down(const Error& why) {
  std::shared_ptr<Link> gone;
  {
    std::lock_guard lock(pointer_);
    is_gone_ = true;
    gone.swap(link_);
  }
  std::lock_guard lock(telling_);
  is_down_ = true;
  if (why_.message.empty()) why_ = why;
  if (user_ != nullptr) user_->on_down(peer_, why_);
}

void GangLink::tell(GangLinkUser* user) {
  std::lock_guard lock(telling_);
  user_ = user;
  if (user == nullptr) return;
  if (link() != nullptr) user->on_proven(peer_);
  for (const std::string& frame : early_) user->on_frame(peer_, frame);
  early_.clear();
  if (is_down_) user->on_down(peer_, why_);
}

Result<std::string> Door::open(const std::string& address) {
  auto opened = transport_.listen(
      address, [this](std::shared_ptr<Link> link) { return accept(std::move(link)); });
  if (!opened.ok()) return opened.error();
  listener_ = std::move(*opened);
  return listener_->address();
}

std::shared_ptr<GangLink> Door::accept(std::shared_ptr<Link> link) {
  auto came = std::make_shared<GangLink>(
      identity_, -1, [door = weak_from_this()](int rank, const std::shared_ptr<GangLink>& proven) {
        auto there = door.lock();
        return there != nullptr && there->let_in(rank, proven);
      });
  {
    std::lock_guard lock(mutex_);
    std::erase_if(strangers_, [](const auto& one) { return one.expired(); });
    if (is_closed_ || strangers_.size() >= kStrangersMax) return nullptr;
    strangers_.push_back(came);
  }
  came->attach(std::move(link));
  return came;
}

bool Door::let_in(int rank, const std::shared_ptr<GangLink>& link) {
  GangLinkUser* user = nullptr;
  {
    std::lock_guard lock(mutex_);
    // The lower rank connects.
    if (is_closed_ || rank >= identity_.rank || !links_.emplace(rank, link).second) return false;
    std::erase_if(strangers_, [&](const auto& one) { return one.lock() == link; });
    user = user_;
  }
  if (user != nullptr) link->tell(user);
  return true;
}

void Door::tell(GangLinkUser* user) {
  std::map<int, std::shared_ptr<GangLink>> links;
  {
    std::lock_guard lock(mutex_);
    user_ = user;
    links = links_;
  }
  for (auto& [rank, link] : links) link->tell(user);
}

std::shared_ptr<GangLink> Door::link_to(int rank) const {
  std::lock_guard lock(mutex_);
  auto found = links_.find(rank);
  return found == links_.end() ? nullptr : found->second;
}

Status Door::connect(int rank, const std::string& address) {
  auto made = std::make_shared<GangLink>(identity_, rank, nullptr);
  GangLinkUser* user = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (is_closed_ || !links_.emplace(rank, made).second) return {};
    user = user_;
  }
  made->tell(user);
  auto link = transport_.connect(address, made);
  if (!link.ok()) return link.error();
  made->attach(std::move(*link));
  return {};
}

void Door::close(int64_t flush_ms) {
  std::map<int, std::shared_ptr<GangLink>> links;
  std::vector<std::weak_ptr<GangLink>> strangers;
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    user_ = nullptr;
    links = links_;
    strangers.swap(strangers_);
  }
  listener_.reset();
  for (auto& [rank, link] : links) {
    link->tell(nullptr);
    link->close(flush_ms);
  }
  for (auto& one : strangers)
    if (auto there = one.lock()) there->close(0);
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(flush_ms);
  for (auto& [rank, link] : links)
    while (!link->is_gone() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace flow::collective
