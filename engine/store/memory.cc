// The store in memory: the same interface for tests.
#include <map>
#include <mutex>

#include "engine/store/store.hpp"

namespace flow {

namespace {

class MemoryStore final : public Store {
 public:
  Status commit(Batch batch, bool) override {
    std::lock_guard lock(mutex_);
    for (Batch::Write& write : batch.writes) {
      auto& rows = families_[write.family];
      if (write.value) {
        rows[write.key] = std::move(*write.value);
      } else {
        rows.erase(write.key);
      }
    }
    return {};
  }

  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    std::lock_guard lock(mutex_);
    auto rows = families_.find(family);
    if (rows == families_.end()) return std::optional<std::string>();
    auto row = rows->second.find(std::string(key));
    if (row == rows->second.end()) return std::optional<std::string>();
    return std::optional<std::string>(row->second);
  }

  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    std::vector<std::optional<std::string>> rows;
    for (std::string_view key : keys) rows.push_back(*get(family, key));
    return rows;
  }

  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    std::map<std::string, std::string> rows;
    {
      std::lock_guard lock(mutex_);
      auto found = families_.find(family);
      if (found != families_.end()) rows = found->second;
    }
    for (auto row = rows.lower_bound(std::string(std::max(prefix, from)));
         row != rows.end() && row->first.starts_with(prefix); ++row) {
      if (!visit(row->first, row->second)) break;
    }
    return {};
  }

  uint64_t bytes() const override {
    std::lock_guard lock(mutex_);
    uint64_t total = 0;
    for (const auto& [family, rows] : families_) {
      for (const auto& [key, value] : rows) total += key.size() + value.size();
    }
    return total;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Family, std::map<std::string, std::string>> families_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace flow
