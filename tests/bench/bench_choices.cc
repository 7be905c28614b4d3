// Our implementations compared with libraries that offer the same: the figures of docs/decisions.
// Usage: bench_choices [cbor|json|memtable|log|handshake|shell|crypto …]   (all)
#include <fcntl.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <rocksdb/env.h>
#include <rocksdb/slice_transform.h>
#include <sodium.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "engine/cluster/session/session.hpp"
#include "engine/crypto/hmac.hpp"
#include "engine/store/hashed_memtable.hpp"
#include "engine/store/log_files.hpp"
#include "flow/value.hpp"
#include "lua/graph/shell_template.hpp"
#include "tests/bench/bench.hpp"

namespace flow::bench {
namespace {

using Json = nlohmann::json;
using Works = std::vector<std::function<void()>>;

constexpr int kRounds = 9;

/// Microseconds per call: the best of each, in turns, because other work on the machine varies.
/// Each round calls a work `times` times.
std::vector<double> best_us(const Works& works, int times) {
  std::vector<double> best(works.size(), 1e12);
  for (int round = 0; round < kRounds; round++) {
    for (size_t i = 0; i < works.size(); i++) {
      double began = seconds();
      for (int call = 0; call < times; call++) works[i]();
      best[i] = std::min(best[i], (seconds() - began) / times * 1e6);
    }
  }
  return best;
}

constexpr int kRecords = 100;

/// A table as a task returns it: records of a name, integers, numbers and a flag.
Value records() {
  std::vector<Value> list;
  for (int64_t i = 0; i < kRecords; i++) {
    list.push_back(Value::map({{Value("name"), Value(fmt::format("sample-{:04}", i))},
                               {Value("count"), Value(i * 7919)},
                               {Value("loss"), Value(1.0 / static_cast<double>(i + 3))},
                               {Value("rate"), Value(0.5)},
                               {Value("done"), Value(i % 2 == 0)}}));
  }
  return Value::list(std::move(list));
}

void cbor() {
  Value value = records();
  Json json = Json::parse(to_json(value));
  std::string bytes = encode_value(value);
  std::vector<uint8_t> other = Json::to_cbor(json);
  auto best = best_us({[&] { (void)encode_value(value); }, [&] { (void)Json::to_cbor(json); },
                       [&] { FLOW_CHECK(decode_value(bytes).ok()); },
                       [&] { FLOW_CHECK(!Json::from_cbor(other).empty()); }},
                      200);
  figure("cbor_encode_us", best[0], "nlohmann_us", best[1]);
  figure("cbor_decode_us", best[2], "nlohmann_us", best[3]);
  figure("cbor_bytes", static_cast<double>(bytes.size()), "nlohmann_bytes",
         static_cast<double>(other.size()));
}

void json() {
  Value value = records();
  std::string text = to_json(value);
  Json json = Json::parse(text);
  auto best = best_us(
      {[&] { (void)to_json(value); }, [&] { (void)json.dump(); },
       [&] { FLOW_CHECK(from_json(text).ok()); }, [&] { FLOW_CHECK(!Json::parse(text).empty()); }},
      200);
  figure("json_write_us", best[0], "nlohmann_us", best[1]);
  figure("json_read_us", best[2], "nlohmann_us", best[3]);
}

std::unique_ptr<rocksdb::DB> open_database(const std::string& dir, rocksdb::Options options) {
  options.create_if_missing = true;
  rocksdb::DB* database = nullptr;
  auto status = rocksdb::DB::Open(options, dir, &database);
  FLOW_CHECK(status.ok());
  return std::unique_ptr<rocksdb::DB>(database);
}

// Rows with digests as keys, like the families `cache` and `blobs`: written, looked up and flushed.
void memtable() {
  constexpr int kRows = 100'000;
  constexpr size_t kHashedBytes = 8, kBuckets = 1 << 16;
  std::vector<std::string> keys;
  for (int i = 0; i < kRows; i++) keys.emplace_back(sha256(std::to_string(i)).view());
  std::string row(100, 'r');
  std::vector<double> put(2, 1e12), get(2, 1e12), flush(2, 1e12);
  for (int round = 0; round < 3; round++) {
    for (size_t kind = 0; kind < 2; kind++) {
      Folder folder;
      rocksdb::Options options;
      options.write_buffer_size = 256 << 20;
      options.allow_concurrent_memtable_write = false;
      if (kind == 0) {
        options.prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(kHashedBytes));
        options.memtable_factory = hashed_memtable(kBuckets);
      }
      auto database = open_database(folder / "db", options);
      rocksdb::WriteOptions write;
      write.disableWAL = true;
      double began = seconds();
      for (const std::string& key : keys) FLOW_CHECK(database->Put(write, key, row).ok());
      put[kind] = std::min(put[kind], (seconds() - began) / kRows * 1e6);
      began = seconds();
      std::string found;
      for (int i = 0; i < kRows; i++) {
        const std::string& key = keys[static_cast<size_t>(i) * 7919 % keys.size()];
        FLOW_CHECK(database->Get({}, key, &found).ok());
      }
      get[kind] = std::min(get[kind], (seconds() - began) / kRows * 1e6);
      began = seconds();
      FLOW_CHECK(database->Flush({}).ok());
      flush[kind] = std::min(flush[kind], (seconds() - began) * 1e3);
    }
  }
  figure("memtable_put_us", put[0], "skip_list_us", put[1]);
  figure("memtable_get_us", get[0], "skip_list_us", get[1]);
  figure("memtable_flush_ms", flush[0], "skip_list_ms", flush[1]);
}

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// Synced writes in turns, each to its own database, because the disk's speed varies.
void log() {
  constexpr int kSyncs = 1'000;
  Folder folder;
  std::unique_ptr<rocksdb::Env> files =
      rocksdb::NewCompositeEnv(make_log_files(std::make_shared<SyncProgress>()));
  rocksdb::Options options;
  auto plain = open_database(folder / "plain", options);
  options.env = files.get();
  auto filled = open_database(folder / "filled", options);
  rocksdb::WriteOptions write;
  write.sync = true;
  std::string row(300, 'r');
  std::vector<double> times[2];
  for (int i = 0; i < kSyncs; i++) {
    for (int kind = 0; kind < 2; kind++) {
      double began = seconds();
      rocksdb::DB& database = kind == 0 ? *filled : *plain;
      FLOW_CHECK(database.Put(write, fmt::format("{:08}", i), row).ok());
      times[kind].push_back((seconds() - began) * 1e6);
    }
  }
  figure("log_synced_write_us", median(times[0]), "default_files_us", median(times[1]));
  filled.reset();
}

using namespace cluster;

size_t session_handshake() {
  SessionOptions options;
  options.name = "h1";
  options.role = Role::head;
  static const auto secret = std::make_shared<const Secret>(random_key());
  options.secret = secret;
  SessionOutput head_out, worker_out;
  Session head(options, "head", 0, head_out);
  options.role = Role::worker;
  Session worker(options, "worker", 0, worker_out);
  size_t bytes = 0;
  for (size_t i = 0; i < 2; i++) {
    if (i < worker_out.frames.size()) head.on_frame(worker_out.frames[i], 0, head_out);
    if (i < head_out.frames.size()) worker.on_frame(head_out.frames[i], 0, worker_out);
  }
  FLOW_CHECK(head.is_open() && worker.is_open());
  for (const auto* out : {&head_out, &worker_out})
    for (const std::string& frame : out->frames) bytes += frame.size();
  return bytes;
}

constexpr unsigned char kSharedKey[32] = {1, 2, 3};

unsigned int server_key(SSL*, const char*, unsigned char* key, unsigned int size) {
  FLOW_CHECK(size >= sizeof kSharedKey);
  std::memcpy(key, kSharedKey, sizeof kSharedKey);
  return sizeof kSharedKey;
}

unsigned int client_key(SSL* ssl, const char*, char* identity, unsigned int identity_size,
                        unsigned char* key, unsigned int size) {
  std::snprintf(identity, identity_size, "worker");
  return server_key(ssl, nullptr, key, size);
}

/// TLS 1.3 with a shared secret and X25519, by OpenSSL, both sides in memory.
class TlsPair {
 public:
  TlsPair() : server_(SSL_CTX_new(TLS_server_method())), client_(SSL_CTX_new(TLS_client_method())) {
    for (SSL_CTX* context : {server_, client_}) {
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
      SSL_CTX_set1_groups_list(context, "X25519");
      SSL_CTX_set_ciphersuites(context, "TLS_CHACHA20_POLY1305_SHA256");
      SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
      SSL_CTX_set_num_tickets(context, 0);
    }
    SSL_CTX_set_psk_server_callback(server_, server_key);
    SSL_CTX_set_psk_client_callback(client_, client_key);
  }
  ~TlsPair() {
    SSL_CTX_free(server_);
    SSL_CTX_free(client_);
  }
  TlsPair(const TlsPair&) = delete;
  TlsPair& operator=(const TlsPair&) = delete;

