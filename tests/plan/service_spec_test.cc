// Options of a service: what is accepted, what is refused, and how they are stored.
#include <stdlib.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/plan/plan.hpp"
#include "engine/plan/service_keys.hpp"

using namespace flow;

namespace {

Plan plan_with(const ServiceSpec& service) {
  Plan plan;
  plan.pipeline = "digits";
  TaskDef& def = plan.defs.emplace_back();
  def.name = "web";
  def.kind = TaskKind::service;
  def.file = "pipeline.lua";
  def.line = 3;
  def.service = service;
  return plan;
}

// A service with a value in every field.
ServiceSpec full_service() {
  ServiceSpec service{8080, 32, 2000};
  service.address = "::";
  service.tls = {"/p/server.pem", "/p/server.key", "/p/ca.pem"};
  service.keys.variable = "API_KEYS";
  service.hosts = {"models.example", "other.example"};
  service.is_insecure = true;
  service.queue_max = 7;
  service.inputs = {{"mask", "BOOL", {-1}}, {"pixels", "FP32", {-1, 64}}};
  service.outputs = {{"scores", "BF16", {-1, 10}}};
  return service;
}

std::string problem_of(const ServiceSpec& service) {
  std::vector<Error> errors = check_plan(plan_with(service));
  return errors.empty() ? "" : errors.front().message;
}

std::string listen_text(const std::string& text) {
  auto address = parse_listen(text);
  return address ? address_text(*address) : "none";
}

std::string keys_text(const Result<std::vector<std::string>>& keys) {
  if (!keys.ok()) return "error: " + keys.error().message;
  std::string text;
  for (const std::string& key : *keys) text += "[" + key + "]";
  return text;
}

class KeyFile {
 public:
  explicit KeyFile(const std::string& text) {
    char pattern[] = "/tmp/flow-keys-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    path = folder_ + "/keys.txt";
    std::ofstream(path) << text;
  }
  ~KeyFile() { std::filesystem::remove_all(folder_); }
  std::string path;

 private:
  std::string folder_;
};

}  // namespace

TEST_CASE("a service listens on a numeric address, which is kept in its shortest form") {
  CHECK(listen_text("127.0.0.1:8080") == "127.0.0.1:8080");
  CHECK(listen_text("0.0.0.0:0") == "0.0.0.0:0");
  CHECK(listen_text("[::1]:65535") == "[::1]:65535");
  CHECK(listen_text("[0:0:0:0:0:0:0:1]:80") == "[::1]:80");
  CHECK(listen_text("[2001:DB8::0:1]:80") == "[2001:db8::1]:80");
  CHECK(listen_text("[::ffff:127.0.0.1]:80") == "127.0.0.1:80");
  for (const char* wrong :
       {"localhost:80", "models.example:80", "127.0.0.1", "127.0.0.1:", ":80", "8080", "::1:80",
        "[127.0.0.1]:80", "127.0.0.1:65536", "127.0.0.1:-1", "127.1:80", "127.0.0.01:80",
        "[fe80::1%eth0]:80", "[::1]80", "http://127.0.0.1:80", "127.0.0.1:80/", ""}) {
    INFO(wrong);
    CHECK(listen_text(wrong) == "none");
  }
}

TEST_CASE("a host is a DNS name in lower case") {
  std::string label(63, 'a'), name = label + "." + label + "." + label + "." + label.substr(2);
  for (const std::string& good : {std::string("models.example"), std::string("localhost"),
                                  std::string("a-1.b2.example"), std::string("1a"), name}) {
    INFO(good);
    CHECK(is_host_name(good));
  }
  for (const std::string& wrong :
       {std::string(), std::string("Models.example"), std::string(".example"),
        std::string("example."), std::string("a..b"), std::string("-a.example"),
        std::string("a-.example"), std::string("*.example"), std::string("a_b"),
        std::string("a:80"), std::string("10.0.0.7"), std::string("::1"), std::string("a b"),
        std::string("é.example"), label + "a", name + "a"}) {
    INFO(wrong);
    CHECK_FALSE(is_host_name(wrong));
  }
}

