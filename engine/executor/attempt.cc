// Messages of an attempt to its worker.
#include "engine/executor/attempt.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/executor/environment.hpp"
#include "engine/executor/processes.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kLogLineMax = 1 << 20;  // a longer one is logged in parts
constexpr uint32_t kWarningStream = 3;
constexpr size_t kMessageMax = 16 << 10;   // of a failure
constexpr size_t kNestedNameMax = 10'000;  // bytes of the name of a dynamic task that calls tasks
constexpr size_t kEvidenceMax = 64 << 10;  // of a failure
constexpr const char* kLingerVariable = "FLOW_LINGER";
constexpr int64_t kLingerMs = 5'000;
constexpr useconds_t kWriterPollUs = 20'000;
constexpr size_t kValueMax = kFrameMax / 2;
// More than a run keeps, so that the head sees and reports that there are too many.
constexpr size_t kMetricNamesMax = 2'000;
constexpr int64_t kProgressUs = 50'000;  // minimum interval of progress messages

/// The folder of a unit's checkpoints. Name, number and key are part of it, so that a step of the
/// same name has another folder.
std::string checkpoint_folder(const wire::Start& start) {
  constexpr size_t kNameMax = 150, kKeyShown = 12;
  std::string name = start.task().substr(0, kNameMax);
  std::replace(name.begin(), name.end(), '/', '_');
  Digest key;
  Digest::from_bytes(start.key(), key);
  return fmt::format("checkpoints/{}/{}.{}-{}", start.id().run(), name, start.id().unit(),
                     key.hex().substr(0, kKeyShown));
}

}  // namespace

Attempt::Attempt(WorkerLink& link, BlobFiles& blobs, Checkpoints& checkpoints, UsageMeter& meter,
                 wire::Start& start, std::string state_dir)
    : link_(link),
      blobs_(blobs),
      checkpoints_(checkpoints),
      start_(start),
      state_dir_(std::move(state_dir)),
      environment_(link.environment(start.id().run())),
      meter_(meter),
      ordered_us_(monotonic_us()) {
  if (start.hide_size() > 0) hide({});
  begin_environment();
  begin_checkpoints();
}

// Most attempts have the same variables as the one before.
void Attempt::begin_environment() const {
  static const std::map<std::string, std::string> kNone{{kVisibleVariable, ""},
                                                        {kOrderVariable, kOrder}};
  bool has_none = start_.env_size() == 0 && start_.gpus_size() == 0 && start_.visible_size() == 0;
  if (has_none) return process_environment().begin(environment_, kNone);
  process_environment().begin(environment_, own_environment());
}

void Attempt::begin_checkpoints() {
  checkpoints_.begin(start_.has_checkpoint() ? start_.checkpoint() : "",
                     [this] { return checkpoint_target(); });
}

Checkpoints::Target Attempt::checkpoint_target() {
  auto commit = [&link = link_, id = start_.id()](const std::string& row,
                                                  const Checkpoints::Blobs& blobs_of_it) {
    wire::FromExecutor message;
    *message.mutable_save()->mutable_id() = id;
    message.mutable_save()->set_value(row);
    for (const auto& [digest, bytes] : blobs_of_it) {
      wire::Blob& blob = *message.mutable_save()->add_blobs();
      blob.set_digest(std::string(digest.view()));
      blob.set_data(bytes);
    }
    link.forget_saved("");
    link.send(message, true);
    return link.wait_saved_in_background(id, "");
  };
  return {checkpoint_folder(start_),
          fmt::format("{}-{}", start_.id().epoch(), start_.id().attempt()), std::move(commit)};
}

Attempt::~Attempt() { process_environment().reset(); }

void Attempt::begin() { began_us_ = begin_function(); }

int64_t Attempt::begin_function() {
  int64_t now_us = monotonic_us();
  stage_us_ = now_us - ordered_us_ - waited_us_;
  meter_.begin(now_us);
  return now_us;
}

void Attempt::end_function(std::optional<int64_t> program_peak) {
  if (ended_us_ != 0 || stage_us_ < 0) return;
  ended_us_ = monotonic_us();
  usage_ = meter_.end(ended_us_);
  if (program_peak) usage_.peak_memory = *program_peak;
}

