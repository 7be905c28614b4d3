#include "engine/front/worker_gate.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr auto kAcceptRetry = std::chrono::milliseconds(100);
constexpr auto kServerTime = std::chrono::seconds(10);  // for a worker to connect to a server
constexpr size_t kPortFileMax = 64;                     // bytes

/// 0 if there is none.
uint16_t port_in(const std::string& file) {
  auto text = file.empty() ? Result<std::string>("") : read_file(file, kPortFileMax);
  uint16_t port = 0;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), port);
  return port;
}

bool is_sound(const front::Gate& gate) {
  return gate.secret().size() == kKeyBytes && cluster::is_process_name(gate.name()) &&
         gate.version().size() <= cluster::kVersionBytesMax;
}

std::string text_of(const tcp::endpoint& end) {
  return address_text({end.address().to_string(), end.port()});
}

}  // namespace

WorkerGate::WorkerGate(EventLoop& loop, std::string port_file, Adopt adopt,
                       std::function<void(const std::string&)> log)
    : loop_(loop),
      port_file_(std::move(port_file)),
      adopt_(std::move(adopt)),
      log_(std::move(log)),
      acceptor_(loop.context()),
      retry_(loop.context()) {}

WorkerGate::~WorkerGate() = default;

// ---- Listening

Status WorkerGate::open(const front::Gate& gate) {
  if (!is_sound(gate)) return user_error("it has no secret or no name");
  cluster::Secret secret;
  std::memcpy(secret.bytes.data(), gate.secret().data(), kKeyBytes);
  cluster::SessionOptions options;
  options.role = cluster::Role::head;
  options.name = gate.name();
  options.version = gate.version();
  options.schema = gate.schema();
  options.secret = std::make_shared<const cluster::Secret>(secret);
  cluster::set_lost_after(options, gate.lost_after_ms());
  FLOW_TRY(cluster::check(options));
  options_ = std::move(options);
  if (!acceptor_.is_open() || host_ != gate.host()) FLOW_TRY(listen(gate.host()));
  if (port_file_.empty()) return {};
  return write_file_atomic(port_file_, fmt::format("{} {}\n", port_, ::getpid()));
}

Status WorkerGate::listen(const std::string& host) {
  boost::system::error_code error;
  if (acceptor_.is_open()) acceptor_.close(error);
  auto address = asio::ip::make_address(host, error);
  if (error) return user_error(fmt::format("`{}` is no address", to_line(host)));
  for (uint16_t port : {port_in(port_file_), uint16_t{0}}) {
    tcp::acceptor acceptor(loop_.context());
    tcp::endpoint end(address, port);
    acceptor.open(end.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(end, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) continue;
    acceptor_ = std::move(acceptor);
    host_ = host;
    port_ = acceptor_.local_endpoint().port();
    log_(fmt::format("replicas of other workers reach the front at {}",
                     text_of(acceptor_.local_endpoint())));
    wait();
    return {};
  }
  return environment_error(fmt::format("cannot listen at {} for the workers of other machines: {}",
                                       host, error.message()));
}

void WorkerGate::wait() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) accept(std::move(socket));
    if (!error || error == asio::error::connection_aborted) return wait();
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](const boost::system::error_code& failed) {
      if (!failed) wait();
    });
  });
}

size_t WorkerGate::handshakes() const {
  return static_cast<size_t>(
      std::ranges::count_if(entries_, [](const Entry& each) { return !each.is_open; }));
}

