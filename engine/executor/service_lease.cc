#include "engine/executor/service_lease.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/executor/environment.hpp"

namespace flow {

namespace {

ReplicaRecord record_of(const wire::Start& start) {
  ReplicaRecord record = own_replica_record(process_environment().slot());
  record.run = start.id().run();
  record.unit = start.id().unit();
  Digest::from_bytes(start.key(), record.key);
  record.options = options_of(start);
  record.gpus.assign(start.gpus().begin(), start.gpus().end());
  record.front = start.front();
  return record;
}

}  // namespace

ServiceLease::ServiceLease(Attempt& attempt, std::function<void()> on_adopted) : attempt_(attempt) {
  auto adoption = Adoption::open(attempt.state_dir(), record_of(attempt.start()));
  if (!adoption.ok()) {
    attempt.log(fmt::format("the service will end with its engine: {}", adoption.error().message));
    return;
  }
  adoption_ = std::move(*adoption);
  attempt.link().set_on_adopted(std::move(on_adopted));
  renew();
}

ServiceLease::~ServiceLease() {
  attempt_.link().set_on_lost({});
  attempt_.link().set_on_adopted({});
}

void ServiceLease::renew() {
  if (adoption_ == nullptr) return;
  const wire::Start& start = attempt_.start();
  adoption_->update(record_of(start));  // after new code the unit may have another number
  attempt_.link().set_on_lost(
      [adoption = adoption_, ms = start.front_lease_ms()] { return adoption->await(ms); },
      start.grace_ms());
}

}  // namespace flow
