#include "transports/collective/rank_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace flow::collective {
namespace {

constexpr int64_t kCauseMs = 1'000;  // maximum time to send a cause
constexpr size_t kEnteredMax = 64;   // calls that a slower rank may still be compared with

/// Whether a rank of this version can have sent it.
bool is_valid_frame(const FrameHead& head, std::string_view body) {
  bool is_known = head.kind >= FrameKind::data && head.kind <= FrameKind::ended;
  bool is_whole = head.kind == FrameKind::data ? body.size() == head.count
                                               : body.empty() || head.kind == FrameKind::failed;
  return is_known && is_whole && head.channel < kChannelKinds;
}

Error lost(int rank, const Error& why, const LastCall& last_call) {
  return environment_error(
      fmt::format("rank {} is lost: {}; {}", rank, why.message, last_call.text()));
}

}  // namespace

RankLinks::RankLinks(CommunicatorState& state, std::shared_ptr<RankListener> listener,
                     std::vector<std::string> addresses)
    : state_(state),
      listener_(std::move(listener)),
      in_flight_(std::make_shared<std::atomic<int>>(0)) {
  for (std::string& address : addresses) {
    auto& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.address = std::move(address);
    if (peer.address.empty()) continue;
    int rank = static_cast<int>(peers_.size()) - 1;
    for (ChannelKind kind : {ChannelKind::user, ChannelKind::collective})
      peer.channels[static_cast<int>(kind)] =
          std::make_unique<LinkChannel>(state_, *this, rank, kind);
  }
  state_.on_fail = [this](const Error& cause) { send_failed(cause); };
  state_.remote_last_call = [this](int rank) { return last_call_of(rank); };
  state_.remote_wait_edge = [this](int rank) { return wait_edge_of(rank); };
  state_.send_wait_edge = [this](const WaitForEdge& wait_edge) { send_wait_edge(wait_edge); };
  state_.remote_has_left = [this](int rank) { return has_left(rank); };
  state_.remote_has_ended = [this](int rank) { return has_ended(rank); };
  state_.on_end = [this] { send_ended(); };
  listener_->set_user(this);
}

/// Flushes sent frames before the links close.
RankLinks::~RankLinks() {
  constexpr int64_t kFlushMs = 2'000;
  FrameHead head;
  head.kind = FrameKind::goodbye;
  if (!state_.has_failed()) send_all(head);
  listener_->close(kFlushMs);
}

void RankLinks::send_all(const FrameHead& head) {
  for (int rank = 0; rank < state_.ranks(); rank++) send(rank, head);
}

void RankLinks::send(int rank, const FrameHead& head) {
  if (auto link = listener_->link_to(rank)) link->send(bytes_of(head));
}

void RankLinks::send_ended() {
  FrameHead head;
  head.kind = FrameKind::ended;
  send_all(head);
}

void RankLinks::send_wait_edge(const WaitForEdge& wait_edge) {
  FrameHead head;
  head.kind = FrameKind::wait_edge;
  head.count = wait_edge.bits();
  send_all(head);
}

WaitForEdge RankLinks::wait_edge_of(int rank) const {
  return WaitForEdge::of(peers_[static_cast<size_t>(rank)]->wait_edge.load());
}

RankChannel& RankLinks::channel(int rank, ChannelKind kind) {
  return *peers_[static_cast<size_t>(rank)]->channels[static_cast<int>(kind)];
}

std::shared_ptr<GangLink> RankLinks::link_to(int rank) {
  auto made = listener_->link_to(rank);
  if (made) return made->is_up() ? made : nullptr;
  if (rank < state_.rank()) return nullptr;  // it connects
  Status connected = listener_->connect(rank, peers_[static_cast<size_t>(rank)]->address);
  if (!connected.ok()) state_.fail(link_failure(rank, connected.error()));
  return nullptr;
}

Error RankLinks::link_failure(int rank, const Error& why) const {
  const Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (peer.was_up) return lost(rank, why, last_call_of(rank));
  return environment_error(fmt::format(
      "rank {} is lost: cannot connect to it at {}: {}. Ranks on different machines reach each "
      "other at ports that the system chooses: a firewall between these two may drop that; {}",
      rank, peer.address, why.message, last_call_of(rank).text()));
}

/// The links close after the cause was sent to the others.
void RankLinks::quiesce() {
  auto hurry = std::chrono::steady_clock::now() + std::chrono::milliseconds(2 * kCauseMs);
  bool is_hurried = false;
  while (in_flight_->load() > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (is_hurried || std::chrono::steady_clock::now() < hurry) continue;
    is_hurried = true;
    for (int rank = 0; rank < state_.ranks(); rank++)
      if (auto link = listener_->link_to(rank)) link->close(0);
  }
}

