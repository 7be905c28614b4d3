// The body of a request between two connections, without either of them.
#include "engine/serve/http/http_upload.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("what was taken of a body is dropped, unless it is kept and not too large") {
  HttpUpload kept(std::nullopt), dropped(std::nullopt);
  dropped.set_kept(false);
  const std::string part(HttpUpload::kAheadMax, 'x');
  for (HttpUpload* upload : {&kept, &dropped}) {
    upload->append(part);
    CHECK(upload->is_full());
    upload->take(part.size());
    CHECK_FALSE(upload->is_full());
  }
  CHECK(kept.held() == part.size());
  CHECK(kept.is_repeatable());
  CHECK(dropped.held() == 0);
  CHECK_FALSE(dropped.is_repeatable());
  kept.rewind();
  CHECK((kept.next(part.size() + 1) == part));
  kept.take(part.size());
  while (kept.is_repeatable()) {
    kept.append(part);
    kept.take(part.size());
    CHECK(kept.held() <= HttpUpload::kKeptMax);
  }
  CHECK(kept.held() == 0);
}

TEST_CASE("an upload that is cancelled while a part of it is sent has nothing more") {
  HttpUpload upload(std::nullopt);
  upload.append("abc");
  upload.end();
  REQUIRE(upload.next(2) == "ab");
  upload.cancel();
  upload.take(2);
  CHECK(upload.is_cancelled());
  CHECK(upload.next(2).empty());
  CHECK_FALSE(upload.is_repeatable());
}
