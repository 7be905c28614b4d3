// A TLS server's session. A client's bytes are delivered, changed, cut, repeated, lost or invented.
// The session delivers only what the client sent, in order and from the first; after a failure it
// is silent; without a valid client certificate it does not open where one is required.
#define OPENSSL_SUPPRESS_DEPRECATED  // of RAND_METHOD
#include <openssl/rand.h>

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/serve/http/tls.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/randomness.hpp"
#include "tests/serve/tls_client.hpp"

namespace {

using namespace flow;
using flow::fuzz::Input;

constexpr size_t kWireMax = 24 * 1024;  // that one call of receive() may append

int fill(unsigned char* data, int size) {
  fuzz::fill_random(data, static_cast<size_t>(size));
  return 1;
}
int is_ready() { return 1; }

/// An input does the same each time, also in the library.
bool use_fixed_bytes() {
  static const RAND_METHOD kFixed{nullptr, fill, nullptr, nullptr, fill, is_ready};
  return RAND_set_rand_method(&kFixed) == 1;
}

struct Server {
  Server() {
    FLOW_CHECK(use_fixed_bytes());
    authority = new_identity({.name = "authority", .is_authority = true});
    alice = new_identity({.name = "alice", .issuer = &authority});
    mallory = new_identity({.name = "mallory"});
    Identity identity = new_identity({.issuer = &authority});
    auto folder = make_temporary_folder();
    FLOW_CHECK(folder.ok());
    TlsFiles files{**folder + "/server.pem", **folder + "/server.pem"};
    FLOW_CHECK(
        write_file_atomic(files.certificate, certificate_pem(identity) + key_pem(identity)).ok());
    plain = *TlsContext::open(files);
    files.clients = **folder + "/clients.pem";
    FLOW_CHECK(write_file_atomic(files.clients, certificate_pem(authority)).ok());
    mutual = *TlsContext::open(files);
  }
  Identity authority, alice, mallory;
  std::shared_ptr<TlsContext> plain, mutual;
};

const Server& server() {
  static const Server made;
  return made;
}

TlsClientOptions options_of(uint8_t kind) {
  TlsClientOptions options;
  options.version_min = options.version_max = (kind & 1) != 0 ? TLS1_3_VERSION : TLS1_2_VERSION;
  if ((kind & 2) != 0) options.identity = (kind & 4) != 0 ? &server().alice : &server().mallory;
  options.alpn = "\x08http/1.1";
  return options;
}

std::shared_ptr<SSL_CTX> client_settings(uint8_t kind) {
  static std::array<std::shared_ptr<SSL_CTX>, 8> made;
  auto& settings = made[kind % made.size()];
  if (!settings) settings = TlsClient::settings_of(options_of(kind));
  return settings;
}

class Story {
 public:
  explicit Story(uint8_t kind)
      : is_mutual_((kind & 8) != 0),
        is_admitted_(!is_mutual_ || (kind & 6) == 6),
        session_(is_mutual_ ? *server().mutual : *server().plain),
        client_(options_of(kind), client_settings(kind)) {
    step_client();
    if ((kind & 16) == 0) return;
    for (int i = 0; i < 3; i++) {
      deliver(next());
      step_client();
    }
    FLOW_CHECK(session_.is_open() == is_admitted_);
  }

