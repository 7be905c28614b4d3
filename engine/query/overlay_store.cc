#include "engine/query/overlay_store.hpp"

#include <map>

namespace flow {

namespace {

class Overlay final : public Store {
 public:
  explicit Overlay(const Store* below) : below_(below), above_(make_memory_store()) {}

  Status commit(Batch batch, bool sync) override {
    for (const Batch::Write& write : batch.writes)
      FLOW_CHECK(write.value);  // a read-only store never deletes
    return above_->commit(std::move(batch), sync);
  }

  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    auto row = above_->get(family, key);
    if (below_ == nullptr || !row.ok() || row->has_value()) return row;
    return below_->get(family, key);
  }

  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    auto rows = above_->get_many(family, keys);
    if (below_ == nullptr || !rows.ok()) return rows;
    auto lower = below_->get_many(family, keys);
    FLOW_TRY(lower);
    for (size_t i = 0; i < keys.size(); i++) {
      if (!(*rows)[i]) (*rows)[i] = std::move((*lower)[i]);
    }
    return rows;
  }

  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    std::map<std::string, std::string> rows;
    auto take = [&](std::string_view key, std::string_view value) {
      rows.insert_or_assign(std::string(key), std::string(value));
      return true;
    };
    if (below_ != nullptr) FLOW_TRY(below_->scan(family, prefix, from, take));
    FLOW_TRY(above_->scan(family, prefix, from, take));
    for (const auto& [key, value] : rows) {
      if (!visit(key, value)) break;
    }
    return {};
  }

  uint64_t bytes() const override { return below_ == nullptr ? 0 : below_->bytes(); }

 private:
  const Store* below_;
  std::unique_ptr<Store> above_;
};

}  // namespace

std::unique_ptr<Store> make_overlay(const Store* below) { return std::make_unique<Overlay>(below); }

}  // namespace flow
