// A service continues when its engine ends, until another engine adopts it or its lease is over.
#pragma once
#include <functional>
#include <memory>

#include "engine/executor/adoption.hpp"
#include "engine/executor/attempt.hpp"

namespace flow {

/// Lets the process outlive its worker while this exists.
class ServiceLease {
 public:
  /// `on_adopted` is called on the thread that reads the connection to the worker, when
  /// WorkerLink::take_adoption() has an order.
  ServiceLease(Attempt& attempt, std::function<void()> on_adopted);
  ~ServiceLease();
  ServiceLease(const ServiceLease&) = delete;
  ServiceLease& operator=(const ServiceLease&) = delete;

  /// The attempt was adopted: the times are those of its order.
  void renew();

 private:
  Attempt& attempt_;
  std::shared_ptr<Adoption> adoption_;  // the thread that waits for another worker shares it
};

}  // namespace flow
