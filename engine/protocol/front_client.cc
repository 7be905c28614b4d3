#include "engine/protocol/front_client.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/base/unix_socket.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace {

/// Transfers all bytes. Returns "" or what went wrong. `transfer` does not wait.
template <typename Byte, typename Transfer>
std::string transfer_all(int socket, short event, Byte* bytes, size_t size, Deadline until,
                         const Transfer& transfer) {
  while (size > 0) {
    if (!wait_ready(socket, event, until))
      return fmt::format("it does not answer within {} s", kFrontAnswerMs / 1000);
    ssize_t count = transfer(bytes, size);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return "it closed the connection";
    bytes += count;
    size -= static_cast<size_t>(count);
  }
  return "";
}

std::string send_all(int socket, const std::string& bytes, Deadline until) {
  return transfer_all(socket, POLLOUT, bytes.data(), bytes.size(), until,
                      [&](const char* from, size_t size) {
                        return ::send(socket, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
                      });
}

std::string receive_all(int socket, char* to, size_t size, Deadline until) {
  return transfer_all(socket, POLLIN, to, size, until, [&](char* at, size_t left) {
    return ::recv(socket, at, left, MSG_DONTWAIT);
  });
}

Deadline answer_deadline() {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(kFrontAnswerMs);
}

}  // namespace

Result<FrontClient> FrontClient::connect(const std::string& folder) {
  auto socket = connect_unix(folder + "/front.sock");
  FLOW_TRY(socket);
  FrontClient client(*socket, folder);
  if (peer_of(*socket) == 0) return client.no_answer("it belongs to another user");
  front::ToFront hello;
  hello.mutable_control();
  FLOW_TRY(client.send(hello, answer_deadline()));
  return client;
}

Error FrontClient::no_answer(const std::string& why) const {
  return environment_error(fmt::format("the front at `{}/front.sock`: {}", folder_, why));
}

Status FrontClient::send(const front::ToFront& message, Deadline until) {
  std::string frame;
  append_frame(frame, message);
  std::string problem = send_all(socket_->number, frame, until);
  if (!problem.empty()) return no_answer(problem);
  return {};
}

Result<front::FromFront> FrontClient::ask(const front::ToFront& request) {
  Deadline until = answer_deadline();
  FLOW_TRY(send(request, until));
  uint32_t size = 0;
  std::string problem =
      receive_all(socket_->number, reinterpret_cast<char*>(&size), sizeof size, until);
  if (!problem.empty()) return no_answer(problem);
  if (size > kFrameMax) return no_answer("it sent a frame that is too long");
  std::string answer(size, '\0');
  problem = receive_all(socket_->number, answer.data(), size, until);
  if (!problem.empty()) return no_answer(problem);
  front::FromFront message;
  if (!message.ParseFromString(answer)) return no_answer("it sent what is no message");
  return message;
}

Result<front::Status> FrontClient::status(const front::StatusRequest& request) {
  front::ToFront message;
  *message.mutable_status() = request;
  auto answer = ask(message);
  FLOW_TRY(answer);
  if (!answer->has_status()) return no_answer("it sent another message than its status");
  return std::move(*answer->mutable_status());
}

Status FrontClient::set_traffic(const front::Traffic& traffic) {
  front::ToFront request;
  *request.mutable_traffic() = traffic;
  auto answer = ask(request);
  FLOW_TRY(answer);
  if (!answer->has_traffic_set()) return no_answer("it sent another message than asked for");
  if (!answer->traffic_set().error().empty()) return no_answer(answer->traffic_set().error());
  return {};
}

Status FrontClient::open_gate(const front::Gate& gate) {
  front::ToFront message;
  *message.mutable_gate() = gate;
  constexpr std::chrono::milliseconds kSend{100};
  return send(message, std::chrono::steady_clock::now() + kSend);
}

Status FrontClient::forget(const std::string& version, int64_t drain_ms) {
  front::ToFront request;
  request.mutable_forget()->set_version(version);
  request.mutable_forget()->set_drain_ms(drain_ms);
  return send(request, answer_deadline());
}

Result<front::Status> front_status(const std::string& folder, const front::StatusRequest& request) {
  auto client = FrontClient::connect(folder);
  FLOW_TRY(client);
  return client->status(request);
}

}  // namespace flow