void Attempt::adopt(const wire::Start& order) {
  *start_.mutable_id() = order.id();
  start_.set_grace_ms(order.grace_ms());
  start_.set_front_lease_ms(order.front_lease_ms());
  start_.set_service_keys(order.service_keys());
  *start_.mutable_hide() = order.hide();
  start_.set_has_checkpoint(order.has_checkpoint());
  start_.set_checkpoint(order.checkpoint());
  checkpoints_.drop();
  begin_checkpoints();
}

void Attempt::reach_outside() {
  keep_descriptors();
  wait_for_cgroup();
  std::map<std::string, std::string> all = *environment_;
  for (auto& [name, value] : own_environment()) all[name] = std::move(value);
  process_environment().show(all, identity());
  link_.wait_until_received();
}

void Attempt::wait_durable() {
  if (std::exchange(is_durable_, true)) return;
  int64_t before = monotonic_us();
  link_.wait_released();
  int64_t waited_us = monotonic_us() - before;
  began_us_ += waited_us;
  waited_us_ += waited_us;
}

void Attempt::hide(const std::vector<std::string>& secrets) {
  std::vector<std::string> all(start_.hide().begin(), start_.hide().end());
  all.insert(all.end(), secrets.begin(), secrets.end());
  secrets_ = Secrets(all, {state_dir_, start_.dir(), start_.id().run()});
}

std::string Attempt::hidden(std::string text) const { return secrets_.hidden(std::move(text)); }

std::string Attempt::shown_command(const Descendant& process) const {
  constexpr size_t kCommandShown = 100;
  std::string text = hidden(process.command);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return cut_text(std::move(text), kCommandShown);
}

// If redaction makes two names equal, the first stays.
Value Attempt::redacted(const Value& value) const {
  if (value.kind() == Value::Kind::string) return Value(hidden(value.as_string()));
  if (value.kind() != Value::Kind::table) return value;
  Value::Table table;
  for (const Value& item : value.as_table().list) table.list.push_back(redacted(item));
  std::set<std::string> names;
  for (const auto& [key, field] : value.as_table().fields) {
    Value name = redacted(key);
    bool is_new = name.kind() != Value::Kind::string || names.insert(name.as_string()).second;
    if (is_new) table.fields.emplace_back(std::move(name), redacted(field));
  }
  return Value(std::move(table));
}

void Attempt::log_stream(uint32_t stream, std::string_view text, bool ends_line) {
  std::string line = hidden(std::string(text));
  int64_t now = now_ms();
  std::lock_guard lock(log_mutex_);
  for (size_t at = 0; at == 0 || at < line.size(); at += kLogLineMax) {
    bool is_last = at + kLogLineMax >= line.size();
    auto entry = log_bound_.add({stream, line.substr(at, kLogLineMax), now}, ends_line && is_last);
    if (entry) send_log(*entry);
  }
}

void Attempt::warn(const std::string& text) { log_stream(kWarningStream, "warning: " + text); }

void Attempt::send_log(const LogBound::Entry& entry) {
  wire::FromExecutor message;
  *message.mutable_log()->mutable_id() = start_.id();
  message.mutable_log()->set_stream(entry.stream);
  message.mutable_log()->set_text(entry.text);
  message.mutable_log()->set_at_ms(entry.at_ms);
  link_.send(message, false);
}

void Attempt::log_chunk(std::string& line) {
  std::string rest = hide_begun(line);
  if (!line.empty()) log_stream(0, line, false);
  line = std::move(rest);
}

void Attempt::progress(double fraction, const Value& metrics) {
  if (!is_first()) return;
  int64_t now = monotonic_us();
  if (now - last_progress_us_ < kProgressUs && fraction < 1) return;
  last_progress_us_ = now;
  wire::FromExecutor message;
  *message.mutable_progress()->mutable_id() = start_.id();
  message.mutable_progress()->set_fraction(fraction);
  message.mutable_progress()->set_metrics(
      encode_value(secrets_.empty() ? metrics : redacted(metrics)));
  link_.send(message, true);
}

