// Encodes and decodes rows as Protocol Buffers.
#include "engine/store/rows.hpp"

#include "engine/store/rows.pb.h"

namespace flow {

namespace {

std::string bytes_of(const Digest& digest) { return std::string(digest.view()); }

Error damaged(const char* what) {
  return environment_error(std::string("the state holds a damaged ") + what);
}

template <typename Message>
bool parse(Message& message, std::string_view bytes) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace

std::string encode_run_record(const RunRecord& r) {
  row::Run m;
  m.set_id(r.id);
  m.set_name(r.name);
  m.set_pipeline(r.pipeline);
  m.set_status(r.status);
  m.set_submitted(r.submitted);
  m.set_finished(r.finished);
  row::Counts& c = *m.mutable_counts();
  c.set_succeeded(r.counts.succeeded);
  c.set_cached(r.counts.cached);
  c.set_failed(r.counts.failed);
  c.set_skipped(r.counts.skipped);
  c.set_cancelled(r.counts.cancelled);
  c.set_pending(r.counts.pending);
  c.set_ready(r.counts.ready);
  c.set_running(r.counts.running);
  c.set_waiting(r.counts.waiting);
  c.set_ignored(r.counts.ignored);
  m.set_retried(r.retried);
  m.set_script(r.script);
  m.set_directory(r.directory);
  m.set_params(r.params);
  if (r.has_result) m.set_result(bytes_of(r.result));
  m.set_plan(bytes_of(r.plan_digest));
  m.set_bundle(bytes_of(r.bundle_digest));
  m.set_fresh(r.fresh);
  m.set_fail_fast(r.fail_fast);
  return m.SerializeAsString();
}

Result<RunRecord> decode_run_record(std::string_view bytes) {
  row::Run m;
  if (!parse(m, bytes)) return damaged("row of a run");
  RunRecord r;
  r.id = m.id();
  r.name = m.name();
  r.pipeline = m.pipeline();
  r.status = m.status();
  r.submitted = m.submitted();
  r.finished = m.finished();
  const row::Counts& c = m.counts();
  r.counts = {c.succeeded(), c.cached(), c.failed(),  c.skipped(), c.cancelled(),
              c.pending(),   c.ready(),  c.running(), c.waiting(), c.ignored()};
  r.retried = m.retried();
  r.script = m.script();
  r.directory = m.directory();
  r.params = m.params();
  r.has_result = !m.result().empty();
  bool ok = !r.has_result || Digest::from_bytes(m.result(), r.result);
  ok = ok && Digest::from_bytes(m.plan(), r.plan_digest) &&
       Digest::from_bytes(m.bundle(), r.bundle_digest);
  if (!ok) return damaged("row of a run");
  r.fresh = m.fresh();
  r.fail_fast = m.fail_fast();
  return r;
}

std::string encode_cache_entry(const CacheEntry& e) {
  row::Cache m;
  m.set_result(bytes_of(e.result));
  if (e.has_fragment) m.set_fragment(bytes_of(e.fragment));
  m.set_run(e.run);
  m.set_has_wait(e.has_wait);
  m.set_is_file(e.is_file);
  m.set_content(e.refers_to_blobs ? 2 : 1);
  m.set_size(e.size);
  m.set_value(e.value);
  return m.SerializeAsString();
}

Result<CacheEntry> decode_cache_entry(std::string_view bytes) {
  row::Cache m;
  CacheEntry e;
  if (!parse(m, bytes) || !Digest::from_bytes(m.result(), e.result)) return damaged("cache entry");
  e.has_fragment = !m.fragment().empty();
  if (e.has_fragment && !Digest::from_bytes(m.fragment(), e.fragment))
    return damaged("cache entry");
  e.run = m.run();
  e.has_wait = m.has_wait();
  e.is_file = m.is_file();
  e.refers_to_blobs = m.content() != 1;  // unknown in older rows: the result is read
  e.size = m.size();
  e.value = m.value();
  return e;
}

std::string encode_log(const LogRow& l) {
  row::Log m;
  m.set_attempt(l.attempt);
  m.set_stream(l.stream);
  m.set_at(l.at);
  m.set_text(l.text);
  m.set_rank(l.rank);
  return m.SerializeAsString();
}

Result<LogRow> decode_log(std::string_view bytes) {
  row::Log m;
  if (!parse(m, bytes)) return damaged("log line");
  return LogRow{m.attempt(), m.stream(), m.at(), m.text(), m.rank()};
}

std::string encode_metric(const MetricRow& point) {
  row::Metric m;
  m.set_step(point.step);
  m.set_value(point.value);
  m.set_at(point.at);
  m.set_assigned(point.assigned);
  m.set_attempt(point.attempt);
  return m.SerializeAsString();
}

Result<MetricRow> decode_metric(std::string_view bytes) {
  row::Metric m;
  if (!parse(m, bytes)) return damaged("point of a metric");
  return MetricRow{m.step(), m.value(), m.at(), m.assigned(), m.attempt()};
}

std::string encode_attempt(const AttemptRow& row) {
  row::Attempt m;
  m.set_attempt(row.attempt);
  m.set_assigned(row.assigned);
  m.set_ended(row.ended);
  m.set_queue_us(row.queue_us);
  m.set_stage_us(row.stage_us);
  m.set_commit_us(row.commit_us);
  m.set_worker(row.worker);
  m.set_outcome(row.outcome);
  m.set_cause(row.cause);
  for (const std::string& gpu : row.gpus) m.add_gpus(gpu);
  m.set_ranks(row.ranks);
  return m.SerializeAsString();
}

Result<AttemptRow> decode_attempt(std::string_view bytes) {
  row::Attempt m;
  if (!parse(m, bytes) || m.attempt() == 0) return damaged("ended attempt");
  AttemptRow row;
  row.attempt = m.attempt();
  row.assigned = m.assigned();
  row.ended = m.ended();
  row.queue_us = m.queue_us();
  row.stage_us = m.stage_us();
  row.commit_us = m.commit_us();
  row.worker = m.worker();
  row.outcome = m.outcome();
  row.cause = m.cause();
  row.gpus.assign(m.gpus().begin(), m.gpus().end());
  row.ranks = m.ranks();
  return row;
}

std::string encode_metric_stride(uint64_t stride) {
  row::MetricThinning m;
  m.set_stride(stride);
  return m.SerializeAsString();
}

Result<uint64_t> decode_metric_stride(std::string_view bytes) {
  row::MetricThinning m;
  if (!parse(m, bytes) || m.stride() == 0) return damaged("series of a metric");
  return m.stride();
}

}  // namespace flow
