#!/usr/bin/env python3
"""Each signed request equals that of botocore byte for byte: the canonical request, the string to sign and the header.

botocore is installed once from PyPI into a folder next to the build. Exit 77 if that fails.
"""
import argparse
import subprocess
import sys

from python_packages import python_with

PROOF = r'''
import datetime, hashlib, json, random, subprocess, sys
import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import percent_encode

tool = sys.argv[1]
TIMES = ["20130524T000000Z", "20261231T235959Z"]
PIECES = ["a", "B", "0", " ", "+", "~", "-", "_", ".", "%", "%20", "&", "=", "?", "#", "*", "'", "(", ")", "!", ",", ":", ";",
          "@", "$", "é", "日本", "\U0001f600", "\"", "<", "\\", "^", "`", "{", "|"]
random.seed(1)


def some_text(longest):
    return "".join(random.choice(PIECES) for _ in range(random.randrange(longest)))


def case(method="GET", path="/bucket/key", query=(), headers=(), body="", key="AKID", secret="s3cret/+", token="",
         region="eu-west-1", time=TIMES[0], host="127.0.0.1:9000"):
    return {"method": method, "host": host, "path": path, "query": [list(q) for q in query],
            "headers": [list(h) for h in headers], "body": body, "key": key, "secret": secret, "token": token,
            "region": region, "time": time}


cases = [
    case(), case(path="/"), case(path="/bucket/a b+c~d/é?#%20//x/../y"), case(host="bucket.s3.eu-west-1.amazonaws.com", path="/k"),
    case(query=[("list-type", "2"), ("prefix", "a b/+~é"), ("continuation-token", "1/2==")]),
    case(query=[("uploads", "")], method="POST"), case(query=[("", "")]), case(query=[("", "x"), ("a", "")]),
    case(query=[("k", "2"), ("k", "1"), ("k", " "), ("k", "~"), ("K", "1")]),
    case(query=[("a-b", "1"), ("a", "2"), ("a.b", "3"), ("a b", "4"), ("aé", "5")]),
    case(headers=[("Range", "bytes=0-9"), ("If-Match", "\"etag\"")]),
    case(headers=[("x-amz-meta-b", "  two   words "), ("X-Amz-Meta-A", "é")], method="PUT", body="content é"),
    case(token="token/+=="), case(method="HEAD", time=TIMES[1], region="us-gov-east-1"),
]
for _ in range(3000):
    cases.append(case(method=random.choice(["GET", "PUT", "POST", "HEAD", "DELETE"]), path="/b/" + some_text(12),
                      query=[(some_text(6), some_text(6)) for _ in range(random.randrange(5))],
                      body=some_text(5), token=random.choice(["", "t+/="]), time=random.choice(TIMES)))


def theirs(c):
    moment = datetime.datetime.strptime(c["time"], "%Y%m%dT%H%M%SZ")
    url = "http://" + c["host"] + percent_encode(c["path"], safe="/~")
    query = "&".join(percent_encode(k, safe="~") + "=" + percent_encode(v, safe="~") for k, v in c["query"])
    request = AWSRequest(method=c["method"], url=url + ("?" + query if query else ""), data=c["body"].encode(),
                         headers=dict(c["headers"]))
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(c["body"].encode()).hexdigest()
    request.context["payload_signing_enabled"] = True
    signer = botocore.auth.S3SigV4Auth(Credentials(c["key"], c["secret"], c["token"] or None), "s3", c["region"])
    seen = {}
    canonical, to_sign = signer.canonical_request, signer.string_to_sign

    def keep_canonical(r):
        seen["canonical"] = canonical(r)
        return seen["canonical"]

    def keep_to_sign(r, text):
        seen["to_sign"] = to_sign(r, text)
        return seen["to_sign"]

    signer.canonical_request, signer.string_to_sign = keep_canonical, keep_to_sign

    class Fixed(datetime.datetime):
        @classmethod
        def utcnow(cls):
            return moment

        @classmethod
        def now(cls, tz=None):
            return moment.replace(tzinfo=tz)

    if hasattr(botocore.auth, "get_current_datetime"):
        botocore.auth.get_current_datetime = lambda remove_tzinfo=True: moment
    else:
        botocore.auth.datetime = type("m", (), {"datetime": Fixed})
    signer.add_auth(request)
    seen["authorization"] = request.headers["Authorization"]
    return seen


done = subprocess.run([tool, "sign"], input="\n".join(json.dumps(c) for c in cases) + "\n", capture_output=True, text=True)
assert done.returncode == 0, done.stderr
lines = done.stdout.splitlines()
assert len(lines) == len(cases), (len(lines), len(cases))
for c, line in zip(cases, lines):
    ours, other = json.loads(line), theirs(c)
    for part in ("canonical", "to_sign", "authorization"):
        assert ours[part] == other[part], "%s of %s\n%s\n---- botocore:\n%s" % (part, c, ours[part], other[part])
print("%d requests are equal" % len(cases))
'''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    python, why = python_with(args.build, ["botocore"], ["botocore.auth"])
    if python is None:
        print("skipped: " + why)
        return 77
    return subprocess.run([python, "-c", PROOF, args.tool]).returncode


if __name__ == "__main__":
    sys.exit(main())
