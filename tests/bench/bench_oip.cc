// Bodies of the inference protocol: reading and writing numbers, beside simdjson's own document of
// the same text. Usage: bench_oip [count]   (default 1000000 numbers)
#include <simdjson.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "engine/serve/oip.hpp"
#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

constexpr int kRounds = 25;

// Of this thread: other programs take the processor away during a round.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

template <typename Call>
double best_seconds(const Call& call) {
  double best = 1e9;
  for (int i = 0; i < kRounds; i++) {
    double began = cpu_seconds();
    call();
    best = std::min(best, cpu_seconds() - began);
  }
  return best;
}

// `print_number` gives the text of one number.
template <typename Print>
std::string request_of(const std::string& datatype, int count, const char* separator,
                       const Print& print_number) {
  std::string body = fmt::format(
      R"({{"inputs":[{{"name":"x","shape":[{}],"datatype":"{}","data":[)", count, datatype);
  for (int i = 0; i < count; i++) {
    if (i > 0) body += separator;
    body += print_number();
  }
  body += "]}]}";
  body.reserve(body.size() + kBodyPadding);
  return body;
}

double document_seconds(const std::string& body) {
  simdjson::dom::parser parser;
  return best_seconds([&] {
    if (parser.parse(body.data(), body.size(), false).error() != simdjson::SUCCESS)
      fmt::print("simdjson failed\n");
  });
}

// The body is handed over, as the server does: its copy is not timed.
double read_seconds(const std::string& body, std::optional<uint64_t> json_bytes = {}) {
  double best = 1e9;
  for (int i = 0; i < kRounds; i++) {
    std::string own;
    own.reserve(body.size() + kBodyPadding);
    own = body;
    double began = cpu_seconds();
    auto request = parse_infer_request(std::move(own), json_bytes);
    best = std::min(best, cpu_seconds() - began);
    if (!request.ok()) fmt::print("{}\n", request.error().message);
  }
  return best;
}

void figure_read(const std::string& name, const std::string& body) {
  double megabytes = static_cast<double>(body.size()) / 1e6;
  figure(name + "_mb_s", megabytes / read_seconds(body), "dom_mb_s",
         megabytes / document_seconds(body));
}

Tensors floats_of(int count, std::mt19937_64& random) {
  std::uniform_real_distribution<float> any(-1, 1);
  auto bytes = std::make_shared<std::string>();
  for (int i = 0; i < count; i++) {
    float value = any(random);
    bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  Tensor tensor;
  tensor.shape = {count};
  tensor.data = std::move(bytes);
  return {{"y", tensor}};
}

double copy_seconds(const Tensors& outputs) {
  std::string copy;
  return best_seconds([&] { copy.assign(*outputs.at("y").data); });
}

void figure_binary(const Tensors& outputs, int count) {
  InferRequest request;
  request.are_outputs_binary = true;
  std::string json = fmt::format(
      R"({{"inputs":[{{"name":"y","shape":[{}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}]}})",
      count, outputs.at("y").data->size());
  std::string body = json + std::string(*outputs.at("y").data);
  double copied = copy_seconds(outputs);
  figure("read_binary_us", read_seconds(body, json.size()) * 1e6, "copy_us", copied * 1e6);
  figure("print_binary_us",
         best_seconds([&] { (void)print_infer_response("m", request, outputs); }) * 1e6, "copy_us",
         copied * 1e6);
}

void figure_print(const Tensors& outputs) {
  auto printed = print_infer_response("m", {}, outputs);
  double megabytes = printed.ok() ? static_cast<double>(printed->body.size()) / 1e6 : 0;
  double took = best_seconds([&] { (void)print_infer_response("m", {}, outputs); });
  std::string text;
  double formatted = best_seconds([&] {
    text.clear();
    std::string_view bytes = *outputs.at("y").data;
    for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      fmt::format_to(std::back_inserter(text), "{},", value);
    }
  });
  figure("print_fp32_mb_s", megabytes / took, "fmt_mb_s",
         static_cast<double>(text.size()) / 1e6 / formatted);
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc > 1 ? std::atoi(argv[1]) : 1'000'000;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> single(-1, 1);
  std::normal_distribution<double> twice;
  // Python's json.dumps of NumPy's float32, which are doubles there; JavaScript and Go; C++.
  figure_read("read_fp32_python", request_of("FP32", count, ", ", [&] {
                return fmt::format("{}", static_cast<double>(single(random)));
              }));
  figure_read("read_fp32_compact", request_of("FP32", count, ",", [&] {
                return fmt::format("{}", static_cast<double>(single(random)));
              }));
  figure_read("read_fp32_short",
              request_of("FP32", count, ",", [&] { return fmt::format("{}", single(random)); }));
  figure_read("read_fp32_pixels", request_of("FP32", count, ", ", [&] {
                return fmt::format("{:.1f}", static_cast<double>(random() % 256));
              }));
  figure_read("read_fp64",
              request_of("FP64", count, ", ", [&] { return fmt::format("{}", twice(random)); }));
  figure_read("read_int64_tokens", request_of("INT64", count, ", ", [&] {
                return fmt::format("{}", random() % 128'000);
              }));
  figure_read("read_int64_long", request_of("INT64", count, ", ", [&] {
                return fmt::format("{}", static_cast<int64_t>(random()));
              }));
  figure_read("read_uint8",
              request_of("UINT8", count, ",", [&] { return fmt::format("{}", random() % 256); }));

  std::string small =
      request_of("FP32", 4, ", ", [&] { return fmt::format("{}", single(random)); });
  constexpr int kSmall = 10'000;
  auto began = cpu_seconds();
  for (int i = 0; i < kSmall; i++) (void)parse_infer_request(small, {});
  double took = (cpu_seconds() - began) / kSmall;
  simdjson::dom::parser parser;
  double document = best_seconds([&] {
                      for (int i = 0; i < kSmall; i++)
                        (void)parser.parse(small.data(), small.size(), true).error();
                    }) /
                    kSmall;
  figure("read_small_us", took * 1e6, "dom_us", document * 1e6);

  Tensors outputs = floats_of(count, random);
  figure_print(outputs);
  figure_binary(outputs, count);
}
