// Threads: the HTTP server's calls handle(); the thread of run() predicts; one decodes and one
// encodes what takes long; one watches deadlines and the stop.
#include "engine/serve/model_server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "engine/base/size_units.hpp"
#include "engine/base/thread_pool.hpp"
#include "engine/serve/api_keys.hpp"
#include "engine/serve/batch.hpp"
#include "engine/serve/declared_tensors.hpp"
#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/gzip.hpp"
#include "engine/serve/oip.hpp"
#include "engine/serve/request_scheduler.hpp"
#include "engine/serve/service_metadata.hpp"
#include "engine/serve/service_metrics.hpp"
#include "engine/serve/service_routes.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

using Clock = PendingRequest::Clock;
using std::chrono::milliseconds;

constexpr size_t kInlineBytesMax = 64 * 1024;    // decoded or encoded without another thread
constexpr size_t kDecodesMax = 64;               // requests that wait for the decoding thread
constexpr uint64_t kEncodeBytesMax = 64u << 20;  // of outputs that wait for it
constexpr size_t kGzipBytesMin = 1024;
constexpr size_t kFailuresMax = 100;  // logged individually between two calls of predict
constexpr size_t kIdBytesLogged = 64;
constexpr auto kStopCheck = milliseconds(100);
constexpr auto kDrainCheck = milliseconds(10);
constexpr auto kLastResponses = milliseconds(200);  // for those that are sent at a drain's end

HttpResponse memory_response() {
  return busy_response(503, "the service has too little memory left for this request");
}

HttpResponse stopping_response() { return busy_response(503, "the service is stopping"); }

HttpResponse ready_response(std::string body, bool is_ready) {
  return {.status = is_ready ? 200 : 503, .body = std::move(body)};
}

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

