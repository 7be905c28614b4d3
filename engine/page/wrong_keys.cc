#include "engine/page/wrong_keys.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace flow {

namespace {

/// The bytes of an IPv4 address, or the /64 network of an IPv6 address, which usually has one
/// owner.
std::string network_of(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  const std::string number = address.substr(0, address.find('%'));  // without the interface
  if (::inet_pton(AF_INET, number.c_str(), &v4) == 1)
    return std::string(reinterpret_cast<const char*>(&v4), sizeof v4);
  if (::inet_pton(AF_INET6, number.c_str(), &v6) != 1) return address;
  const char* bytes = reinterpret_cast<const char*>(&v6);
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return std::string(bytes + 12, 4);
  return std::string(bytes, 8);
}

}  // namespace

std::chrono::seconds WrongKeys::wait(const std::string& address, Clock::time_point now) const {
  auto found = clients_.find(network_of(address));
  if (found == clients_.end() || found->second.keys.size() < kWrongMax) return {};
  auto left = std::chrono::ceil<std::chrono::seconds>(found->second.since + kWindow - now);
  return std::max(left, std::chrono::seconds(0));
}

void WrongKeys::add(const std::string& address, std::string_view key, Clock::time_point now) {
  std::string network = network_of(address);
  if (!clients_.contains(network) && clients_.size() >= kClientsMax) forget(now);
  Wrong& wrong = clients_[network];
  if (wrong.keys.empty() || wrong.since + kWindow <= now) wrong = {now, {}};
  if (wrong.keys.size() < kWrongMax) wrong.keys.insert(sha256(key));
}

/// Those whose time is over; if there is none, the one whose time ends first.
void WrongKeys::forget(Clock::time_point now) {
  auto is_over = [&](const auto& each) { return each.second.since + kWindow <= now; };
  if (std::erase_if(clients_, is_over) > 0) return;
  clients_.erase(
      std::ranges::min_element(clients_, {}, [](const auto& each) { return each.second.since; }));
}

}  // namespace flow
