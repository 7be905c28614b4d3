// `newer STATE format|journal|family`: makes a state look as if a newer flow had written it.
// `newer STATE older`: as if a flow without metrics had written it.
#include <rocksdb/db.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/store/checksum.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"

namespace {

rocksdb::Status change_families(const std::string& database, bool is_newer) {
  std::vector<std::string> names;
  rocksdb::Status done = rocksdb::DB::ListColumnFamilies({}, database, &names);
  if (!done.ok()) return done;
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  done = rocksdb::DB::Open({}, database, families, &handles, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!done.ok()) return done;
  if (is_newer) {
    handles.push_back(nullptr);
    done = db->CreateColumnFamily({}, "of_a_newer_flow", &handles.back());
  }
  for (size_t i = 0; i < names.size() && !is_newer; i++) {
    if (done.ok() && names[i] == "metrics") done = db->DropColumnFamily(handles[i]);
  }
  for (rocksdb::ColumnFamilyHandle* handle : handles)
    if (handle != nullptr) (void)db->DestroyColumnFamilyHandle(handle);
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: newer STATE format|journal|family|older\n"), 2;
  std::string what = argv[2];
  if (what == "family" || what == "older") {
    rocksdb::Status done = change_families(argv[1] + std::string("/db"), what == "family");
    if (!done.ok()) return std::fprintf(stderr, "%s\n", done.ToString().c_str()), 4;
    return 0;
  }
  auto store = flow::open_store(argv[1]);
  if (!store) return std::fprintf(stderr, "%s\n", store.error().message.c_str()), 4;
  flow::Batch batch;
  if (what == "format") {
    batch.put(flow::Family::meta, "format", "99");
  } else {
    std::string record("\x08\x63", 2);  // schema 99 and no other field
    flow::seal(record);
    batch.put(flow::Family::journal, flow::journal_key(uint64_t{1} << 40), record);
  }
  flow::Status done = (*store)->commit(batch);
  if (!done) return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 4;
  return 0;
}
