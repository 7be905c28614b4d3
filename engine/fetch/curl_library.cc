#include "engine/fetch/curl_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace flow::fetch {

namespace {

constexpr const char* kLibrary = "libcurl.so.4";
constexpr unsigned kVersionMin = 0x075500;  // 7.85, for CURLOPT_PROTOCOLS_STR

Error unusable(const std::string& why) {
  return environment_error(fmt::format(
      "URLs need libcurl 7.85 or later: {}. Install it, for example with `apt install libcurl4`",
      why));
}

Result<CurlLibrary> load() {
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return unusable(why != nullptr ? why : kLibrary);
  }
  CurlLibrary library;
  const char* missing = nullptr;
  auto find = [&](const char* name, auto& call) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(handle, name));
    if (call == nullptr) missing = name;
  };
#define FLOW_CURL_FIND(name) find(#name, library.name);
  FLOW_CURL_CALLS(FLOW_CURL_FIND)
#undef FLOW_CURL_FIND
  if (missing != nullptr) return unusable(fmt::format("{} has no {}", kLibrary, missing));
  const curl_version_info_data* info = library.curl_version_info(CURLVERSION_NOW);
  if (info->version_num < kVersionMin)
    return unusable(fmt::format("{} is version {}", kLibrary, info->version));
  CURLcode code = library.curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) return unusable(library.curl_easy_strerror(code));
  return library;
}

}  // namespace

const Result<CurlLibrary>& curl_library() {
  // Never destroyed: threads may use it while the process exits.
  static const auto* library = new Result<CurlLibrary>(load());
  return *library;
}

}  // namespace flow::fetch