  size_t handshake() {
    SSL* server = SSL_new(server_);
    SSL* client = SSL_new(client_);
    BIO *server_end = nullptr, *client_end = nullptr;
    FLOW_CHECK(BIO_new_bio_pair(&server_end, 0, &client_end, 0) == 1);
    SSL_set_bio(server, server_end, server_end);
    SSL_set_bio(client, client_end, client_end);
    SSL_set_accept_state(server);
    SSL_set_connect_state(client);
    for (int i = 0; i < 10 && !(SSL_is_init_finished(server) && SSL_is_init_finished(client));
         i++) {
      (void)SSL_do_handshake(client);
      (void)SSL_do_handshake(server);
    }
    FLOW_CHECK(SSL_is_init_finished(server) && SSL_is_init_finished(client));
    size_t bytes = BIO_number_written(server_end) + BIO_number_written(client_end);
    SSL_free(server);
    SSL_free(client);
    return bytes;
  }

 private:
  SSL_CTX* server_;
  SSL_CTX* client_;
};

void handshake() {
  TlsPair tls;
  auto best = best_us({[&] { session_handshake(); }, [&] { tls.handshake(); }}, 200);
  figure("handshake_us", best[0], "tls_psk_us", best[1]);
  figure("handshake_bytes", static_cast<double>(session_handshake()), "tls_psk_bytes",
         static_cast<double>(tls.handshake()));
}

void crypto() {
  std::string key(32, 'k'), message(100, 'm'), content(1 << 20, 'c');
  auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  unsigned char out[32];
  auto best = best_us({[&] { (void)hmac_sha256(key, message); },
                       [&] {
                         unsigned int size = sizeof out;
                         HMAC(EVP_sha256(), key.data(), 32, bytes, message.size(), out, &size);
                       }},
                      20'000);
  figure("hmac_us", best[0], "openssl_us", best[1]);
  bytes = reinterpret_cast<const unsigned char*>(content.data());
  best = best_us(
      {[&] { (void)sha256(content); }, [&] { crypto_hash_sha256(out, bytes, content.size()); }}, 4);
  figure("sha256_1mib_us", best[0], "sodium_us", best[1]);
}

extern "C" char** environ;

void run_bash(const std::string& command) {
  std::string text = command;
  char program[] = "/bin/bash", check[] = "-n", given[] = "-c";
  char* argv[] = {program, check, given, text.data(), nullptr};
  pid_t pid = 0;
  FLOW_CHECK(posix_spawn(&pid, program, nullptr, nullptr, argv, environ) == 0);
  int status = 0;
  FLOW_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

void shell() {
  ShellSpec spec;
  spec.command =
      "set -e\nfor f in \"$dir\"/*.gz; do\n  zcat \"$f\" | awk '{ print $1 }' >> {out}.txt\ndone\n"
      "sort -u {out}.txt | head -n {count} > \"$(basename {out}).top\"\n"
      "cat <<END\n$HOME and $(date)\nEND\n";
  std::vector<std::string> names = {"out", "count"};
  auto best = best_us(
      {[&] { FLOW_CHECK(lua::parse_command(spec, names).ok()); }, [&] { run_bash(spec.command); }},
      50);
  figure("shell_parse_us", best[0], "bash_n_us", best[1]);
}

}  // namespace
}  // namespace flow::bench

int main(int argc, char** argv) {
  using namespace flow::bench;
  const std::pair<const char*, void (*)()> parts[] = {
      {"cbor", cbor},           {"json", json},   {"memtable", memtable}, {"log", log},
      {"handshake", handshake}, {"shell", shell}, {"crypto", crypto}};
  std::set<std::string> wanted(argv + 1, argv + argc);
  for (const auto& [name, run] : parts)
    if (wanted.empty() || wanted.count(name) > 0) run();
}
