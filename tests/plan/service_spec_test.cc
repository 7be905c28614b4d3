// Options of a service: what is accepted, what is refused, and how they are stored.
#include <fmt/format.h>
#include <stdlib.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

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

// The same with replicas, a rollover and a warm-up.
ServiceSpec living_service() {
  ServiceSpec service = full_service();
  service.replicas = 4;
  service.is_idempotent = false;
  service.rolls_by_replacing = true;
  service.drain_delay_ms = 2000;
  service.is_padded = true;
  service.grpc_port = 9000;
  service.canary = {{10, 50, 100}, 30'000, 0.25, 20'000, 5, ""};
  service.warmup = {{"mask", "bool", {2}, "\1\1"},
                    {"pixels", "f32", {1, 64}, std::string(256, 'x')}};
  return service;
}

// The same with what only a server of a command has: every field has a value.
ServiceSpec stored_service() {
  ServiceSpec service = living_service();
  service.wrapped = {"/ready", "/health", 5000};
  service.scaling = {8, 7'000, 4'000, 50'000};
  service.access_log = 0.5;
  return service;
}

std::string command_problem(const ServiceSpec& service, const char* command = "server {port}") {
  Plan plan = plan_with(service);
  plan.defs[0].shell.command = command;
  std::vector<Error> errors = check_plan(plan);
  return errors.empty() ? "" : errors.front().message;
}

std::string problem_of(const ServiceSpec& service) {
  std::vector<Error> errors = check_plan(plan_with(service));
  return errors.empty() ? "" : errors.front().message;
}

std::string shown_bytes(const std::string& bytes) {
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x} ", byte);
  return text;
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

TEST_CASE("inputs and outputs may have every datatype of the protocol") {
  auto declared = [](const char* datatype) {
    ServiceSpec service;
    service.inputs = {{"x", datatype, {-1}}};
    service.outputs = {{"y", datatype, {-1}}};
    return problem_of(service);
  };
  for (std::string_view datatype : kTensorDatatypes)
    CHECK(declared(std::string(datatype).c_str()) == "");
  CHECK(declared("BYTES") == "");
  CHECK_THAT(declared("STRING"), Catch::EndsWith("has a tensor in `inputs` that is not valid"));
}

TEST_CASE("the warm-up of an input of BYTES has as many elements as its shape") {
  auto warmed_by = [](const std::string& data, const char* datatype) {
    ServiceSpec service;
    service.inputs = {{"x", datatype, {-1}}};
    service.warmup = {{"x", "BYTES", {2}, data}};
    return problem_of(service);
  };
  const std::string elements("\1\0\0\0a\0\0\0\0", 9);
  CHECK(warmed_by(elements, "BYTES") == "");
  for (const std::string& other : {elements.substr(0, 8), elements + "b", std::string()})
    CHECK_THAT(warmed_by(other, "BYTES"), Catch::Contains("which is not one that a request"));
  CHECK_THAT(warmed_by(elements, "UINT8"),
             Catch::EndsWith("tensor `x` of BYTES, but `inputs` declares UINT8, which is u8"));
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
      {"has `replicas` that are not 1 to 256", [](ServiceSpec& s) { s.replicas = 0; }},
      {"has `replicas` that are not 1 to 256", [](ServiceSpec& s) { s.replicas = 257; }},
      {"has `replicas` whose max is not above their min, up to 256",
       [](ServiceSpec& s) { s.scaling.max = s.replicas; }},
      {"has `replicas` whose max is not above their min, up to 256",
       [](ServiceSpec& s) { s.scaling.max = 257; }},
      {"has `replicas` that scale by a duration which is not above 0",
       [](ServiceSpec& s) {
         s.scaling = {8, 0, 1, 1};
       }},
      {"has `replicas` that scale by a duration which is not above 0",
       [](ServiceSpec& s) {
         s.scaling = {8, 1, 0, 1};
       }},
      {"has `replicas` that scale by a duration which is not above 0",
       [](ServiceSpec& s) {
         s.scaling = {8, 1, 1, 0};
       }},
      {"has a port of `grpc` that is not 0 to 65535", [](ServiceSpec& s) { s.grpc_port = -2; }},
      {"has a port of `grpc` that is not 0 to 65535", [](ServiceSpec& s) { s.grpc_port = 65'536; }},
      {"listens for HTTP and for gRPC at the same port",
       [](ServiceSpec& s) { s.port = 80, s.grpc_port = 80; }},
      {"has a negative `drain_delay`", [](ServiceSpec& s) { s.drain_delay_ms = -1; }},
      {"has a `canary` whose percents do not rise to 100",
       [](ServiceSpec& s) { s.canary.percents.pop_back(); }},
      {"has a `canary` whose percents do not rise to 100",
       [](ServiceSpec& s) { s.canary.percents[0] = 0; }},
      {"has a `canary` whose percents do not rise to 100",
       [](ServiceSpec& s) { s.canary.percents[1] = 10; }},
      {"has a `canary` with a limit that is not valid",
       [](ServiceSpec& s) { s.canary.every_ms = 0; }},
      {"has a `canary` with a limit that is not valid",
       [](ServiceSpec& s) { s.canary.max_error_rate = 2; }},
      {"has a `canary` with a limit that is not valid",
       [](ServiceSpec& s) { s.canary.max_p99_us = -1; }},
      {"has a `canary` with a limit that is not valid",
       [](ServiceSpec& s) { s.canary.min_requests = 0; }},
      {"has a `warmup` that is not at most 64 tensors of 1048576 bytes in all, by name",
       [](ServiceSpec& s) { std::swap(s.warmup[0], s.warmup[1]); }},
      {"has a `warmup` that is not at most 64 tensors of 1048576 bytes in all, by name",
       [](ServiceSpec& s) {
         s.warmup[1] = {"pixels", "u8", {1'048'577}, std::string(1'048'577, 'x')};
       }},
      {"has the `warmup` tensor `mask`, which is not one that a request can have: it has a name of "
       "1 to 256 bytes of UTF-8 and 1 to 8 dimensions, none of which is empty",
       [](ServiceSpec& s) { s.warmup[0].data += "x"; }},
      {"has the `warmup` tensor `mask`, which is not one that a request can have: it has a name of "
       "1 to 256 bytes of UTF-8 and 1 to 8 dimensions, none of which is empty",
       [](ServiceSpec& s) { s.warmup[0].dtype = "FP32"; }},
  };
  CHECK(problem_of(living_service()) == "");
  for (const auto& [why, change] : cases) {
    ServiceSpec service = living_service();
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
      [](ServiceSpec& s) { s.replicas++; },
      [](ServiceSpec& s) { s.is_idempotent = true; },
      [](ServiceSpec& s) { s.rolls_by_replacing = false; },
      [](ServiceSpec& s) { s.drain_delay_ms++; },
      [](ServiceSpec& s) { s.is_padded = false; },
      [](ServiceSpec& s) { s.grpc_port++; },
      [](ServiceSpec& s) { s.canary.percents.pop_back(); },
      [](ServiceSpec& s) { s.canary.every_ms++; },
      [](ServiceSpec& s) { s.canary.max_error_rate = -1; },
      [](ServiceSpec& s) { s.canary.max_p99_us++; },
      [](ServiceSpec& s) { s.canary.min_requests++; },
      [](ServiceSpec& s) { s.canary.gate = "check"; },
      [](ServiceSpec& s) { s.warmup[0].name += "x"; },
      [](ServiceSpec& s) { s.warmup[0].dtype = "u8"; },
      [](ServiceSpec& s) {
        s.warmup[0].shape = {1, 2};
      },
      [](ServiceSpec& s) { s.warmup[0].data[0] = 0; },
      [](ServiceSpec& s) { s.wrapped.ready += "x"; },
      [](ServiceSpec& s) { s.wrapped.health += "x"; },
      [](ServiceSpec& s) { s.wrapped.start_timeout_ms++; },
  };
  for (size_t i = 0; i < std::size(changes); i++) {
    ServiceSpec service = stored_service();
    changes[i](service);
    INFO("change " << i);
    CHECK(encode_plan(plan_with(service)) != encode_plan(plan_with(stored_service())));
    auto order = decode_service_options(encode_service_options(service));
    REQUIRE(order.ok());
    CHECK(encode_service_options(*order) != encode_service_options(stored_service()));
  }
}

TEST_CASE("the replicas and the rollover of a service survive in a plan, whose other bytes stay") {
  ServiceSpec alone;  // without other options
  alone.replicas = 2;
  ServiceSpec grpc;
  grpc.grpc_port = 0;
  ServiceSpec unscaled = stored_service();
  unscaled.scaling = {};
  unscaled.access_log = 0;
  for (const auto& [service, before] : {std::pair(unscaled, encode_plan(plan_with(full_service()))),
                                        std::pair(alone, encode_plan(plan_with({}))),
                                        std::pair(grpc, encode_plan(plan_with({})))}) {
    std::string bytes = encode_plan(plan_with(service));
    REQUIRE(bytes.starts_with(before));
    auto back = decode_plan(bytes);
    REQUIRE(back.ok());
    CHECK(back->defs[0].service == service);
    CHECK(encode_plan(*back) == bytes);
    for (size_t cut = before.size() + 1; cut < bytes.size(); cut++)
      CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  }
}

TEST_CASE("the bytes of the replicas and the rollover of a service in a plan are pinned") {
  using namespace std::string_literals;
  ServiceSpec service;
  service.replicas = 2;
  service.canary = {{10, 100}, 60'000, 0.5, 20'000, 20, ""};
  service.warmup = {{"x", "u8", {3}, "abc"}};
  const std::string plain = encode_plan(plan_with({}));
  // No kernels, the section, one task, its index, replicas, three flags around drain_delay, grpc.
  const std::string pinned =
      "\0\14\1\0\2\1\0\0\0\1"s
      "\2\12\144\300\251\7\0\0\0\0\0\0\340\77\300\270\2\24\0"s
      "\1\1x\2u8\1\6\3abc"s
      "\0\0\200\237\111"s;
  CHECK(shown_bytes(encode_plan(plan_with(service)).substr(plain.size())) == shown_bytes(pinned));
  ServiceSpec defaults;
  std::string order = encode_service_options(defaults);
  const std::string life = "\1\1\0\0\0\1\0\300\251\7\0\0\0\0\0\0\360\277\0\24\0\0\0\0\200\237\111"s;
  REQUIRE(order.find(life) != std::string::npos);
  const std::string after_life = order.substr(order.find(life) + life.size());
  CHECK(shown_bytes(after_life) == shown_bytes("\0\220\116\220\116\300\251\7\0\0\0\0\0\0\0\0"s));
  CHECK_FALSE(decode_plan(plain + "\0\14\1\0"s + life).ok());
  CHECK_FALSE(decode_plan(plain + "\0\14\0"s).ok());
}

TEST_CASE("the bytes of the scaling of a service in a plan are pinned") {
  using namespace std::string_literals;
  ServiceSpec service;
  service.scaling.max = 8;
  service.access_log = 0.5;
  const std::string plain = encode_plan(plan_with({}));
  // No kernels, the section, one task, its index, and the fields.
  const std::string pinned = "\0\15\1\0\10\220\116\220\116\300\251\7\0\0\0\0\0\0\340\77"s;
  CHECK(shown_bytes(encode_plan(plan_with(service)).substr(plain.size())) == shown_bytes(pinned));
  CHECK_FALSE(decode_plan(plain + "\0\15\1\0\0\220\116\220\116\300\251\7\0\0\0\0\0\0\0\0"s).ok());
}

TEST_CASE("a limit that is no number keeps its bytes in a plan and is refused") {
  ServiceSpec service;
  service.canary.percents = {100};
  service.canary.max_error_rate = std::numeric_limits<double>::quiet_NaN();
  std::string bytes = encode_plan(plan_with(service));
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(encode_plan(*back) == bytes);
  CHECK_THAT(problem_of(service), Catch::EndsWith("has a `canary` with a limit that is not valid"));
}

TEST_CASE("the options of a service in an order are all but its port and its batches") {
  std::string bytes = encode_service_options(stored_service());
  auto back = decode_service_options(bytes);
  REQUIRE(back.ok());
  ServiceSpec expected = stored_service();
  expected.port = 0;
  expected.batch_max = 1;
  expected.batch_wait_us = 0;
  CHECK(*back == expected);
  for (size_t cut = 0; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_service_options(std::string_view(bytes).substr(0, cut)).ok());
  CHECK_FALSE(decode_service_options(bytes + "x").ok());
}

TEST_CASE("a server of a command has paths, and nothing that needs `predict`") {
  ServiceSpec service;
  service.wrapped.ready = "/health";
  CHECK(command_problem(service) == "");
  CHECK(command_problem(service, "") ==
        "pipeline.lua:3: task `web` has `ready`, `health` or `start_timeout` and no `command`");
  const std::pair<const char*, std::function<void(ServiceSpec&)>> cases[] = {
      {"has a `command`, and a `ready` or `health` that is not a path",
       [](ServiceSpec& s) { s.wrapped.ready = ""; }},
      {"has a `command`, and a `ready` or `health` that is not a path",
       [](ServiceSpec& s) { s.wrapped.health = "/a\r\nHost: b"; }},
      {"has a `command`, and a `ready` or `health` that is not a path",
       [](ServiceSpec& s) { s.wrapped.health = "/" + std::string(1024, 'a'); }},
      {"has a `start_timeout` that is not above 0",
       [](ServiceSpec& s) { s.wrapped.start_timeout_ms = 0; }},
      {"has a `command`, so it has no `inputs`, `outputs`, `warmup` and `batch`",
       [](ServiceSpec& s) { s.batch_max = 2; }},
      {"has a `command`, so it has no `inputs`, `outputs`, `warmup` and `batch`",
       [](ServiceSpec& s) {
         s.warmup = {{"x", "u8", {1}, "a"}};
       }},
  };
  for (const auto& [why, change] : cases) {
    ServiceSpec changed = service;
    change(changed);
    CHECK(command_problem(changed) == std::string("pipeline.lua:3: task `web` ") + why);
  }
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
