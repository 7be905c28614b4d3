#include "engine/plan/service_spec.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"
#include "engine/value/value_blobs.hpp"

namespace flow {

namespace {

constexpr size_t kHostNameMax = 253, kHostLabelMax = 63;
constexpr uint32_t kAllTraffic = 100;  // percent

/// The address in its shortest form, an IPv4 address also if it is written as one of IPv6; "" if
/// the text is not an address.
std::string shortest_address(const std::string& text) {
  constexpr std::string_view kMapped = "::ffff:";
  in_addr four{};
  in6_addr six{};
  char shortest[INET6_ADDRSTRLEN];
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1)
    return ::inet_ntop(AF_INET, &four, shortest, sizeof shortest);
  if (::inet_pton(AF_INET6, text.c_str(), &six) != 1) return "";
  std::string address = ::inet_ntop(AF_INET6, &six, shortest, sizeof shortest);
  return IN6_IS_ADDR_V4MAPPED(&six) ? address.substr(kMapped.size()) : address;
}

bool is_lower_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool is_host_label(std::string_view label) {
  return !label.empty() && label.size() <= kHostLabelMax && label.front() != '-' &&
         label.back() != '-' &&
         std::ranges::all_of(label, [](char c) { return is_lower_letter_or_digit(c) || c == '-'; });
}

bool is_absolute(const std::string& path) {
  return path.starts_with('/') && path.find('\0') == std::string::npos;
}

/// What is missing in a service that other machines can reach; "" if nothing is.
std::string exposure_problem(const ServiceSpec& service) {
  bool is_reached = !service.address.empty() && !is_loopback(service.address);
  bool has_tls = !service.tls.is_empty(), has_keys = !service.keys.is_empty();
  if (!is_reached || service.is_insecure || (has_tls && has_keys)) return "";
  constexpr const char* kAddTls = "`tls = { cert = \"server.pem\", key = \"server.key\" }`";
  constexpr const char* kAddKeys = "`keys = flow.env(\"API_KEYS\")`";
  std::string lacks = has_tls ? "`keys`" : has_keys ? "`tls`" : "`tls` and `keys`";
  std::string add = has_tls    ? kAddKeys
                    : has_keys ? kAddTls
                               : fmt::format("{} and {}", kAddTls, kAddKeys);
  return fmt::format(
      "listens on {}, where other machines reach it, and has no {}: add {}. Or write `insecure = "
      "true`, if everyone on the network may call it and read what others send",
      service.address, lacks, add);
}

/// The datatype of the tensors that hold values of a datatype which tensors do not have; "" for the
/// others.
std::string wider_datatype(std::string_view datatype) {
  if (datatype == "INT8" || datatype == "INT16" || datatype == "UINT16") return "INT32";
  if (datatype == "UINT32" || datatype == "UINT64") return "INT64";
  return "";
}

std::string tensors_problem(const char* option, const std::vector<TensorSpec>& tensors) {
  if (tensors.size() > kServiceTensorsMax)
    return fmt::format("has {} tensors in `{}`, and {} are allowed", tensors.size(), option,
                       kServiceTensorsMax);
  for (const TensorSpec& tensor : tensors) {
    bool is_sound = is_tensor_name(tensor.name) && is_tensor_datatype(tensor.datatype) &&
                    is_tensor_shape(tensor.shape);
    if (!is_sound) return fmt::format("has a tensor in `{}` that is not valid", option);
  }
  bool is_sorted = std::ranges::adjacent_find(tensors, std::greater_equal<>(), &TensorSpec::name) ==
                   tensors.end();
  return is_sorted ? "" : fmt::format("has `{}` that are not sorted by name", option);
}

std::string canary_problem(const CanarySpec& canary) {
  const std::vector<uint32_t>& percents = canary.percents;
  bool rises = percents.empty() ||
               (percents.front() >= 1 && percents.back() == kAllTraffic &&
                std::ranges::adjacent_find(percents, std::greater_equal<>()) == percents.end());
  if (!rises) return "has a `canary` whose percents do not rise to 100";
  bool is_limit = canary.max_error_rate == CanarySpec().max_error_rate ||
                  (canary.max_error_rate >= 0 && canary.max_error_rate <= 1);
  bool is_sound =
      is_limit && canary.every_ms >= 1 && canary.max_p99_us >= 0 && canary.min_requests >= 1;
  return is_sound ? "" : "has a `canary` with a limit that is not valid";
}

std::string scaling_problem(const ServiceSpec& service) {
  const ReplicaScaling& scaling = service.scaling;
  if (scaling.max == 0) return "";
  if (scaling.max <= service.replicas || scaling.max > kReplicasMax)
    return fmt::format("has `replicas` whose max is not above their min, up to {}", kReplicasMax);
  bool is_sound =
      scaling.target_queue_us >= 1 && scaling.up_after_ms >= 1 && scaling.down_after_ms >= 1;
  return is_sound ? "" : "has `replicas` that scale by a duration which is not above 0";
}

std::string grpc_problem(const ServiceSpec& service) {
  constexpr int32_t kPortMax = 65'535;
  if (service.grpc_port < -1 || service.grpc_port > kPortMax)
    return fmt::format("has a port of `grpc` that is not 0 to {}", kPortMax);
  if (service.grpc_port > 0 && service.grpc_port == service.port)
    return "listens for HTTP and for gRPC at the same port";
  bool is_wrapped = !(service.wrapped == WrappedServer{});
  return service.grpc_port >= 0 && is_wrapped ? "has `grpc` and a server that a command starts"
                                              : "";
}

/// The type of the elements that `predict` gets for it: "f32" for FP32.
std::string_view element_type_of(std::string_view datatype) {
  std::string wider = wider_datatype(datatype);
  if (!wider.empty()) datatype = wider;
  if (datatype == kBytesDatatype) return kBytesDatatype;
  if (datatype == "BOOL") return dtype_name(DType::boolean);
  if (datatype == "UINT8") return dtype_name(DType::u8);
  if (datatype == "INT32") return dtype_name(DType::i32);
  if (datatype == "INT64") return dtype_name(DType::i64);
  if (datatype == "FP16") return dtype_name(DType::f16);
  if (datatype == "BF16") return dtype_name(DType::bf16);
  return dtype_name(datatype == "FP64" ? DType::f64 : DType::f32);
}

bool is_sound(const WarmupTensor& tensor) {
  DType dtype{};
  bool has_sizes = is_tensor_shape(tensor.shape) &&
                   std::ranges::all_of(tensor.shape, [](int64_t size) { return size >= 1; });
  if (!is_tensor_name(tensor.name) || !has_sizes) return false;
  if (tensor.dtype == kBytesDatatype) {
    auto count = element_count(tensor.shape);
    return count && size_of_elements(tensor.data, *count) == tensor.data.size();
  }
  if (!parse_dtype(tensor.dtype, dtype)) return false;
  auto bytes = size_of(Tensor{dtype, tensor.shape, {}, nullptr});
  return bytes && *bytes == tensor.data.size();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("{{ {} }}", fmt::join(shape, ", "));
}

/// What keeps a tensor of the warm-up request from being the declared input.
std::string warmup_input_problem(const WarmupTensor& tensor, const TensorSpec& input) {
  std::string_view type = element_type_of(input.datatype);
  if (tensor.dtype != type)
    return fmt::format("has the `warmup` tensor `{}` of {}, but `inputs` declares {}, which is {}",
                       tensor.name, tensor.dtype, input.datatype, type);
  bool fits =
      std::equal(input.shape.begin(), input.shape.end(), tensor.shape.begin(), tensor.shape.end(),
                 [](int64_t declared, int64_t size) { return declared == -1 || declared == size; });
  if (fits) return "";
  return fmt::format("has the `warmup` tensor `{}` of shape {}, but `inputs` declares {}",
                     tensor.name, shape_text(tensor.shape), shape_text(input.shape));
}

std::string warmup_problem(const ServiceSpec& service) {
  const std::vector<WarmupTensor>& warmup = service.warmup;
  size_t bytes = 0;
  for (const WarmupTensor& tensor : warmup) {
    if (!is_sound(tensor))
      return fmt::format(
          "has the `warmup` tensor `{}`, which is not one that a request can have: it has a name "
          "of 1 to {} bytes of UTF-8 and 1 to {} dimensions, none of which is empty",
          cut_text(to_utf8(tensor.name), kTensorNameMax), kTensorNameMax, kTensorDimensionsMax);
    bytes += tensor.data.size();
  }
  bool is_sorted = std::ranges::adjacent_find(warmup, std::greater_equal<>(),
                                              &WarmupTensor::name) == warmup.end();
  if (bytes > kWarmupBytesMax || warmup.size() > kServiceTensorsMax || !is_sorted)
    return fmt::format("has a `warmup` that is not at most {} tensors of {} bytes in all, by name",
                       kServiceTensorsMax, kWarmupBytesMax);
  if (warmup.empty() || service.inputs.empty()) return "";
  for (const WarmupTensor& tensor : warmup) {
    auto input = std::ranges::find(service.inputs, tensor.name, &TensorSpec::name);
    if (input == service.inputs.end())
      return fmt::format("has the `warmup` tensor `{}`, which `inputs` does not declare",
                         tensor.name);
    if (std::string why = warmup_input_problem(tensor, *input); !why.empty()) return why;
  }
  for (const TensorSpec& input : service.inputs)
    if (std::ranges::find(warmup, input.name, &WarmupTensor::name) == warmup.end())
      return fmt::format("has a `warmup` without `{}`, which `inputs` declares", input.name);
  return "";
}

}  // namespace

