// Refuses what a newer flow wrote.
#include "engine/store/journal_schema.hpp"

#include <fmt/format.h>

namespace flow {

namespace {

constexpr bool has_no_gap() {
  uint32_t next = 1;
  for (const JournalSchema& schema : kJournalSchemas) {
    if (schema.number != next++) return false;
  }
  return true;
}
static_assert(has_no_gap());

}  // namespace

Status check_schema(uint32_t schema, std::string_view what) {
  if (schema > kJournalSchema) {
    return environment_error(
        fmt::format("the {} was written by a newer version of flow (schema {}, this program knows "
                    "{}): use that version, or a newer one",
                    what, schema, kJournalSchema));
  }
  if (schema == 0)
    return environment_error(fmt::format(
        "{} has no schema", what == "journal" ? "a batch of the journal" : "a snapshot"));
  return {};
}

}  // namespace flow