void WorkerGate::accept(tcp::socket socket) {
  boost::system::error_code error;
  tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;
  if (entries_.size() >= kPipesMax)
    return reject(text_of(peer), fmt::format("{} connections are there", entries_.size()));
  // The oldest handshake gives way. A worker proves itself at once, so it always gets a place.
  if (handshakes() >= kHandshakesMax) {
    auto oldest = std::ranges::find_if(entries_, [](const Entry& each) { return !each.is_open; });
    reject(text_of(peer), fmt::format("{} connections have not proven yet that they hold the "
                                      "secret: the oldest one is closed",
                                      kHandshakesMax));
    end(oldest, "others wait for its place");
  }
  auto entry = entries_.emplace(entries_.end());
  entry->pipe = std::make_shared<SealedPipe>(loop_, std::move(socket), options_);
  std::string address = text_of(peer);
  entry->pipe->start({.opened =
                          [this, entry, address] {
                            entry->is_open = true;
                            if (entry->pipe->peer().role == cluster::Role::worker) return;
                            reject(address, "it is no worker");
                            end(entry, "only workers may connect here");
                          },
                      .noted = [this, entry](const std::string& text) { note(entry, text); },
                      .ended =
                          [this, entry, address](cluster::EndKind kind, const std::string& why) {
                            bool is_fault = !entry->is_open || kind == cluster::EndKind::lost ||
                                            kind == cluster::EndKind::damaged;
                            if (is_fault) reject(address, why);
                            end(entry, why);
                          }});
}

void WorkerGate::reject(const std::string& address, const std::string& why) {
  if (auto line = rejections_.add(address, why, monotonic_us())) log_(*line);
}

/// The caller may be the pipe.
void WorkerGate::end(Entries::iterator entry, const std::string& why) {
  std::shared_ptr<SealedPipe> pipe = entry->pipe;
  pipe->close(why);
  entries_.erase(entry);
  std::vector<uint64_t> asked;
  for (const auto& [number, wanted] : wanted_)
    if (wanted.asked.lock() == pipe) asked.push_back(number);
  for (uint64_t number : asked) refuse_server(number, "the connection to its worker has ended");
}

// ---- Pipes

void WorkerGate::note(Entries::iterator entry, const std::string& text) {
  auto note = RelayNote::parse(text);
  if (note && note->kind == RelayNote::Kind::replica) return add_replica(entry);
  if (note && note->kind == RelayNote::Kind::server) return add_server(entry, note->number);
  if (note && note->kind == RelayNote::Kind::refused)
    return refuse_server(note->number, "it does not accept connections");
  end(entry, "it sent a note that is not its turn");
}

void WorkerGate::add_replica(Entries::iterator entry) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return end(entry, std::strerror(errno));
  std::shared_ptr<SealedPipe> pipe = entry->pipe;
  RemotePeer peer{pipe->peer().name,
                  [this, weak = std::weak_ptr(pipe)](uint16_t port, HttpProxy::Connected done) {
                    connect(weak.lock(), port, std::move(done));
                  }};
  adopt_(ends[1], std::move(peer));
  pipe->attach(ends[0]);
}

// ---- Servers of replicas

/// The worker opens a pipe for it. A request that cannot be sent is sent to another server, or
/// waits: that its server cannot be reached does not mean that it has died.
void WorkerGate::connect(const std::shared_ptr<SealedPipe>& pipe, uint16_t port,
                         HttpProxy::Connected done) {
  if (pipe == nullptr || !pipe->is_open())
    return done(environment_error("the connection to its worker has ended"));
  if (wanted_.size() >= kPipesMax)
    return done(environment_error(fmt::format("{} connections to servers are awaited", kPipesMax)));
  uint64_t number = ++last_number_;
  wanted_[number] = {std::move(done), pipe};
  pipe->tell(RelayNote{RelayNote::Kind::wanted, number, port}.encode());
  auto timer = std::make_shared<asio::steady_timer>(loop_.context(), kServerTime);
  timer->async_wait([this, timer, number](const boost::system::error_code&) {
    refuse_server(number, "its worker does not answer");
  });
}

void WorkerGate::refuse_server(uint64_t number, const std::string& why) {
  auto found = wanted_.find(number);
  if (found == wanted_.end()) return;
  auto done = std::move(found->second.done);
  wanted_.erase(found);
  done(environment_error(why));
}

void WorkerGate::add_server(Entries::iterator entry, uint64_t number) {
  auto found = wanted_.find(number);
  auto asked = found == wanted_.end() ? nullptr : found->second.asked.lock();
  bool is_its_worker = asked && asked->peer().name == entry->pipe->peer().name;
  if (!is_its_worker) return end(entry, "nothing waits for this connection");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return end(entry, std::strerror(errno));
  auto done = std::move(found->second.done);
  wanted_.erase(found);
  entry->pipe->attach(ends[0]);
  done(ends[1]);
}

}  // namespace flow