TEST_CASE("beyond loopback a service needs TLS and keys, or to be called insecure") {
  ServiceSpec service;
  CHECK(problem_of(service) == "");
  for (const char* loopback : {"127.0.0.1", "127.3.2.1", "::1"}) {
    service.address = loopback;
    CHECK(problem_of(service) == "");
  }
  for (const char* reached : {"0.0.0.0", "::", "10.0.0.7", "2001:db8::1"}) {
    service.address = reached;
    CHECK(problem_of(service) ==
          std::string("pipeline.lua:3: task `web` listens on ") + reached +
              ", where other machines reach it, and has no `tls` and `keys`: add `tls = { cert = "
              "\"server.pem\", key = \"server.key\" }` and `keys = flow.env(\"API_KEYS\")`. Or "
              "write `insecure = true`, if everyone on the network may call it and read what "
              "others send");
  }
  service.tls = {"/p/server.pem", "/p/server.key", "/p/ca.pem"};
  CHECK_THAT(problem_of(service),
             Catch::Contains("has no `keys`: add `keys = flow.env(\"API_KEYS\")`. Or"));
  service.keys.file = "/p/keys.txt";
  CHECK(problem_of(service) == "");
  service.tls = {};
  CHECK_THAT(problem_of(service), Catch::Contains("has no `tls`: add `tls = { cert ="));
  service.is_insecure = true;
  service.keys = {};
  CHECK(problem_of(service) == "");
}

