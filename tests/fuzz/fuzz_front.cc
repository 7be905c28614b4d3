// Peers of a front: any bytes are a message, or end their connection alone. Frames with tensors are
// read again as they were written.
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <list>
#include <thread>

#include "engine/front/front_peer.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/serve/tensor_frames.hpp"
#include "input.hpp"

namespace {

using namespace flow;

const auto kQuietProtobuf = google::protobuf::SetLogHandler(nullptr);

bool equal_tensors(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && element_type(x.second) == element_type(y.second) &&
                  x.second.shape == y.second.shape && *x.second.data == *y.second.data;
         });
}

Bytes message_of(const FramePieces& pieces) {
  std::string all;
  for (const Bytes& piece : pieces) all += *piece;
  uint32_t size = 0;
  std::memcpy(&size, all.data(), sizeof size);
  FLOW_CHECK(all.size() == sizeof size + size);
  return std::make_shared<const std::string>(all.substr(sizeof size));
}

/// Shared memory 1: what is within it is readable, and no other byte is.
Bytes shared_bytes(uint64_t id) {
  static const auto shared = std::make_shared<const std::string>(4096, 's');
  return id == 1 ? Bytes(shared) : Bytes();
}

void check_batch(const BatchMessage& batch) {
  auto again = parse_batch(message_of(batch_frame(batch.id, {&batch.inputs}, batch.requests)));
  FLOW_CHECK(again.ok() && again->has_value() && (*again)->id == batch.id);
  FLOW_CHECK(equal_tensors((*again)->inputs, batch.inputs));
  std::string memory(memory_bytes({&batch.inputs}), '\0');
  auto placed = parse_batch(
      message_of(batch_frame(batch.id, {&batch.inputs}, batch.requests,
                             TensorMemory{2, memory.data(), memory.size()})),
      [&](uint64_t id) { return id == 2 ? Bytes(memory, std::make_shared<int>()) : Bytes(); });
  FLOW_CHECK(placed.ok() && placed->has_value());
  FLOW_CHECK(equal_tensors((*placed)->inputs, batch.inputs));
}

void check_frames(const std::string& bytes) {
  Bytes frame = std::make_shared<const std::string>(bytes);
  if (auto batch = parse_batch(frame, shared_bytes); batch.ok() && batch->has_value())
    check_batch(**batch);
  if (auto outcome = parse_outcome(frame, shared_bytes); outcome.ok() && outcome->has_value()) {
    const Result<Tensors>& outputs = (*outcome)->outputs;
    const ResponseParameters& parameters = (*outcome)->parameters;
    auto again = parse_outcome(message_of(outcome_frame((*outcome)->id, outputs, {}, parameters)));
    FLOW_CHECK(again.ok() && again->has_value() && (*again)->id == (*outcome)->id);
    FLOW_CHECK((*again)->outputs.ok() == outputs.ok());
    FLOW_CHECK(outputs.ok() ? equal_tensors(*(*again)->outputs, *outputs)
                            : (*again)->outputs.error().message == outputs.error().message);
    FLOW_CHECK((*again)->parameters.size() == parameters.size());
    for (size_t i = 0; i < parameters.size(); i++)
      FLOW_CHECK((*again)->parameters[i].size() == parameters[i].size());
  }
}

/// One end of a connection whose other end is a peer.
class FuzzedPeer {
 public:
  FuzzedPeer(Front& front, EventLoop& loop) {
    int ends[2];
    FLOW_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    socket_ = ends[0];
    loop.run([&] {
      peer_ = std::make_unique<FrontPeer>(
          front, loop, ends[1], [](const std::string&) {}, [this] { has_ended_ = true; });
    });
  }
  ~FuzzedPeer() { ::close(socket_); }
  // What does not fit in the socket is lost: then the stream ends earlier.
  void send(const std::string& bytes) {
    (void)!::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void end() {
    ::shutdown(socket_, SHUT_WR);
    while (!has_ended_) std::this_thread::yield();
  }

 private:
  std::unique_ptr<FrontPeer> peer_;
  int socket_;
  std::atomic<bool> has_ended_{false};
};

}  // namespace

// The input consists of pieces: a byte with the peer, 0 to 2, and whether the piece is a frame; two
// bytes with its length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  EventLoop loop("flow-http", {});
  auto front = Front::start(loop, {});
  FLOW_CHECK(front.ok());
  std::list<FuzzedPeer> peers;
  for (int i = 0; i < 3; i++) peers.emplace_back(**front, loop);
  fuzz::Input input(data, size);
  while (!input.is_empty()) {
    uint8_t kind = input.byte();
    std::string bytes = input.bytes(input.number(2));
    check_frames(bytes);
    uint32_t length = static_cast<uint32_t>(bytes.size());
    if (kind < 0x80) bytes.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
    std::next(peers.begin(), kind % 3)->send(bytes);
  }
  for (FuzzedPeer& peer : peers) peer.end();
  loop.run([&] { FLOW_CHECK(!(*front)->versions().has_replicas()); });
  loop.stop();
  return 0;
}
