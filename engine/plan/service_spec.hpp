// Options of a service: where it listens, who may call it, how many requests wait, and the tensors
// that it declares.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/value/tensor_spec.hpp"

namespace flow {

constexpr uint32_t kServiceQueueMax = 1'000'000;  // requests
constexpr size_t kServiceHostsMax = 64;
constexpr size_t kServiceTensorsMax = 64;  // of the inputs, and of the outputs
constexpr size_t kTensorDimensionsMax = 8;
constexpr size_t kTensorNameMax = 256;  // bytes

/// Datatypes of the Open Inference Protocol whose elements have a fixed size.
constexpr std::array<std::string_view, 13> kTensorDatatypes = {
    "BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
    "INT32", "INT64", "FP16",   "BF16",   "FP32",   "FP64"};

/// Absolute paths of PEM files. All are empty: the service speaks plain HTTP.
struct TlsPaths {
  std::string certificate{}, key{};
  std::string clients{};  // "": clients need no certificate
  bool operator==(const TlsPaths&) const = default;
  bool is_empty() const { return *this == TlsPaths{}; }
};

/// Where a service reads the keys that its callers must have: from a variable of the submitter, or
/// from a file. Both are empty: it asks for none. The keys themselves are never part of a plan.
struct ServiceKeySource {
  std::string variable{};
  std::string file{};  // absolute
  bool operator==(const ServiceKeySource&) const = default;
  bool is_empty() const { return variable.empty() && file.empty(); }
};

/// How a new version of a service takes over the traffic of the one before it.
struct CanarySpec {
  std::vector<uint32_t>
      percents{};              // of the traffic, ascending, the last is 100; empty: 100 at once
  int64_t every_ms = 60'000;   // duration of a step
  double max_error_rate = -1;  // of the new version's requests; below 0: no limit
  int64_t max_p99_us = 0;      // 0: no limit
  uint32_t min_requests = 20;  // to the new version in a step
  std::string gate{};          // name of the task that decides about each step; "": none
  bool is_skipped = false;     // a rollback takes all traffic at once
  bool operator==(const CanarySpec&) const = default;
};

/// A request that each replica answers before it gets traffic.
struct WarmupTensor {
  std::string name{}, dtype{};
  std::vector<int64_t> shape{};
  std::string data{};  // elements in row-major order, little-endian
  bool operator==(const WarmupTensor&) const = default;
};
constexpr size_t kWarmupBytesMax = 1 << 20;
constexpr uint32_t kReplicasMax = 256;

/// How the number of replicas follows the load, from ServiceSpec::replicas on.
struct ReplicaScaling {
  uint32_t max = 0;                // replicas; 0: their number is fixed
  int64_t target_queue_us = 5000;  // one more is started when requests wait longer for a batch,
  int64_t up_after_ms = 5'000;     // for so long,
  int64_t down_after_ms = 60'000;  // and one ends after so long below the target
  bool operator==(const ReplicaScaling&) const = default;
};

/// A server that the task's command starts; the front forwards requests to it.
struct WrappedServer {
  std::string ready{};                 // path that answers 2xx when the server is ready
  std::string health{};                // the same while it serves; "": as `ready`
  int64_t start_timeout_ms = 600'000;  // until it is ready
  bool operator==(const WrappedServer&) const = default;
};

struct ServiceSpec {
  uint16_t port = 0;
  uint32_t batch_max = 1;
  int64_t batch_wait_us = 0;
  std::string address{};  // numeric, in its shortest form; "": 127.0.0.1
  TlsPaths tls{};
  ServiceKeySource keys{};
  std::vector<std::string> hosts{};  // lower case: names in `Host` that requests may have
  bool is_insecure = false;          // may listen beyond loopback without `tls` and `keys`
  uint32_t queue_max = 1024;         // requests that wait for a call of `predict`
  std::vector<TensorSpec> inputs{}, outputs{};  // sorted by name; empty: not declared
  uint32_t replicas = 1;                        // processes that answer requests
  bool is_idempotent = true;                    // a request may run again if its replica dies
  bool rolls_by_replacing = false;              // the version before is drained first
  int64_t drain_delay_ms = 0;                   // in which a draining service accepts connections
  bool is_padded = false;                       // batches are padded to `batch_max` rows
  int32_t grpc_port = -1;                       // at the same address; 0: any; -1: no gRPC
  CanarySpec canary{};
  std::vector<WarmupTensor> warmup{};
  WrappedServer wrapped{};  // if the definition has a command
  ReplicaScaling scaling{};
  double access_log = 0;  // part of the requests that the access log has; 0: there is no log
  bool operator==(const ServiceSpec&) const = default;
};

/// "127.0.0.1:8080", "[::1]:8080": a numeric address, which is returned in its shortest form, and a
/// port. Nothing for any other text.
std::optional<Address> parse_listen(std::string_view text);

/// Whether the text is a DNS name in lower case. Numbers are an address, not a name.
bool is_host_name(std::string_view text);

/// Whether the text can name a tensor: 1 to kTensorNameMax bytes of UTF-8 without control
/// characters.
bool is_tensor_name(std::string_view text);

/// Datatype of elements of any size: each is a u32 with its number of bytes, little-endian, and
/// they follow.
constexpr std::string_view kBytesDatatype = "BYTES";

bool is_tensor_datatype(std::string_view text);

/// Whether there are 1 to kTensorDimensionsMax sizes, each from 1 or -1.
bool is_tensor_shape(const std::vector<int64_t>& shape);

/// What is wrong with the service as a clause of which its task is the subject, "listens on …"; ""
/// if nothing is.
std::string service_problem(const ServiceSpec& service);

}  // namespace flow
