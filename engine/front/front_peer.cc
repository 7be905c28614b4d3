#include "engine/front/front_peer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/front/front_messages.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr uint64_t kLogBytesMax = 1 << 20;  // that wait for a replica; further lines are dropped
constexpr uint64_t kAnswerBytesMax = 16 << 20;  // that wait for an engine
constexpr int kWeightsMax = 64;
constexpr int64_t kGraceMax = int64_t{365} * 24 * 3600 * 1000;
constexpr size_t kShownMax = 100;  // bytes of a name

}  // namespace

FrontPeer::FrontPeer(Front& front, EventLoop& loop, int socket,
                     std::function<void(const std::string&)> log, std::function<void()> ended,
                     PeerAccess access)
    : front_(front),
      loop_(loop),
      log_(std::move(log)),
      ended_(std::move(ended)),
      access_(std::move(access)),
      socket_(std::make_shared<FrameSocket>(loop, socket)) {
  socket_->start({.received = [this](const Bytes& frame) { receive(frame); },
                  .ended = [this](const std::string& why) { disconnect(why); }});
}

FrontPeer::~FrontPeer() { socket_->close(); }

void FrontPeer::disconnect(const std::string& why) {
  if (std::exchange(has_ended_, true)) return;
  socket_->close();
  if (!why.empty()) log_(fmt::format("the connection to {} has ended: {}", name_, why));
  if (role_ == Role::replica) front_.remove(*this);
  if (role_ == Role::engine) front_.remove_engine();
  ended_();
}

// ---- To a replica

void FrontPeer::start(uint64_t batch, const std::vector<const Tensors*>& parts,
                      const std::vector<BatchedRequest>& requests) {
  std::optional<TensorMemory> memory;
  if (memory_ != nullptr) memory = memory_->take_inputs(memory_bytes(parts));
  socket_->send(batch_frame(batch, parts, requests, memory));
}

void FrontPeer::share_memory() {
  memory_ = std::make_unique<ReplicaMemory>(
      front_.memory_budget(),
      ReplicaMemory::Callbacks{
          .offer = [this](const ReplicaMemory::Offer& offered) { offer(offered); },
          .give_back =
              [this](uint64_t id) {
                front::FromFront message;
                message.mutable_memory_released()->add_ids(id);
                send(message);
              },
          .post = [&loop = loop_](std::function<void()> job) { loop.post(std::move(job)); },
          .log = log_});
}

void FrontPeer::offer(const ReplicaMemory::Offer& offer) {
  front::FromFront message;
  front::Memory& memory = *message.mutable_memory();
  memory.set_id(offer.id);
  memory.set_size(offer.memory.size());
  memory.set_is_for_outputs(offer.is_for_outputs);
  memory.set_replaces(offer.replaces);
  send(message, offer.memory.descriptor());
}

void FrontPeer::release() {
  is_released_ = true;
  front::FromFront message;
  message.mutable_released();
  send(message);
}

void FrontPeer::log(const std::string& line) {
  if (socket_->unsent_bytes() > kLogBytesMax) return;
  front::FromFront message;
  message.mutable_log()->add_lines(line);
  send(message);
}

void FrontPeer::send(const front::FromFront& message, int descriptor) {
  std::string frame;
  append_frame(frame, message);
  socket_->send({std::make_shared<const std::string>(std::move(frame))}, descriptor);
}

// ---- From a peer

void FrontPeer::receive(const Bytes& frame) {
  if (role_ == Role::replica) {
    bool is_shared = false;
    auto outcome = parse_outcome(frame, [&](uint64_t id) -> Bytes {
      is_shared = true;
      return memory_ == nullptr ? nullptr : memory_->outputs(id);
    });
    if (!outcome.ok()) return disconnect(outcome.error().message);
    if (outcome->has_value()) {
      uint64_t batch = (*outcome)->id;
      const Result<Tensors>& outputs = (*outcome)->outputs;
      if (memory_ != nullptr && !is_shared && outputs.ok())
        memory_->note_outputs(memory_bytes({&*outputs}));
      // A replica that was stopped may answer late.
      bool is_known = front_.finish(*this, batch, std::move((*outcome)->outputs),
                                    std::move((*outcome)->parameters));
      if (!is_known && !is_released_)
        disconnect(fmt::format("it answered batch {}, which it does not run", batch));
      return;
    }
  }
  front::ToFront message;
  if (!message.ParseFromArray(frame->data(), static_cast<int>(frame->size())))
    return disconnect("it sent bytes that are no message");
  receive_message(message);
}