  void play(Input& in) {
    switch (in.byte() % 14) {
      case 0:
        return deliver(next());
      case 1:
        return step_client();
      case 2: {
        std::string bytes = next();
        size_t at = in.number(2);
        if (!bytes.empty()) bytes[at % bytes.size()] ^= static_cast<char>(in.byte());
        return to_server_.push_front(bytes);
      }
      case 3: {
        std::string bytes = next();
        size_t cut = std::min<size_t>(in.number(2), bytes.size());
        to_server_.push_front(bytes.substr(cut));
        return deliver(bytes.substr(0, cut));
      }
      case 4: {
        for (char byte : next()) deliver({&byte, 1});
        return;
      }
      case 5: {
        if (!past_.empty()) deliver(past_[in.byte() % past_.size()]);
        return;
      }
      case 6:
        return deliver(in.bytes(in.byte()));
      case 7: {
        next();  // lost
        return;
      }
      case 8: {
        std::string bytes = next();
        size_t at = std::min<size_t>(in.number(2), bytes.size());
        bytes.insert(at, in.bytes(in.byte()));
        return to_server_.push_front(bytes);
      }
      case 9:
        return client_sends(std::string(in.number(2), 'c'));
      case 10:
        return server_sends(std::string(in.number(2), 's'));
      case 11: {
        if (client_.is_open()) client_.close();
        return step_client();
      }
      case 12: {
        session_.close(wire_);
        FLOW_CHECK(!session_.is_open());
        return;
      }
      case 13: {
        if (client_.is_open() && SSL_version(client_.library()) == TLS1_3_VERSION)
          for (int i = in.byte() % 32; i >= 0; i--)
            if (SSL_key_update(client_.library(), SSL_KEY_UPDATE_REQUESTED) == 1)
              SSL_do_handshake(client_.library());
        ERR_clear_error();
        return step_client();
      }
    }
  }

 private:
  std::string next() {
    if (to_server_.empty()) return {};
    std::string bytes = std::move(to_server_.front());
    to_server_.pop_front();
    return bytes;
  }
  void deliver(std::string_view bytes) {
    size_t plain = plain_.size(), wire = wire_.size();
    bool works = session_.receive(bytes, plain_, wire_);
    FLOW_CHECK(works == session_.failure().empty());
    FLOW_CHECK(wire_.size() - wire <= kWireMax);
    if (has_failed_) FLOW_CHECK(!works && wire_.size() == wire && plain_.size() == plain);
    has_failed_ = !works;
    if (has_failed_) FLOW_CHECK(!session_.is_open());
    if (session_.is_open()) FLOW_CHECK(is_admitted_);
    FLOW_CHECK(sent_.compare(0, plain_.size(), plain_) == 0);
  }
  void step_client() {
    std::string received;
    client_.receive(std::exchange(wire_, {}), at_client_);
    std::string bytes = client_.take();
    if (bytes.empty()) return;
    past_.push_back(bytes);
    to_server_.push_back(std::move(bytes));
    FLOW_CHECK(at_client_.find_first_not_of('s') == std::string::npos);
    FLOW_CHECK(at_client_.size() <= server_sent_);
  }
  void client_sends(const std::string& text) {
    if (!client_.is_open() || text.empty() || SSL_get_shutdown(client_.library()) != 0) return;
    client_.send(text);
    sent_ += text;
    step_client();
  }
  void server_sends(const std::string& text) {
    if (!session_.is_open()) return;
    FLOW_CHECK(session_.send(text, wire_));
    server_sent_ += text.size();
  }

  const bool is_mutual_, is_admitted_;
  TlsSession session_;
  TlsClient client_;
  std::deque<std::string> to_server_;
  std::vector<std::string> past_;  // all that the client ever sent
  std::string sent_;               // its data
  std::string plain_, wire_, at_client_;
  size_t server_sent_ = 0;
  bool has_failed_ = false;
};

/// Bytes without a client behind them: no session opens.
void replay(std::string_view bytes, size_t part) {
  TlsSession session(*server().plain);
  std::string plain, wire;
  bool works = true;
  while (works && !bytes.empty()) {
    works = session.receive(bytes.substr(0, part), plain, wire);
    bytes.remove_prefix(std::min(part, bytes.size()));
    FLOW_CHECK(works == session.failure().empty());
    FLOW_CHECK(!session.is_open() && plain.empty() && wire.size() <= kWireMax);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  server();
  fuzz::random_state = 1;
  Input in(data, size);
  uint8_t kind = in.byte();
  if ((kind & 128) != 0) {
    size_t part = (kind & 127) == 0 ? SIZE_MAX : kind & 127;
    replay({reinterpret_cast<const char*>(data) + 1, size - 1}, part);
    return 0;
  }
  Story story(kind);
  while (!in.is_empty()) story.play(in);
  return 0;
}