std::function<void()> RankLinks::track_in_flight() {
  ++*in_flight_;
  return [state = &state_, in_flight = in_flight_] {
    state->ring_own_doorbell();
    --*in_flight;
  };
}

void RankLinks::send_failed(const Error& cause) {
  for (int rank = 0; rank < state_.ranks(); rank++) send_failed_to(rank, cause);
}

void RankLinks::send_failed_to(int rank, const Error& cause) {
  auto link = listener_->link_to(rank);
  if (!link || !link->is_up()) return;  // on_proven sends it
  FrameHead head;
  head.kind = FrameKind::failed;
  head.count = static_cast<uint64_t>(cause.kind);
  link->send(std::string(bytes_of(head)) + cause.message.substr(0, kCauseBytes));
  link->close(kCauseMs);
}

LastCall RankLinks::last_call_of(int rank) const {
  return LastCall(peers_[static_cast<size_t>(rank)]->last_call.load());
}

bool RankLinks::has_left(int rank) const {
  return peers_[static_cast<size_t>(rank)]->has_left.load();
}

bool RankLinks::has_ended(int rank) const {
  return peers_[static_cast<size_t>(rank)]->has_ended.load();
}

void RankLinks::enter(const CallSignature& call) {
  std::vector<std::pair<int, CallSignature>> peer_calls;
  {
    std::lock_guard lock(mutex_);
    entered_.push_back(call);
    if (entered_.size() > kEnteredMax) entered_.pop_front();
    for (auto& [rank, theirs] : peer_calls_)
      if (theirs.number == call.number) peer_calls.emplace_back(rank, theirs);
  }
  for (auto& [rank, theirs] : peer_calls)
    if (theirs != call) state_.fail(mismatch(state_.rank(), call, rank, theirs));
}

/// Compares a call of another rank with this rank's call of the same number.
Status RankLinks::check_call(int rank, const CallSignature& theirs) {
  std::lock_guard lock(mutex_);
  peer_calls_[rank] = theirs;
  for (const CallSignature& ours : entered_)
    if (ours.number == theirs.number && ours != theirs)
      return mismatch(state_.rank(), ours, rank, theirs);
  return {};
}

void RankLinks::on_failed(const FrameHead& head, std::string_view text) {
  auto kind = static_cast<ErrorKind>(
      std::min<uint64_t>(head.count, static_cast<uint64_t>(ErrorKind::internal)));
  state_.fail({kind, std::string(text.substr(0, kCauseBytes))});
}

// A rank that connects after this one has failed or ended is notified now.
void RankLinks::on_proven(int rank) {
  peers_[static_cast<size_t>(rank)]->was_up = true;
  if (state_.has_failed()) return send_failed_to(rank, state_.cause());
  FrameHead head;
  head.kind = FrameKind::ended;
  if (state_.has_ended(state_.rank())) send(rank, head);
  state_.ring_own_doorbell();
}

void RankLinks::on_frame(int rank, std::string_view frame, std::string_view bulk) {
  std::string_view body;
  auto head = read_head<FrameHead>(frame, &body);
  if (!bulk.empty()) body = bulk;
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (!head || !is_valid_frame(*head, body))
    return state_.fail(lost(rank, environment_error("its data is damaged"), last_call_of(rank)));
  if (head->kind == FrameKind::failed) return on_failed(*head, body);
  if (head->kind == FrameKind::goodbye) {
    peer.has_left = true;
    return state_.ring_own_doorbell();
  }
  if (head->kind == FrameKind::ended) {
    peer.has_ended = true;
    return state_.ring_own_doorbell();
  }
  if (head->kind == FrameKind::wait_edge) {
    peer.wait_edge = head->count;
    return;
  }
  on_message(rank, *head, body);
}

void RankLinks::on_message(int rank, const FrameHead& head, std::string_view body) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  bool is_call = head.kind == FrameKind::data || head.kind == FrameKind::announce ||
                 head.kind == FrameKind::ready;
  if (is_call && head.channel == static_cast<uint8_t>(ChannelKind::collective)) {
    auto what = static_cast<Collective>(head.signature.what);
    peer.last_call = LastCall(what, head.signature.number, false).bits();
    Status same = check_call(rank, head.signature);
    if (!same.ok()) return state_.fail(same.error());
  }
  if (LinkChannel* channel = peer.channels[head.channel].get()) channel->enqueue(head, body);
  state_.ring_own_doorbell();
}

void RankLinks::on_down(int rank, const Error& why) {
  if (has_left(rank)) return state_.ring_own_doorbell();
  state_.fail(link_failure(rank, why));
}

}  // namespace flow::collective