bool is_any(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

/// url() has the machine's name, which may be a domain.
std::vector<std::string> host_names(const ServiceOptions& options) {
  std::vector<std::string> names = options.hosts;
  if (!is_any(options.address)) return names;
  names.push_back(machine_name());
  for (char& letter : names.back()) letter = lower_letter(letter);
  return names;
}

bool needs_no_key(Endpoint endpoint) {
  return endpoint == Endpoint::live || endpoint == Endpoint::ready ||
         endpoint == Endpoint::model_ready;
}

/// Longer times would overflow the clock.
ServiceOptions bounded(ServiceOptions options) {
  constexpr int64_t kMsMax = int64_t{365} * 24 * 3600 * 1000;
  options.request_timeout_ms = std::min(options.request_timeout_ms, kMsMax);
  options.drain_ms = std::min(options.drain_ms, kMsMax);
  options.batch_wait_us = std::min(options.batch_wait_us, kMsMax * 1000);
  return options;
}

RequestScheduler::Limits limits_of(const ServiceOptions& options) {
  return {.rows_max = options.batch_max,
          .batch_wait = std::chrono::microseconds(options.batch_wait_us),
          .queue_max = options.queue,
          .call_max = milliseconds(options.request_timeout_ms)};
}

/// Failures that the thread of run() logs between two batches.
class FailureLog {
 public:
  void add(std::string line) {
    std::lock_guard lock(mutex_);
    count_++;
    if (lines_.size() < kFailuresMax) lines_.push_back(std::move(line));
  }
  void write_to(const std::function<void(const std::string&)>& log) {
    if (count_ == 0) return;
    std::vector<std::string> lines;
    size_t count = 0;
    {
      std::lock_guard lock(mutex_);
      lines.swap(lines_);
      count = count_.exchange(0);
    }
    if (!log) return;
    for (const std::string& line : lines) log(to_utf8(line));
    if (count > lines.size()) log(fmt::format("{} more requests failed", count - lines.size()));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;  // up to kFailuresMax
  std::atomic<size_t> count_{0};    // including those beyond
};

class ModelServerImpl final : public ModelServer {
 public:
  explicit ModelServerImpl(const ServiceOptions& options)
      : options_(bounded(options)), scheduler_(limits_of(options_), outcomes()) {}

  Status listen() {
    // Apart, so that a response never waits for requests that take long to decode.
    auto decoder = ThreadPool::start({.name = "flow-decode"});
    FLOW_TRY(decoder);
    decoder_ = std::move(*decoder);
    auto encoder = ThreadPool::start({.name = "flow-encode"});
    FLOW_TRY(encoder);
    encoder_ = std::move(*encoder);
    auto timer = ThreadPool::start({.name = "flow-deadlines"});
    FLOW_TRY(timer);
    timer_ = std::move(*timer);
    HttpOptions http_options{.name = options_.name,
                             .address = options_.address,
                             .port = options_.port,
                             .tls = options_.tls,
                             .limits = options_.limits,
                             .log = [this](const std::string& line) {
                               failures_.add(line);
                               scheduler_.wake();
                             }};
    http_options.rules = {
        .body_max = kRequestBytesMax, .methods = allowed_methods, .hosts = host_names(options_)};
    if (!options_.keys.empty())
      http_options.rules.authorize = [this](std::string_view path, std::string_view value) {
        return needs_no_key(route_of(path).endpoint) || keys_.permit(value);
      };
    auto http = HttpServer::open(http_options, [this](HttpRequest request, HttpReply reply) {
      try {
        handle(request, reply);
      } catch (const std::bad_alloc&) {
        reply.send(memory_response());
      }
    });
    FLOW_TRY(http);
    http_ = std::move(*http);
    return {};
  }

  std::string url() const override {
    std::string host = is_any(options_.address) ? machine_name() : options_.address;
    if (host.find(':') != std::string::npos) host = "[" + host + "]";
    return fmt::format("{}://{}:{}", options_.tls ? "https" : "http", host, http_->port());
  }

  void run(const Predict& predict, const std::function<bool()>& should_stop) override {
    std::promise<size_t> unanswered;
    timer_->post([&] { unanswered.set_value(watch(should_stop)); });
    serves_ = true;
    try {
      scheduler_.run(predict, [this] { failures_.write_to(options_.log); });
    } catch (...) {
      // Nothing predicts any more, and watch() uses what this function and its caller own.
      has_failed_ = true;
      scheduler_.close();
      unanswered.get_future().wait();
      throw;
    }
    size_t count = unanswered.get_future().get();
    failures_.write_to(options_.log);
    if (count > 0 && options_.log)
      options_.log(
          fmt::format("requests that were not answered within {} after the stop of the service "
                      "and got status 503: {}",
                      format_duration(options_.drain_ms), count));
  }

 private:
  // ---- the HTTP server's thread

  void handle(HttpRequest& request, HttpReply& reply) {
    Route route = route_of(request.path);
    if (route.endpoint == Endpoint::statistics && options_.name == "stats")
      route = {.endpoint = Endpoint::model, .model = "stats"};
    bool is_model = has_model(route.endpoint);
    if (is_model && route.model != options_.name)
      return reply.send(error_response(
          404, fmt::format("there is no model `{}` here, only `{}`", route.model, options_.name)));
    if (is_model && !route.version.empty() && route.version != kModelVersion)
      return reply.send(
          error_response(404, fmt::format("`{}` has no version `{}`, only `{}`", options_.name,
                                          route.version, kModelVersion)));
    if (route.endpoint == Endpoint::infer) return infer(request, reply);
    reply.send(describe(route.endpoint));
  }

  HttpResponse describe(Endpoint endpoint) {
    const bool is_ready = serves_ && !is_draining_ && !scheduler_.is_overdue();
    switch (endpoint) {
      case Endpoint::server:
        return {.body = server_metadata()};
      case Endpoint::live:
        return {.body = R"({"live":true})"};
      case Endpoint::ready:
        return ready_response(fmt::format(R"({{"ready":{}}})", is_ready), is_ready);
      case Endpoint::metrics:
        return {.body = metrics_.text(options_.name, {scheduler_.queued(), is_ready}),
                .content_type = std::string(ServiceMetrics::kContentType)};
      case Endpoint::repository_index:
        return {.body = repository_index(options_, is_ready)};
      case Endpoint::repository_load:
        return error_response(503,
                              "models are not loaded or unloaded by requests here: a run of flow "
                              "serves its model until it ends");
      case Endpoint::statistics:
      case Endpoint::model_statistics:
        return {.body = metrics_.statistics(options_.name, kModelVersion)};
      case Endpoint::model:
        return {.body = model_metadata(options_)};
      case Endpoint::model_configuration:
        return {.body = model_configuration(options_)};
      case Endpoint::model_ready:
        return ready_response(fmt::format(R"({{"name":{},"ready":{}}})", model_json_, is_ready),
                              is_ready);
      default:
        return error_response(404, "there is nothing at this path");
    }
  }

  void infer(HttpRequest& request, HttpReply& reply) {
    auto pending = std::make_unique<PendingRequest>();
    pending->reply = std::move(reply);
    pending->arrived = Clock::now();
    Clock::duration timeout = milliseconds(options_.request_timeout_ms);
    if (!request.timeout.empty()) {
      auto asked = parse_request_timeout(request.timeout);
      if (!asked.ok()) return respond(*pending, error_response(400, asked.error().message));
      timeout = std::min<Clock::duration>(timeout, *asked);
    }
    pending->deadline = pending->arrived + timeout;
    pending->accept_encoding = std::move(request.accept_encoding);
    bool is_small = request.body.size() <= kInlineBytesMax && request.content_encoding.empty();
    if (is_small) return decode(request, pending);
    if (scheduler_.is_full()) return reject_full(*pending);
    if (waiting_decodes_ >= kDecodesMax)
      return respond(*pending, busy_response(503,
                                             "too many requests with large or compressed "
                                             "bodies wait here"));
    struct Job {
      HttpRequest request;
      std::unique_ptr<PendingRequest> pending;
    };
    auto job = std::make_shared<Job>(Job{std::move(request), std::move(pending)});
    waiting_decodes_++;
    decoder_->post([this, job] {
      waiting_decodes_--;
      decode(job->request, job->pending);
    });
  }

  // ---- also the decoding thread

  void decode(HttpRequest& request, std::unique_ptr<PendingRequest>& pending) {
    try {
      admit(request, pending);
    } catch (const std::bad_alloc&) {
      if (pending) respond(*pending, memory_response());
    }
  }

  void admit(HttpRequest& request, std::unique_ptr<PendingRequest>& pending) {
    if (!request.content_encoding.empty()) {
      auto plain = decompress(request.content_encoding, request.body, kRequestBytesMax);
      if (plain.error)
        return respond(*pending, error_response(plain.error->status, plain.error->message));
      request.body = std::move(plain.bytes);
    }
    auto parsed = parse_infer_request(std::move(request.body), request.json_bytes);
    if (!parsed.ok()) return respond(*pending, error_response(400, parsed.error().message));
    Status declared = check_inputs(options_.inputs, *parsed);
    if (!declared.ok()) return respond(*pending, error_response(400, declared.error().message));
    pending->request = std::move(*parsed);
    switch (scheduler_.push(pending)) {
      case RequestScheduler::Admission::admitted:
        return;
      case RequestScheduler::Admission::full:
        return reject_full(*pending);
      case RequestScheduler::Admission::too_many_bytes:
        return respond(
            *pending,
            busy_response(429, fmt::format("the queue of `{}` is full: with this request its "
                                           "tensors would have more than {}; try again later",
                                           options_.name,
                                           format_bytes(RequestScheduler::Limits{}.bytes_max))));
      case RequestScheduler::Admission::closed:
        return respond(*pending, stopping_response());
    }
  }

  void reject_full(PendingRequest& pending) {
    respond(pending, busy_response(429, fmt::format("the queue of `{}` is full: it holds {} "
                                                    "requests; try again later",
                                                    options_.name, options_.queue)));
  }

  // ---- the thread of run()

  void finish(PendingRequest& pending, Result<Tensors>& result) {
    if (!result.ok()) return fail(pending, result.error());
    Status declared = check_outputs(options_.outputs, *result);
    if (!declared.ok()) return fail(pending, declared.error());
    uint64_t bytes = bytes_of(*result);
    // Beyond the limit this thread encodes itself, so that predict does not run ahead.
    bool is_inline = bytes <= kInlineBytesMax || encoding_bytes_ + bytes > kEncodeBytesMax;
    if (is_inline) return encode(pending, *result, false);
    struct Job {
      PendingRequest pending;
      Tensors outputs;
    };
    auto job = std::make_shared<Job>(Job{std::move(pending), std::move(*result)});
    encoding_bytes_ += bytes;
    encoder_->post([this, job, bytes] {
      encode(job->pending, job->outputs, true);
      encoding_bytes_ -= bytes;
    });
  }

  // ---- also the encoding thread

  void encode(PendingRequest& pending, const Tensors& outputs, bool is_encoding_thread) {
    try {
      print(pending, outputs, is_encoding_thread);
    } catch (const std::bad_alloc&) {
      respond(pending, memory_response());
    }
  }

  void print(PendingRequest& pending, const Tensors& outputs, bool is_encoding_thread) {
    auto printed = print_infer_response(options_.name, pending.request, outputs);
    if (!printed.ok()) return fail(pending, printed.error());
    HttpResponse response{.body = std::move(printed->body)};
    if (printed->json_bytes > 0) {
      response.content_type = "application/octet-stream";
      response.fields = fmt::format("Inference-Header-Content-Length: {}\r\n", printed->json_bytes);
      return respond(pending, std::move(response));
    }
    bool is_compressed = response.body.size() >= kGzipBytesMin &&
                         !pending.accept_encoding.empty() && accepts_gzip(pending.accept_encoding);
    if (!is_compressed) return respond(pending, std::move(response));
    response.fields = "Content-Encoding: gzip\r\n";
    struct Job {
      HttpReply reply;
      Clock::time_point arrived;
      HttpResponse response;
    };
    auto job =
        std::make_shared<Job>(Job{std::move(pending.reply), pending.arrived, std::move(response)});
    ThreadPool::Job compression = [this, job] {
      try {
        job->response.body = gzip(job->response.body);
      } catch (const std::bad_alloc&) {
        job->response.fields.clear();  // as it is, it has no coding
      }
      respond(job->reply, job->arrived, std::move(job->response));
    };
    if (is_encoding_thread) return compression();
    encoder_->post(std::move(compression));
  }

  void fail(PendingRequest& pending, const Error& error) {
    if (error.kind == ErrorKind::user) return respond(pending, error_response(400, error.message));
    std::string id = cut_text(to_line(pending.request.id), kIdBytesLogged);
    failures_.add(
        fmt::format("request{} failed: {}", id.empty() ? "" : " `" + id + "`", error.message));
    respond(pending, error_response(500, error.message));
    scheduler_.wake();
  }

  // ---- any thread

  void respond(PendingRequest& pending, HttpResponse response) {
    respond(pending.reply, pending.arrived, std::move(response));
  }

  void respond(HttpReply& reply, Clock::time_point arrived, HttpResponse response) {
    metrics_.count_request(response.status, Clock::now() - arrived);
    reply.send(std::move(response));
  }

  void reject(RejectedRequest rejected) {
    if (rejected.status == 503)
      return respond(rejected.reply, rejected.arrived, stopping_response());
    // It arrives if the client has closed only its own direction.
    if (rejected.status == 499)
      return respond(rejected.reply, rejected.arrived,
                     error_response(499,
                                    "the client closed its side of the connection while the "
                                    "request waited: keep it open until the response is "
                                    "there"));
    auto time = std::chrono::ceil<milliseconds>(rejected.deadline - rejected.arrived);
    respond(rejected.reply, rejected.arrived,
            error_response(rejected.status, fmt::format("the request was not answered within {}",
                                                        format_duration(time.count()))));
  }

  void count_call(int64_t rows, Clock::duration duration) {
    metrics_.count_batch(rows, duration);
    if (duration <= milliseconds(options_.request_timeout_ms)) return;
    failures_.add(
        fmt::format("a call of `predict` took {}, longer than the `timeout` of {}",
                    format_duration(std::chrono::duration_cast<milliseconds>(duration).count()),
                    format_duration(options_.request_timeout_ms)));
  }

  // ---- the thread of the deadlines: predict may hang

  /// Returns how many requests were not answered within the time of the drain.
  size_t watch(const std::function<bool()>& should_stop) {
    while (!has_failed_ && !should_stop()) scheduler_.await_deadlines(Clock::now() + kStopCheck);
    is_draining_ = true;
    http_->begin_drain();
    Clock::time_point until = Clock::now() + milliseconds(options_.drain_ms);
    bool is_drained = false;
    while (!is_drained && Clock::now() < until) {
      is_drained = http_->wait_drained(kDrainCheck.count());
      scheduler_.await_deadlines(Clock::now());
    }
    size_t unanswered = scheduler_.close();
    if (!is_drained) http_->wait_drained(kLastResponses.count());
    return unanswered;
  }

  // ---- construction

  RequestScheduler::Outcomes outcomes() {
    return {
        .finished = [this](PendingRequest& pending,
                           Result<Tensors>& result) { finish(pending, result); },
        .rejected = [this](RejectedRequest rejected) { reject(std::move(rejected)); },
        .called = [this](int64_t rows, Clock::duration duration) { count_call(rows, duration); }};
  }

  const ServiceOptions options_;
  const std::string model_json_ = to_json(Value(options_.name));
  const ApiKeys keys_{options_.keys};
  ServiceMetrics metrics_;
  FailureLog failures_;
  RequestScheduler scheduler_;
  std::atomic<uint64_t> encoding_bytes_{0};  // of outputs that wait for the encoding thread
  std::atomic<size_t> waiting_decodes_{0};   // up to kDecodesMax; the HTTP thread adds to it
  std::atomic<bool> serves_{false}, is_draining_{false}, has_failed_{false};
  // Destroyed from the last to the first: requests come from the HTTP server, and jobs of the
  // threads use all above.
  std::unique_ptr<ThreadPool> decoder_, encoder_, timer_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<ModelServer>> ModelServer::open(const ServiceOptions& options) {
  auto server = std::make_unique<ModelServerImpl>(options);
  FLOW_TRY(server->listen());
  return std::unique_ptr<ModelServer>(std::move(server));
}

}  // namespace flow
