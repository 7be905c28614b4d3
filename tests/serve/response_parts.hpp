// Responses whose bodies are in several pieces of memory.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "engine/serve/http/http_response.hpp"

namespace flow {

/// A response with this body, of which all but the begin is in parts if it is large.
inline HttpResponse response_in_parts(std::string body) {
  constexpr size_t kBegin = 10, kPart = 1'000'003;
  if (body.size() < kPart) return {.body = std::move(body)};
  HttpResponse response{.body = body.substr(0, kBegin)};
  Bytes whole = std::make_shared<const std::string>(std::move(body));
  for (size_t at = kBegin; at < whole->size(); at += kPart)
    response.parts.push_back(whole.part(at, std::min(kPart, whole->size() - at)));
  return response;
}

}  // namespace flow