TEST_CASE("an output has a datatype that tensors have, an input may have any") {
  auto with_output = [](const char* datatype) {
    ServiceSpec service;
    service.inputs = {{"x", datatype, {-1}}};
    service.outputs = {{"y", datatype, {-1}}};
    return problem_of(service);
  };
  for (const char* datatype : {"BOOL", "UINT8", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64"})
    CHECK(with_output(datatype) == "");
  CHECK(with_output("UINT16") ==
        "pipeline.lua:3: task `web` has the output `y` of UINT16, but tensors of `predict` hold "
        "such numbers as INT32: declare INT32");
  for (const char* narrow : {"INT8", "INT16"})
    CHECK_THAT(with_output(narrow), Catch::EndsWith("as INT32: declare INT32"));
  for (const char* unsigned_one : {"UINT32", "UINT64"})
    CHECK_THAT(with_output(unsigned_one), Catch::EndsWith("as INT64: declare INT64"));
}

TEST_CASE("options of a service that no script can give are refused") {
  const std::pair<const char*, std::function<void(ServiceSpec&)>> cases[] = {
      {"has a `batch.max` below 1", [](ServiceSpec& s) { s.batch_max = 0; }},
      {"has a `queue` that is not 1 to 1000000", [](ServiceSpec& s) { s.queue_max = 0; }},
      {"has a `queue` that is not 1 to 1000000", [](ServiceSpec& s) { s.queue_max = 1'000'001; }},
      {"has a `listen` that is not a numeric address",
       [](ServiceSpec& s) { s.address = "localhost"; }},
      {"has a `listen` that is not a numeric address",
       [](ServiceSpec& s) { s.address = "0:0::1"; }},
      {"has a `tls` without the paths of its files", [](ServiceSpec& s) { s.tls.key = ""; }},
      {"has a `tls` without the paths of its files",
       [](ServiceSpec& s) { s.tls.clients = "ca.pem"; }},
      {"has `keys` that are not one variable or one file",
       [](ServiceSpec& s) { s.keys.file = "/p/keys.txt"; }},
      {"has `hosts` that are not at most 64 DNS names",
       [](ServiceSpec& s) { s.hosts.emplace_back("A"); }},
      {"has `hosts` that are not at most 64 DNS names",
       [](ServiceSpec& s) { s.hosts.assign(65, "a"); }},
      {"has a tensor in `inputs` that is not valid",
       [](ServiceSpec& s) { s.inputs[0].datatype = "F32"; }},
      {"has a tensor in `inputs` that is not valid",
       [](ServiceSpec& s) { s.inputs[0].shape = {0}; }},
      {"has a tensor in `inputs` that is not valid",
       [](ServiceSpec& s) { s.inputs[0].shape.assign(9, 1); }},
      {"has a tensor in `inputs` that is not valid", [](ServiceSpec& s) { s.inputs[0].name = ""; }},
      {"has `inputs` that are not sorted by name",
       [](ServiceSpec& s) { s.inputs[0].name = "pixels"; }},
      {"has 65 tensors in `outputs`, and 64 are allowed",
       [](ServiceSpec& s) { s.outputs.assign(65, s.outputs[0]); }},
  };
  CHECK(problem_of(full_service()) == "");
  for (const auto& [why, change] : cases) {
    ServiceSpec service = full_service();
    change(service);
    INFO(why);
    CHECK(problem_of(service) == std::string("pipeline.lua:3: task `web` ") + why);
  }
}

TEST_CASE(
    "options of a service survive in a plan, and a plan without them has none of their bytes") {
  ServiceSpec plain_service{8080, 32, 2000};
  const std::string plain = encode_plan(plan_with(plain_service));
  std::string bytes = encode_plan(plan_with(full_service()));
  REQUIRE(bytes.starts_with(plain));
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(back->defs[0].service == full_service());
  CHECK(encode_plan(*back) == bytes);
  CHECK(decode_plan(plain)->defs[0].service == plain_service);
  for (size_t cut = plain.size() + 1; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  // No kernels, the section, one task, its index: then options that have their defaults.
  using namespace std::string_literals;
  std::string defaults = encode_service_options({}).substr("flow-serv\1"s.size());
  CHECK_FALSE(decode_plan(plain + "\0\13\1\0"s + defaults).ok());
  CHECK_FALSE(decode_plan(plain + "\0\13\0"s).ok());
}

TEST_CASE("each option of a service changes the bytes of the plan and of the order") {
  const std::function<void(ServiceSpec&)> changes[] = {
      [](ServiceSpec& s) { s.address = "::1"; },
      [](ServiceSpec& s) { s.tls.certificate += "x"; },
      [](ServiceSpec& s) { s.tls.key += "x"; },
      [](ServiceSpec& s) { s.tls.clients = ""; },
      [](ServiceSpec& s) { s.keys.variable += "x"; },
      [](ServiceSpec& s) {
        s.keys = {"", "/p/keys.txt"};
      },
      [](ServiceSpec& s) { s.hosts.pop_back(); },
      [](ServiceSpec& s) { s.is_insecure = false; },
      [](ServiceSpec& s) { s.queue_max++; },
      [](ServiceSpec& s) { s.inputs[0].name += "x"; },
      [](ServiceSpec& s) { s.inputs[0].datatype = "INT8"; },
      [](ServiceSpec& s) { s.inputs[0].shape[0] = 5; },
      [](ServiceSpec& s) { s.outputs.clear(); },
  };
  for (size_t i = 0; i < std::size(changes); i++) {
    ServiceSpec service = full_service();
    changes[i](service);
    INFO("change " << i);
    CHECK(encode_plan(plan_with(service)) != encode_plan(plan_with(full_service())));
    auto order = decode_service_options(encode_service_options(service));
    REQUIRE(order.ok());
    CHECK(encode_service_options(*order) != encode_service_options(full_service()));
  }
}

TEST_CASE("the options of a service in an order are all but its port and its batches") {
  std::string bytes = encode_service_options(full_service());
  auto back = decode_service_options(bytes);
  REQUIRE(back.ok());
  ServiceSpec expected = full_service();
  expected.port = 0;
  expected.batch_max = 1;
  expected.batch_wait_us = 0;
  CHECK(*back == expected);
  for (size_t cut = 0; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_service_options(std::string_view(bytes).substr(0, cut)).ok());
  CHECK_FALSE(decode_service_options(bytes + "x").ok());
}

TEST_CASE("keys are between commas in a variable, and on the lines of a file") {
  CHECK(keys_text(parse_key_list("one")) == "[one]");
  CHECK(keys_text(parse_key_list(" one, two\t,,three=+/\n")) == "[one][two][three=+/]");
  CHECK(keys_text(read_key_file(KeyFile("one\r\n\n  two \nthree").path)) == "[one][two][three]");
  CHECK(keys_text(service_keys({}, "one")) == "");
  CHECK(keys_text(service_keys({"API_KEYS", ""}, "one,two")) == "[one][two]");
  CHECK(secrets_of_key_list("one,two") == std::vector<std::string>{"one,two", "one", "two"});
  CHECK(secrets_of_key_list("o ne") == std::vector<std::string>{"o ne"});
}

TEST_CASE("keys that are not valid are an error that shows no part of them") {
  CHECK(keys_text(parse_key_list("")) == "error: has no key");
  CHECK(keys_text(parse_key_list(" , ")) == "error: has no key");
  CHECK(keys_text(parse_key_list("one,t wo")) ==
        "error: has a key that is not valid at place 2: a key is 1 to 512 visible ASCII characters "
        "without commas");
  CHECK_THAT(keys_text(parse_key_list("\xc3\xa9")), Catch::Contains("at place 1"));
  CHECK(keys_text(parse_key_list(std::string(512, 'x'))).size() == 514);
  CHECK_THAT(keys_text(parse_key_list(std::string(513, 'x'))), Catch::Contains("at place 1"));
  std::string many = "a";
  for (size_t i = 1; i < kServiceKeysMax; i++) many += ",a";
  CHECK(parse_key_list(many).ok());
  CHECK(keys_text(parse_key_list(many + ",a")) == "error: has more than 256 keys");

  KeyFile file("one\ntwo,three\n");
  CHECK(keys_text(read_key_file(file.path)) ==
        "error: the file `" + file.path +
            "` has a key that is not valid at line 2: a key is 1 to 512 visible ASCII characters "
            "without commas");
  CHECK_THAT(keys_text(read_key_file(file.path + "x")), Catch::Contains(file.path + "x"));
  CHECK_THAT(keys_text(read_key_file(KeyFile(std::string(1 << 20, '\n')).path)),
             Catch::Contains("it has more than"));
  CHECK(keys_text(service_keys({"API_KEYS", ""}, "")) ==
        "error: the environment variable API_KEYS has no key");
}