std::optional<Address> parse_listen(std::string_view text) {
  auto address = parse_address(text);
  if (!address.ok()) return std::nullopt;
  std::string shortest = shortest_address(address->host);
  bool is_of_six = address->host.find(':') != std::string::npos;
  if (shortest.empty() || is_of_six != text.starts_with('[')) return std::nullopt;
  return Address{shortest, address->port};
}

bool is_host_name(std::string_view text) {
  if (text.empty() || text.size() > kHostNameMax) return false;
  std::string_view label;
  for (std::string_view rest = text;;) {
    size_t dot = rest.find('.');
    label = rest.substr(0, dot);
    if (!is_host_label(label)) return false;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return label.find_first_not_of("0123456789") != std::string_view::npos;
}

bool is_tensor_name(std::string_view text) {
  bool has_control =
      std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return !text.empty() && text.size() <= kTensorNameMax && !has_control && is_utf8(text);
}

bool is_tensor_datatype(std::string_view text) {
  return text == kBytesDatatype ||
         std::ranges::find(kTensorDatatypes, text) != kTensorDatatypes.end();
}

bool is_tensor_shape(const std::vector<int64_t>& shape) {
  return !shape.empty() && shape.size() <= kTensorDimensionsMax &&
         std::ranges::all_of(shape, [](int64_t size) { return size == -1 || size >= 1; });
}

std::string service_problem(const ServiceSpec& service) {
  if (service.batch_max < 1) return "has a `batch.max` below 1";
  if (service.queue_max < 1 || service.queue_max > kServiceQueueMax)
    return fmt::format("has a `queue` that is not 1 to {}", kServiceQueueMax);
  if (!service.address.empty() && shortest_address(service.address) != service.address)
    return "has a `listen` that is not a numeric address";
  const TlsPaths& tls = service.tls;
  bool has_tls_files = is_absolute(tls.certificate) && is_absolute(tls.key) &&
                       (tls.clients.empty() || is_absolute(tls.clients));
  if (!tls.is_empty() && !has_tls_files) return "has a `tls` without the paths of its files";
  const ServiceKeySource& keys = service.keys;
  bool is_one_source = keys.variable.empty() ? is_absolute(keys.file) : keys.file.empty();
  if (!keys.is_empty() && !is_one_source) return "has `keys` that are not one variable or one file";
  bool are_hosts =
      service.hosts.size() <= kServiceHostsMax && std::ranges::all_of(service.hosts, is_host_name);
  if (!are_hosts)
    return fmt::format("has `hosts` that are not at most {} DNS names", kServiceHostsMax);
  std::string problem = tensors_problem("inputs", service.inputs);
  if (problem.empty()) problem = tensors_problem("outputs", service.outputs);
  if (service.replicas < 1 || service.replicas > kReplicasMax)
    return fmt::format("has `replicas` that are not 1 to {}", kReplicasMax);
  if (problem.empty()) problem = scaling_problem(service);
  if (std::string why = grpc_problem(service); !why.empty()) return why;
  bool is_part = service.access_log >= 0 && service.access_log <= 1;
  if (!is_part) return "has an `access_log` that is not 0 to 1";
  if (service.drain_delay_ms < 0) return "has a negative `drain_delay`";
  if (problem.empty()) problem = canary_problem(service.canary);
  if (problem.empty()) problem = warmup_problem(service);
  return problem.empty() ? exposure_problem(service) : problem;
}

}  // namespace flow
