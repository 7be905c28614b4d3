// `newer STATE format|journal`: makes a state look as if a newer flow had written it.
#include <cstdio>
#include <string>

#include "engine/store/checksum.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: newer STATE format|journal\n"), 2;
  auto store = flow::open_store(argv[1]);
  if (!store) return std::fprintf(stderr, "%s\n", store.error().message.c_str()), 4;
  flow::Batch batch;
  if (argv[2] == std::string("format")) {
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