void FrontPeer::receive_message(const front::ToFront& message) {
  if (role_ == Role::unknown && message.has_join()) return join(message.join());
  if (role_ == Role::unknown && message.has_control() && !access_.remote) {
    role_ = Role::engine;
    name_ = "an engine";
    return front_.add_engine();
  }
  if (role_ == Role::replica && message.has_join()) {
    auto request = join_request(message.join());
    if (!request.ok()) return disconnect(request.error().message);
    return front_.renew(*this, std::move(*request));
  }
  if (memory_ != nullptr && message.has_memory_mapped() &&
      memory_->set_mapped(message.memory_mapped().id()))
    return;
  if (memory_ != nullptr && message.has_memory_released())
    return release_inputs(message.memory_released());
  if (role_ == Role::replica && message.has_leave()) {
    int64_t grace_ms = std::clamp<int64_t>(message.leave().grace_ms(), 0, kGraceMax);
    return front_.leave(*this, std::chrono::milliseconds(grace_ms), message.leave().is_replaced());
  }
  if (role_ == Role::engine && message.has_gate()) return open_gate(message.gate());
  if (role_ == Role::engine && message.has_traffic()) return set_traffic(message.traffic());
  if (role_ == Role::engine && message.has_forget()) return forget(message.forget());
  if (role_ == Role::engine && message.has_status()) {
    if (socket_->unsent_bytes() > kAnswerBytesMax) return disconnect("it reads no answers");
    front_.complete_step(message.status().warm_up(), message.status().requests());
    front::FromFront answer;
    *answer.mutable_status() = status_of(front_);
    return send(answer);
  }
  disconnect("it sent a message that is not its turn");
}

/// The worker is the one that has proven its secret, whatever the replica says.
Result<Front::JoinRequest> FrontPeer::join_request(const front::Join& join) const {
  auto request = join_request_of(join);
  if (!request.ok() || !access_.remote) return request;
  request->replica.worker = access_.remote->worker;
  if (request->replica.server == 0) return request;
  request->replica.connect = [connect = access_.remote->connect, port = request->replica.server](
                                 HttpProxy::Connected done) { connect(port, std::move(done)); };
  request->replica.server_socket = 0;  // it is one of the other machine
  return request;
}

void FrontPeer::open_gate(const front::Gate& gate) {
  if (!access_.open_gate) return disconnect("it asked for a listener, and there is none");
  if (Status opened = access_.open_gate(gate); !opened.ok())
    log_("replicas on other machines cannot join: " + opened.error().message);
}

void FrontPeer::join(const front::Join& join) {
  name_ = fmt::format("replica `{}` (process {})", cut_text(to_line(join.replica()), kShownMax),
                      join.pid());
  auto request = join_request(join);
  role_ = Role::replica;
  if (join.shares_memory() && !access_.remote) share_memory();
  Status joined = request.ok() ? front_.join(*this, std::move(*request)) : Status(request.error());
  if (joined.ok()) return;
  role_ = Role::unknown;
  // At the end of the front the replica gets no answer, as if it had come later.
  if (joined.error().kind == ErrorKind::interrupted) return disconnect("");
  front::FromFront answer;
  answer.mutable_rejected()->set_message(joined.error().message);
  send(answer);
  disconnect("it was rejected: " + joined.error().message);
}

void FrontPeer::release_inputs(const front::MemoryReleased& released) {
  for (uint64_t id : released.ids())
    if (!memory_->release_inputs(id))
      return disconnect(fmt::format("it released memory {}, which it does not have", id));
}

void FrontPeer::joined(const std::string& url) {
  front::FromFront answer;
  answer.mutable_admitted()->set_url(url);
  answer.mutable_admitted()->set_pid(::getpid());
  send(answer);
}

void FrontPeer::forget(const front::Forget& ended) {
  if (ended.drain_ms() > 0)
    front_.drain(ended.version(), std::chrono::milliseconds(std::min(ended.drain_ms(), kGraceMax)));
  front_.forget(ended.version());
}

void FrontPeer::set_traffic(const front::Traffic& traffic) {
  if (traffic.weights_size() > kWeightsMax) return disconnect("it sent too many weights");
  TrafficWeights weights;
  for (const front::Weight& weight : traffic.weights())
    weights[weight.version()] = weight.percent();
  Status set = front_.set_traffic(std::move(weights), traffic.measured());
  front::FromFront answer;
  answer.mutable_traffic_set()->set_error(set.ok() ? "" : set.error().message);
  send(answer);
}

}  // namespace flow