void Attempt::metric(const std::string& name, double value, std::optional<int64_t> step) {
  if (!is_first()) return;
  auto found = metric_steps_.find(name);
  if (found == metric_steps_.end()) {
    if (metric_steps_.size() >= kMetricNamesMax) return;
    found = metric_steps_.emplace(name, 0).first;
  }
  if (!step && found->second < INT64_MAX) step = found->second + 1;
  found->second = step.value_or(INT64_MAX);
  wire::FromExecutor message;
  *message.mutable_metric()->mutable_id() = start_.id();
  message.mutable_metric()->set_name(name);
  message.mutable_metric()->set_value(value);
  message.mutable_metric()->set_step(found->second);
  message.mutable_metric()->set_at_ms(now_ms());
  link_.send(message, false);
}

Status Attempt::save_checkpoint(Value value) {
  if (!is_first()) return {};
  if (holds_tensors(value)) wait_durable();  // begin a file
  std::vector<Digest> needed;
  collect_blobs(files_in(value), needed);
  return note_write_error(checkpoints_.save(value, blobs_.copies_of(needed), metric_steps_));
}

Result<std::optional<Value>> Attempt::newest_checkpoint() {
  if (restored_) {
    metric_steps_ = restored_metric_steps_;
    return *restored_;
  }
  FLOW_TRY(note_write_error(checkpoints_.finish()));
  return note_error(checkpoints_.newest(&metric_steps_));
}

bool Attempt::close_checkpoints(AttemptOutcome::Kind kind) {
  bool has_result = kind == AttemptOutcome::Kind::succeeded;
  Status written = has_result ? checkpoints_.error() : checkpoints_.finish();
  if (has_result) checkpoints_.drop();
  if (written.ok() || written.error().kind == ErrorKind::environment) return true;
  if (has_result || kind == AttemptOutcome::Kind::failed) {
    log(written.error().message);
    return true;
  }
  fail(core::Cause::staging, written.error().message, "");
  return false;
}

