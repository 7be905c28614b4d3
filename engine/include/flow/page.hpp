// The web page of a state: its runs, their tasks, logs and metrics, live in a browser. `flow ui`
// uses it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

struct PageOptions {
  /// "HOST:PORT" of a loopback address; port 0: any free port. "": a free port of a random address
  /// in 127.0.0.0/8, so that the page shares its cookie with no other server.
  std::string listen{};
  /// The user of the runs that the page starts, such as "deploy" (TaskInfo::user). "": the name of
  /// the user that this process runs as.
  std::string token_name{};
  /// PEM files: the certificate with its chain, and its key, which may be the same file. With them
  /// the page has TLS.
  std::string tls_certificate{}, tls_key{};
  /// A file with one key per line. A user with a key may sign in; a program may send it as
  /// `Authorization: Bearer KEY`. Beyond loopback the page needs TLS and keys.
  std::string keys_file{};
  /// Names by which browsers reach the page, besides addresses and names without a dot.
  std::vector<std::string> hosts{};
};

/// Serves the page until it is destroyed. It reads the state as a Reader does, also while another
/// process writes it, and never becomes the writer.
class Page {
 public:
  /// Uses only `state` and `working_directory` of `engine`. Throws Failed (user) if the address is
  /// beyond loopback and TLS or keys are missing, or if a file cannot be used, (environment) if it
  /// cannot listen there.
  explicit Page(const EngineOptions& engine, const PageOptions& options = {});
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  /// The page without its token: "http://127.0.0.1:41234/".
  const std::string& address() const;
  /// The link that opens the page. It is a password: every user with it can see the state, and
  /// cancel, stop, retry, signal and roll back its runs.
  const std::string& link() const;
  const std::string& state_dir() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow
