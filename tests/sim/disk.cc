#include "tests/sim/disk.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace flow::sim {

namespace {

void put_number(uint32_t number, std::string& out) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof bytes);
}

std::optional<uint32_t> take_number(std::string_view& bytes) {
  uint32_t number = 0;
  if (bytes.size() < sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

std::optional<std::string> take_text(std::string_view& bytes) {
  auto size = take_number(bytes);
  if (!size || bytes.size() < *size) return std::nullopt;
  std::string text(bytes.substr(0, *size));
  bytes.remove_prefix(*size);
  return text;
}

void put_text(std::string_view text, std::string& out) {
  put_number(static_cast<uint32_t>(text.size()), out);
  out += text;
}

/// A record of the log: its size, then its writes.
std::string encode_batch(const Batch& batch) {
  std::string body;
  for (const Batch::Write& write : batch.writes) {
    body += static_cast<char>(write.family);
    body += write.value ? 'p' : 'e';
    put_text(write.key, body);
    if (write.value) put_text(*write.value, body);
  }
  std::string record;
  put_text(body, record);
  return record;
}

Batch decode_batch(std::string_view body) {
  Batch batch;
  while (!body.empty()) {
    auto family = static_cast<Family>(body[0]);
    bool is_put = body[1] == 'p';
    body.remove_prefix(2);
    std::string key = *take_text(body);
    if (is_put) {
      batch.put(family, std::move(key), *take_text(body));
    } else {
      batch.erase(family, std::move(key));
    }
  }
  return batch;
}

class DiskStore final : public Store {
 public:
  explicit DiskStore(Disk& disk) : disk_(disk) {}

  Status commit(Batch batch, bool sync) override { return disk_.commit(batch, sync); }

  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    const Disk::Rows& rows = disk_.rows(family);
    auto row = rows.find(key);
    return row == rows.end() ? std::optional<std::string>() : std::optional(row->second);
  }

  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    std::vector<std::optional<std::string>> rows;
    for (std::string_view key : keys) rows.push_back(*get(family, key));
    return rows;
  }

  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    const Disk::Rows& rows = disk_.rows(family);
    for (auto row = rows.lower_bound(std::max(prefix, from));
         row != rows.end() && row->first.starts_with(prefix); ++row) {
      if (!visit(row->first, row->second)) break;
    }
    return {};
  }

  uint64_t bytes() const override { return 0; }

 private:
  Disk& disk_;
};

}  // namespace

Disk::Disk(Random& random, std::function<DiskFault()> fault,
           std::function<void(const Batch&)> on_durable)
    : random_(random), fault_(std::move(fault)), on_durable_(std::move(on_durable)) {}

Status Disk::commit(const Batch& batch, bool sync) {
  DiskFault fault = fault_();
  if (fault == DiskFault::crash_before) throw HeadCrash();
  std::string record = encode_batch(batch);
  bool is_cut = fault == DiskFault::crash_within || fault == DiskFault::fails;
  if (is_cut) record.resize(random_.below(static_cast<uint32_t>(record.size() + 1)));
  log_ += record;
  undurable_.emplace_back(log_.size(), batch);
  // A restart finds out from the bytes whether a cut record is whole.
  if (is_cut) undurable_.back().first = SIZE_MAX;
  if (fault == DiskFault::fails) return environment_error("the simulated disk failed");
  if (fault == DiskFault::crash_within) throw HeadCrash();
  apply(batch);
  if (sync) {
    synced_ = log_.size();
    report_durable(synced_);
  }
  if (fault == DiskFault::crash_after) throw HeadCrash();
  return {};
}

void Disk::apply(const Batch& batch) {
  for (const Batch::Write& write : batch.writes) {
    Rows& rows = rows_[static_cast<size_t>(write.family)];
    if (write.value) {
      rows[write.key] = *write.value;
    } else {
      rows.erase(write.key);
    }
  }
}

void Disk::report_durable(size_t end) {
  while (!undurable_.empty() && undurable_.front().first <= end) {
    Batch batch = std::move(undurable_.front().second);
    undurable_.pop_front();
    on_durable_(batch);
  }
}

void Disk::restart(bool is_power_cut) {
  if (is_power_cut) {
    auto unsynced = static_cast<uint32_t>(log_.size() - synced_);
    log_.resize(synced_ + random_.below(unsynced + 1));
  }
  for (Rows& rows : rows_) rows.clear();
  std::string_view left = log_;
  size_t end = 0, known = 0;
  for (auto body = take_text(left); body; body = take_text(left)) {
    Batch batch = decode_batch(*body);
    apply(batch);
    end = log_.size() - left.size();
    // A record that was whole though its commit failed, or did not return.
    if (end > synced_ && known < undurable_.size()) undurable_[known++].first = end;
  }
  undurable_.resize(known);
  log_.resize(end);
  synced_ = end;
  report_durable(end);
}

void Disk::lose(Family family, std::string key) {
  Batch batch;
  batch.erase(family, std::move(key));
  log_ += encode_batch(batch);
  synced_ = log_.size();
  apply(batch);
}

std::unique_ptr<Store> make_disk_store(Disk& disk) { return std::make_unique<DiskStore>(disk); }

}  // namespace flow::sim