Status Attempt::save_step(const std::string& name, const Value& value) {
  if (!is_first()) return {};
  FLOW_TRY(note_write_error(checkpoints_.error()));
  wire::FromExecutor message;
  *message.mutable_save()->mutable_id() = start_.id();
  message.mutable_save()->set_name(name);
  message.mutable_save()->set_value(encode_value(value));
  if (message.save().value().size() > kValueMax)
    return user_error(too_large("saved", message.save().value().size()));
  link_.forget_saved(name);
  for (auto& [digest, bytes] : blobs_.take_small()) {
    wire::Blob& blob = *message.mutable_save()->add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
  link_.send(message, true);
  if (link_.wait_saved(name)) return {};
  return environment_error(
      "this attempt has lost its lease: another one may run, so it can't save any more");
}

void Attempt::service_ready(const std::string& url) {
  wire::FromExecutor message;
  *message.mutable_ready()->mutable_id() = start_.id();
  message.mutable_ready()->set_url(url);
  link_.send(message, true);
}

Result<int64_t> Attempt::linger_ms() const {
  std::map<std::string, std::string> variables = environment();
  auto found = variables.find(kLingerVariable);
  if (found == variables.end() || found->second.empty()) return kLingerMs;
  auto duration = parse_duration_ms(found->second);
  if (duration.ok()) return duration;
  return user_error(fmt::format("the environment variable `{}` of `{}` is not a duration: {}",
                                kLingerVariable, shown_task(), duration.error().message));
}

// A program that the task started, for example in the background of os.execute, may still be
// writing. Without a child there is none, and /proc is not read.
Status Attempt::wait_for_writers(const std::string& path) {
  if (!has_children()) return {};
  auto linger = linger_ms();
  FLOW_TRY(linger);
  std::filesystem::path wanted = std::filesystem::path(path).lexically_normal();
  std::error_code ignored;
  bool is_folder = std::filesystem::is_directory(wanted, ignored);
  std::string folder = (is_folder ? wanted : wanted.parent_path()).string();
  std::string name = is_folder ? "" : wanted.filename().string();
  auto writer_of = [&](const Descendant& each) {
    return is_folder ? !each.writes.empty()
                     : std::find(each.writes.begin(), each.writes.end(), name) != each.writes.end();
  };
  for (int64_t until_us = monotonic_us() + *linger * 1000;;) {
    std::vector<Descendant> all = descendants(folder, false);
    auto writer = std::find_if(all.begin(), all.end(), writer_of);
    if (writer == all.end()) return {};
    if (monotonic_us() >= until_us || stopping())
      return user_error(fmt::format(
          "`{}` still has `{}` open for writing: wait for that process before the file is "
          "returned, or give it more time with the environment variable {} ({})",
          shown_command(*writer), path, kLingerVariable, format_duration(*linger)));
    ::usleep(kWriterPollUs);
  }
}

Status Attempt::store_tensor(const Tensor& tensor) {
  if (serving_ || !is_first()) return {};  // no task takes an HTTP response as an input
  wait_durable();
  return note_error(blobs_.store(tensor.digest, *tensor.data));
}

std::map<std::string, std::string> Attempt::environment() const {
  std::map<std::string, std::string> all = *environment_;
  for (auto& [name, value] : own_environment()) all[name] = std::move(value);
  for (auto& [name, value] : identity()) all[name] = std::move(value);
  return all;
}

std::map<std::string, std::string> Attempt::own_environment() const {
  std::map<std::string, std::string> own;
  for (const wire::EnvVar& variable : start_.env()) own[variable.name()] = variable.value();
  if (may_choose_gpus()) own[kVisibleVariable] = visible_gpus();
  own[kOrderVariable] = kOrder;
  return own;
}

std::map<std::string, std::string> Attempt::identity() const {
  std::map<std::string, std::string> identity{
      {kRunVariable, start_.id().run()},
      {kTaskVariable, start_.task()},
      {kAttemptVariable, std::to_string(start_.id().attempt())},
      {kSlotVariable, process_environment().slot()}};
  if (!start_.traceparent().empty()) identity[kTraceVariable] = start_.traceparent();
  return identity;
}

std::string Attempt::profile_name() const {
  constexpr size_t kTaskMax = 150;
  std::string name =
      fmt::format("{} #{}", cut_text(hidden(shown_task()), kTaskMax), start_.id().attempt());
  return start_.ranks() > 1 ? fmt::format("{} rank {}", name, start_.id().rank()) : name;
}

std::string Attempt::visible_gpus() const {
  return fmt::format("{}",
                     fmt::join(start_.visible_size() > 0 ? start_.visible() : start_.gpus(), ","));
}

bool Attempt::may_choose_gpus() const {
  auto names_them = [](const wire::EnvVar& variable) {
    return variable.name() == kVisibleVariable;
  };
  return start_.gpus_size() > 0 ||
         std::none_of(start_.env().begin(), start_.env().end(), names_them);
}

std::string Attempt::env(const std::string& name, bool& found) {
  found = true;
  if (name.starts_with("FLOW_") || name == kTraceVariable) {
    auto known = identity();
    if (auto variable = known.find(name); variable != known.end()) return variable->second;
  }
  if (name == kVisibleVariable && may_choose_gpus()) return visible_gpus();
  if (name == kOrderVariable) return kOrder;
  for (const wire::EnvVar& variable : start_.env()) {
    if (variable.name() != name) continue;
    found = true;
    return variable.value();
  }
  auto variable = environment_->find(name);
  found = variable != environment_->end();
  return found ? variable->second : "";
}

wire::Finished& Attempt::report(uint32_t outcome) {
  checkpoints_.drop();  // no report of an attempt may follow its end
  for (const LogBound::Entry& entry : log_bound_.finish()) send_log(entry);
  message_.Clear();
  wire::Finished& finished = *message_.mutable_finished();
  *finished.mutable_id() = start_.id();
  finished.set_outcome(outcome);
  int64_t now_us = monotonic_us();
  finished.set_duration_us(now_us - began_us_);
  put_usage(now_us, finished);
  return finished;
}

void Attempt::put_usage(int64_t now_us, wire::Finished& finished) {
  end_function();
  wire::Usage& usage = *finished.mutable_usage();
  // An attempt that failed before its function began has only staged.
  usage.set_stage_us(stage_us_ >= 0 ? stage_us_ : now_us - ordered_us_ - waited_us_);
  if (ended_us_ == 0) return;
  usage.set_commit_us(std::max<int64_t>(0, now_us - ended_us_));
  if (usage_.cpu_us >= 0) usage.set_cpu_us(usage_.cpu_us);
  if (usage_.peak_memory >= 0) usage.set_peak_memory(usage_.peak_memory);
  if (usage_.read_bytes >= 0) usage.set_read_bytes(usage_.read_bytes);
  if (usage_.written_bytes >= 0) usage.set_written_bytes(usage_.written_bytes);
  if (leave_wait_us_ >= 0) usage.set_leave_wait_us(leave_wait_us_);
}

std::string Attempt::too_large(const char* verb, size_t size) const {
  return fmt::format(
      "`{}` {} a value of {} MiB; tables and strings up to {} MiB can cross an edge: use a tensor "
      "or a file",
      shown_task(), verb, size >> 20, kValueMax >> 20);
}

std::string Attempt::nested_too_deep() const {
  constexpr size_t kShown = 100;
  return fmt::format(
      "`{}…` calls tasks, and its name already has {} bytes, because each dynamic task within "
      "another adds its name: at most {} are allowed. A dynamic task that calls itself needs a "
      "condition that ends it",
      cut_text(start_.task(), kShown), start_.task().size(), kNestedNameMax);
}

Status Attempt::load_checkpoint() {
  auto newest = newest_checkpoint();
  FLOW_TRY(newest);
  restored_.emplace(std::move(*newest));
  restored_metric_steps_ = std::exchange(metric_steps_, {});
  return {};
}

void Attempt::finish(const Value& result, const PlanFragment* fragment, bool waited) {
  wire::Finished& finished = report(0);
  if (!is_first()) {
    finished.set_value(encode_value(Value()));
    return link_.send(message_, true);
  }
  finished.set_value(encode_value(result));
  finished.set_waited(waited);
  bool calls_tasks = fragment != nullptr && !fragment->nodes.empty();
  if (calls_tasks && start_.task().size() > kNestedNameMax)
    return fail(core::Cause::user_error, nested_too_deep(), "");
  if (fragment != nullptr) finished.set_fragment(encode_fragment(*fragment));
  for (auto& [digest, bytes] : blobs_.take_small()) {
    wire::Blob& blob = *finished.add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
  if (finished.value().size() > kValueMax)
    return fail(core::Cause::bad_result, too_large("returned", finished.value().size()), "");
  link_.send(message_, !link_.has_queued());
}

void Attempt::fail(core::Cause cause, std::string message, std::string evidence, int code,
                   bool of_gang) {
  wire::Finished& finished = report(1);
  finished.set_of_gang(of_gang);
  finished.set_cause(static_cast<uint32_t>(cause));
  finished.set_message(cut_text(hidden(std::move(message)), kMessageMax));
  finished.set_evidence(cut_text(hidden(std::move(evidence)), kEvidenceMax));
  finished.set_code(code);
  link_.send(message_, true);
}

void Attempt::fail(const AttemptOutcome& outcome) {
  bool is_environments =
      !environment_fault_.empty() && outcome.message.find(environment_fault_) != std::string::npos;
  core::Cause cause = outcome.out_of_memory ? core::Cause::out_of_memory
                      : is_environments     ? core::Cause::staging
                      : outcome.bad_result  ? core::Cause::bad_result
                                            : core::Cause::user_error;
  fail(cause, outcome.message + hint_of_gpus(outcome.message), outcome.traceback);
}

std::string Attempt::hint_of_gpus(const std::string& message) const {
  size_t at = message.find(" can't be used: ");
  bool is_unseen = at != std::string::npos && message.rfind("cuda", at) != std::string::npos;
  if (!is_unseen || start_.gpus_size() > 0) return "";
  return fmt::format(
      "\n`{}` asks for no GPU, and so sees none: write `gpus = 1`, or a fraction that "
      "shares one, in its options",
      shown_task());
}

void Attempt::stopped(std::string evidence) {
  report(3).set_evidence(hidden(std::move(evidence)));
  link_.send(message_, true);
}

void Attempt::waiting(const std::string& signal, const std::string& name, int64_t timeout_ms) {
  wire::Finished& finished = report(2);
  finished.set_signal(signal);
  finished.set_wait_name(name);
  finished.set_wait_timeout_ms(timeout_ms);
  link_.send(message_, true);
}

}  // namespace flow
