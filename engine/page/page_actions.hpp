// Actions of the page: requests to the writer of the state, with their requester, and the
// equivalent command for when there is no writer.
#pragma once
#include <memory>
#include <string>

#include "engine/page/page_routes.hpp"
#include "engine/protocol/client.pb.h"
#include "engine/serve/http/http_response.hpp"
#include "flow/flow.hpp"

namespace flow {

struct PageAction {
  std::shared_ptr<client_protocol::ClientRequest> request =
      std::make_shared<client_protocol::ClientRequest>();
  std::string run, command = {};
};

class PageActions {
 public:
  /// `who`: the requester, whose name is recorded. `options` are those of the state `state_dir`.
  PageActions(EngineOptions options, std::string state_dir, std::string who);

  const std::string& who() const { return who_; }
  /// The request for an action endpoint. `run`: the run's id; for a rollback the served name.
  /// Throws Failed (user) if a field is missing or wrong, such as a signal whose value is not JSON.
  /// `by`: who asks, by page_requester().
  PageAction make(PageEndpoint endpoint, const std::string& run, const PageQuery& query,
                  const std::string& body, const std::string& by) const;

 private:
  PageAction cancel(const std::string& by, const std::string& run) const;
  PageAction signal(const std::string& by, const std::string& run, const std::string& name,
                    const std::string& json) const;
  PageAction stop(const std::string& by, const std::string& run) const;
  PageAction retry(const std::string& by, const std::string& run, const std::string& task) const;
  PageAction rollback(const std::string& by, const std::string& name) const;
  /// The same as of `flow VERB --detach` in this process: the run continues without the page.
  void put_submission_of_page(const std::string& by, client_protocol::Submission& to) const;
  std::string command(const std::string& words) const;

  const EngineOptions options_;
  const std::string state_dir_, who_;
};

/// Asks the writer of the state, and blocks until it answers.
HttpResponse answer_of_writer(const std::string& state_dir, const PageAction& action);

}  // namespace flow
