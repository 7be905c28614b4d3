// The two memtables that make one.
#include "engine/store/hashed_memtable.hpp"

namespace flow {

namespace {

class HashedRep final : public rocksdb::MemTableRep {
 public:
  HashedRep(rocksdb::Allocator* allocator, rocksdb::MemTableRep* hashed,
            rocksdb::MemTableRep* listed)
      : MemTableRep(allocator), hashed_(hashed), listed_(listed) {}

  rocksdb::KeyHandle Allocate(const size_t size, char** buffer) override {
    rocksdb::KeyHandle handle = hashed_->Allocate(size, buffer);
    row_ = *buffer;
    return handle;
  }
  void Insert(rocksdb::KeyHandle handle) override {
    hashed_->Insert(handle);
    listed_->Insert(row_);  // a vector's handle is the row itself
  }
  bool Contains(const char* key) const override { return hashed_->Contains(key); }
  void MarkReadOnly() override {
    hashed_->MarkReadOnly();
    listed_->MarkReadOnly();
  }
  void Get(const rocksdb::LookupKey& key, void* arguments,
           bool (*callback)(void* argument, const char* entry)) override {
    hashed_->Get(key, arguments, callback);
  }
  size_t ApproximateMemoryUsage() override {
    return hashed_->ApproximateMemoryUsage() + listed_->ApproximateMemoryUsage();
  }
  Iterator* GetIterator(rocksdb::Arena* arena) override { return listed_->GetIterator(arena); }
  Iterator* GetDynamicPrefixIterator(rocksdb::Arena* arena) override {
    return hashed_->GetDynamicPrefixIterator(arena);
  }

 private:
  std::unique_ptr<rocksdb::MemTableRep> hashed_, listed_;
  char* row_ = nullptr;  // the newest that was allocated
};

class HashedFactory final : public rocksdb::MemTableRepFactory {
 public:
  explicit HashedFactory(size_t buckets) : hashed_(rocksdb::NewHashLinkListRepFactory(buckets)) {}

  const char* Name() const override { return "flow.hashed"; }
  using rocksdb::MemTableRepFactory::CreateMemTableRep;
  rocksdb::MemTableRep* CreateMemTableRep(const rocksdb::MemTableRep::KeyComparator& order,
                                          rocksdb::Allocator* allocator,
                                          const rocksdb::SliceTransform* prefix,
                                          rocksdb::Logger* logger) override {
    return new HashedRep(allocator, hashed_->CreateMemTableRep(order, allocator, prefix, logger),
                         listed_.CreateMemTableRep(order, allocator, prefix, logger));
  }

 private:
  std::unique_ptr<rocksdb::MemTableRepFactory> hashed_;
  rocksdb::VectorRepFactory listed_;
};

}  // namespace

std::shared_ptr<rocksdb::MemTableRepFactory> hashed_memtable(size_t buckets) {
  return std::make_shared<HashedFactory>(buckets);
}

}  // namespace flow
