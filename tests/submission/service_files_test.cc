// Before a run a service's files and keys are looked for.
#include <stdlib.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "engine/submission/service_files.hpp"
#include "tests/serve/certificates.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/flow-service-XXXXXX";
    path = ::mkdtemp(pattern);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
  std::string path;
};

/// The errors and the warnings of a check, one on each line.
std::string findings(const ServiceSpec& service, const EnvironmentVariables& environment = {}) {
  std::vector<Error> errors;
  std::vector<std::string> warnings;
  check_service_files(service, "p.lua:3: the task `web`", environment, errors, warnings);
  std::string text;
  for (const Error& error : errors) text += error.message + "\n";
  for (const std::string& warning : warnings) text += "warning: " + warning + "\n";
  return text;
}

/// The key is one that only its owner can read.
TlsPaths tls_files(const Folder& folder, const Identity& identity) {
  TlsPaths tls;
  tls.certificate = folder.write("server.pem", certificate_pem(identity));
  tls.key = folder.write("server.key", key_pem(identity));
  std::filesystem::permissions(
      tls.key, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return tls;
}

}  // namespace

TEST_CASE("a service without files and keys needs nothing") { CHECK(findings({}) == ""); }

TEST_CASE("each missing file of a service is an error") {
  Folder folder;
  ServiceSpec service;
  service.tls = {folder.write("server.pem", "c"), folder.path + "/server.key",
                 folder.path + "/ca.pem"};
  service.keys.file = folder.path;
  CHECK(findings(service) ==
        "p.lua:3: the task `web` needs the file `" + folder.path +
            "/server.key` (`tls.key`) on the machine of the engine, and it cannot be read: No such "
            "file or directory\n"
            "p.lua:3: the task `web` needs the file `" +
            folder.path +
            "/ca.pem` (`tls.clients`) on the machine of the engine, and it cannot be read: No such "
            "file or directory\n"
            "p.lua:3: the task `web` needs the file `" +
            folder.path +
            "` (`keys`) on the machine of the engine, and it cannot be read: it is not a file\n");
  service.tls = tls_files(folder, new_identity());
  service.tls.clients = service.tls.certificate;
  service.keys.file = folder.write("keys.txt", "a-long-key\n");
  CHECK(findings(service) == "");
}

TEST_CASE("files of TLS that a front could not use are errors before the run") {
  Folder folder;
  ServiceSpec service;
  const Identity identity = new_identity();
  service.tls = tls_files(folder, identity);
  CHECK(findings(service) == "");
  const std::string begin = "p.lua:3: the task `web` has `tls`: ";
  folder.write("server.key", key_pem(new_identity()));
  CHECK_THAT(findings(service), StartsWith(begin) && Contains(service.tls.key));
  folder.write("server.key", key_pem(identity));
  folder.write("server.pem", "not a certificate");
  CHECK_THAT(findings(service), StartsWith(begin) && Contains(service.tls.certificate));
  service.tls = tls_files(folder, identity);
  service.tls.clients = folder.write("ca.pem", "no authority");
  CHECK_THAT(findings(service), StartsWith(begin) && Contains(service.tls.clients));
  service.tls = tls_files(folder, new_identity({.from_s = -7200, .until_s = -3600}));
  CHECK_THAT(findings(service), StartsWith("warning: " + begin) && Contains("expired"));
}

TEST_CASE("a file of keys without keys is an error") {
  Folder folder;
  ServiceSpec service;
  service.keys.file = folder.write("keys.txt", "\n");
  CHECK(findings(service) ==
        "p.lua:3: the task `web` has `keys`: the file `" + service.keys.file + "` has no key\n");
}

TEST_CASE("the variable of a service's keys must be set, and have keys") {
  ServiceSpec service;
  service.keys.variable = "API_KEYS";
  CHECK(findings(service, {{"OTHER", "x"}}) ==
        "p.lua:3: the task `web` needs the environment variable API_KEYS (`keys`), which is not "
        "set: export API_KEYS=… with keys between commas, and start again\n");
  CHECK(findings(service, {{"API_KEYS", " "}}) ==
        "p.lua:3: the task `web` has `keys`: the environment variable API_KEYS has no key\n");
  CHECK(findings(service, {{"OTHER", ""}, {"API_KEYS", "long-enough,another"}}) == "");
}

TEST_CASE("a key that is too short to be redacted is a warning that does not show it") {
  ServiceSpec service;
  service.keys.variable = "API_KEYS";
  CHECK(findings(service, {{"API_KEYS", "long-enough,abc"}}) ==
        "warning: p.lua:3: the task `web` has a key of fewer than 4 bytes in `keys`: it is easy to "
        "guess, and it is not redacted in logs and errors\n");
}
